#include "hetermoe/report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <regex>
#include <sstream>

#include "hetermoe/base/error.h"

namespace hetermoe {
namespace {

std::string not_finite(double value) { return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"; }

struct NamedUnit {
  double size;
  const char* name;
};

/// value in the largest unit that keeps it at 1 or above, after rounding to three digits: 999.9 us is "1.00
/// ms".
template <std::size_t N>
std::string in_units(double value, const std::array<NamedUnit, N>& large_to_small) {
  for (const NamedUnit& unit : large_to_small) {
    const double scaled = value / unit.size;
    if (std::abs(scaled) >= 0.9995 || &unit == &large_to_small.back())
      return format_digits(scaled, 3) + " " + unit.name;
  }
  return {};
}

}  // namespace

std::string format_digits(double value, int num_digits) {
  if (!std::isfinite(value)) return not_finite(value);
  if (value == 0) return "0";
  // The exponent after rounding decides: 9.996 has one digit before the point, 10.0 two.
  const std::string rounded = fmt::format("{:.{}e}", value, num_digits - 1);
  const int exponent = std::stoi(rounded.substr(rounded.find('e') + 1));
  if (exponent < -4 || exponent > 15) return fmt::format("{:.{}g}", value, num_digits);
  return fmt::format("{:.{}f}", value, std::max(0, num_digits - 1 - exponent));
}

std::string format_seconds(Seconds value) {
  if (!std::isfinite(value)) return not_finite(value);
  if (value == 0) return "0 s";
  if (value < 0) return fmt::format("-{}", format_seconds(-value));
  if (value >= 599.5) {
    const i64 whole = std::llround(value);
    if (whole < 36000) return fmt::format("{} min {} s", whole / 60, whole % 60);
    const i64 minutes = std::llround(value / 60);
    return fmt::format("{} h {} min", minutes / 60, minutes % 60);
  }
  static constexpr std::array<NamedUnit, 4> kUnits = {{{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}}};
  return in_units(value, kUnits);
}

std::string format_bytes(Bytes value) {
  if (!std::isfinite(value)) return not_finite(value);
  if (std::abs(value) < 1023.5) return fmt::format("{:.0f} B", std::round(value) + 0.0);
  static constexpr double kKib = 1024;
  static constexpr std::array<NamedUnit, 4> kUnits = {
      {{kKib * kKib * kKib * kKib, "TiB"}, {kKib * kKib * kKib, "GiB"}, {kKib * kKib, "MiB"}, {kKib, "KiB"}}};
  return in_units(value, kUnits);
}

std::string format_count(double value) {
  if (!std::isfinite(value)) return not_finite(value);
  if (std::abs(value) < 999.5) {
    return value == std::floor(value) ? fmt::format("{:.0f}", value + 0.0) : format_digits(value, 3);
  }
  static constexpr std::array<NamedUnit, 4> kUnits = {{{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}}};
  for (const NamedUnit& unit : kUnits) {
    // 0.99995 is where one decimal rounds up to the next unit: 999950 is "1.0 M", never "1000.0 K".
    if (std::abs(value) >= 0.99995 * unit.size) return fmt::format("{:.1f} {}", value / unit.size, unit.name);
  }
  return fmt::format("{:.1f} K", value / 1e3);
}

std::string format_percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f} %", share * 100) : not_finite(share);
}

std::string format_factor(double value) {
  return std::isfinite(value) ? fmt::format("{:.2f}x", value) : not_finite(value);
}

std::size_t display_width(std::string_view text) {
  const auto starts_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), starts_character));
}

bool looks_numeric(std::string_view text) {
  static const std::regex number(
      R"([~<>=]*[-+]?[0-9][0-9.,]*(e[-+]?[0-9]+)?([%x]| [A-Za-z%/]+)?|[0-9]+ (min|h) [0-9]+ (s|min)|-?(nan|inf))");
  return std::regex_match(text.begin(), text.end(), number);
}

std::vector<std::string> wrap_words(const std::string& text, std::size_t width) {
  if (display_width(text) <= width) return {text};
  std::vector<std::string> out;
  std::string word;
  std::istringstream in(text);
  while (in >> word) {
    if (!out.empty() && display_width(out.back()) + 1 + display_width(word) <= width)
      out.back() += " " + word;
    else
      out.push_back(word);
  }
  return out;
}

Table::Table(std::vector<std::string> header)
    : header_(std::move(header)), align_(header_.size(), Align::kAuto) {}

void Table::keys(std::size_t columns) { num_keys_ = columns; }

void Table::align(std::size_t column, Align align) { align_.at(column) = align; }

void Table::add_row(std::vector<std::string> cells) {
  HM_CHECK(cells.size() <= header_.size(), "a row of {} cells in a table of {} columns", cells.size(),
           header_.size());
  cells.resize(header_.size());
  rows_.push_back(std::move(cells));
}

bool Table::is_text(std::size_t column) const {
  return !is_right(column) &&
         std::any_of(rows_.begin(), rows_.end(), [&](const std::vector<std::string>& row) {
           return row[column].find(' ') != std::string::npos;
         });
}

bool Table::is_right(std::size_t column) const {
  if (align_[column] != Align::kAuto) return align_[column] == Align::kRight;
  bool any = false;
  for (const std::vector<std::string>& row : rows_) {
    const std::string& cell = row[column];
    if (cell.empty() || cell == "-") continue;
    if (!looks_numeric(cell)) return false;
    any = true;
  }
  return any;
}

std::string Table::line(const std::vector<std::string>& cells, const Layout& layout,
                        const std::vector<std::size_t>& columns, int indent) {
  std::string text(static_cast<std::size_t>(indent), ' ');
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const std::size_t c = columns[i];
    const std::size_t width = display_width(cells[c]);
    const std::string blanks(layout.widths[c] > width ? layout.widths[c] - width : 0, ' ');
    text += (i == 0 ? "" : "  ") + (layout.right[c] ? blanks + cells[c] : cells[c] + blanks);
  }
  return text.erase(text.find_last_not_of(' ') + 1) + "\n";
}

std::string Table::lines(const std::vector<std::string>& cells, const Layout& layout,
                         const std::vector<std::size_t>& columns, int indent) {
  std::vector<std::vector<std::string>> wrapped(cells.size());
  std::size_t height = 1;
  for (const std::size_t c : columns) {
    wrapped[c] = wrap_words(cells[c], layout.widths[c]);
    height = std::max(height, wrapped[c].size());
  }
  std::string text;
  for (std::size_t i = 0; i < height; ++i) {
    std::vector<std::string> part(cells.size());
    for (const std::size_t c : columns) part[c] = i < wrapped[c].size() ? wrapped[c][i] : "";
    text += line(part, layout, columns, indent);
  }
  return text;
}

Table::Layout Table::layout() const {
  Layout out;
  for (std::size_t c = 0; c < header_.size(); ++c) {
    std::size_t width = display_width(header_[c]);
    for (const std::vector<std::string>& row : rows_) width = std::max(width, display_width(row[c]));
    out.widths.push_back(width);
    out.right.push_back(is_right(c));
  }
  return out;
}

std::vector<std::vector<std::size_t>> Table::blocks(Layout& layout, std::size_t room) const {
  constexpr std::size_t kBetween = 2, kNarrowest = 24, kWidestKeys = 56;
  std::vector<std::size_t> keys(std::min(num_keys_, header_.size()));
  std::iota(keys.begin(), keys.end(), std::size_t{0});
  std::size_t of_keys = 0, all = 0;
  for (const std::size_t width : layout.widths) all += width + kBetween;
  for (const std::size_t c : keys)
    if (all > room + kBetween && is_text(c))
      layout.widths[c] = std::min(layout.widths[c], kWidestKeys / keys.size());
  for (const std::size_t c : keys) of_keys += layout.widths[c] + kBetween;
  std::vector<std::vector<std::size_t>> out = {keys};
  std::size_t used = of_keys;
  const auto begin = [&] {
    if (out.back().size() > keys.size()) out.push_back(keys), used = of_keys;
  };
  for (std::size_t c = keys.size(); c < header_.size(); ++c) {
    if (used + layout.widths[c] > room && !(is_text(c) && used + kNarrowest <= room)) begin();
    const std::size_t left = std::max(room > used ? room - used : 0, kNarrowest);
    if (is_text(c)) layout.widths[c] = std::min(layout.widths[c], left);
    out.back().push_back(c);
    used += layout.widths[c] + kBetween;
  }
  return out;
}

std::string Table::str(int indent) const {
  Layout layout = this->layout();
  std::string text;
  for (const std::vector<std::size_t>& columns :
       blocks(layout, kMostColumns - static_cast<std::size_t>(indent))) {
    std::vector<std::string> rule;
    for (const std::size_t width : layout.widths) rule.emplace_back(width, '-');
    if (!text.empty()) text += "\n";
    text += lines(header_, layout, columns, indent) + line(rule, layout, columns, indent);
    for (const std::vector<std::string>& row : rows_) text += lines(row, layout, columns, indent);
  }
  return text;
}

}  // namespace hetermoe
