#include "hetermoe/base/fields.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace hetermoe {

std::string to_string(const Range& range) {
  const bool has_low = std::isfinite(range.low), has_high = std::isfinite(range.high);
  if (has_low && has_high && !range.low_open && !range.high_open)
    return fmt::format("{} to {}", range.low, range.high);
  if (has_low && has_high)
    return fmt::format("{} {} and {} {}", range.low_open ? ">" : ">=", range.low,
                       range.high_open ? "<" : "<=", range.high);
  if (has_low) return fmt::format("{} {}", range.low_open ? ">" : ">=", range.low);
  if (has_high) return fmt::format("<= {}", range.high);
  return "";
}

namespace detail {

namespace {
std::string trimmed(const std::string& where) { return where.substr(0, where.find_last_not_of(' ') + 1); }
}  // namespace

void wrong_type(const std::string& where, const Json& got, const std::string& expected) {
  fail<ConfigError>(trimmed(where), "wrong type: got {}, expected {}", describe(got), expected);
}

bool is_in_range(double value, const Range& range) {
  const bool below = range.low_open ? value <= range.low : value < range.low;
  const bool above = range.high_open ? value >= range.high : value > range.high;
  return !below && !above && !std::isnan(value);
}

void check_range(const std::string& where, double value, const Range& range) {
  if (!is_in_range(value, range)) {
    fail<ConfigError>(where, "out of range: got {}, expected {}", value, to_string(range));
  }
}

void check_text(const std::string& where, const Json& text, const Range& range) {
  const auto& value = text.get_ref<const std::string&>();
  if (range.lines ? printable_lines(value) == value : is_printable(value)) return;
  fail<ConfigError>(where, "got {}, expected a text without {}control characters", describe(text),
                    range.lines ? "" : "line breaks and ");
}

void missing_key(const std::string& where, const MissingKey& missing) {
  const auto& [name, type, help] = missing;
  fail<ConfigError>(trimmed(where), "has no key \"{}\", expected {}: {}", name,
                    type == "integer" ? "an integer" : "a " + type, help);
}

std::string member_place(const std::string& where, const char* name) {
  return where.ends_with(' ') || where == "--" ? where + name : where + "." + name;
}

std::string help_text(const char* help, const std::vector<std::string>& names, const Range& range) {
  std::string text = help;
  if (!names.empty()) text += fmt::format(" ({})", fmt::join(names, ", "));
  const std::string limits = to_string(range);
  if (!limits.empty()) text += " [" + limits + "]";
  return text;
}

void check_keys(const Json& json, const std::vector<std::string>& names, const std::string& where) {
  for (const auto& [key, value] : json.items()) {
    if (std::find(names.begin(), names.end(), key) == names.end()) {
      fail<ConfigError>(trimmed(where), "unknown key \"{}\".{}", key, known_names_hint(key, names));
    }
  }
}

}  // namespace detail
}  // namespace hetermoe
