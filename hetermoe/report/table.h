#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "hetermoe/base/types.h"

// Text for people: numbers with units, and tables of them. All plain ASCII unless a cell says otherwise.
namespace hetermoe {

std::string format_seconds(
    Seconds value);  ///< three digits: "12.3 ms", "1.05 s", "340 us"; from 10 minutes on "12 min 5 s"
std::string format_bytes(Bytes value);  ///< three digits, binary: "34.1 GiB", "512 B"
std::string format_count(
    double value);  ///< "1.2 B", "46.7 B", "65.5 K"; whole numbers under 1000 as they are
std::string format_percent(double share);  ///< 0.1234 -> "12.3 %"
std::string format_factor(double value);   ///< 1.234 -> "1.23x"
/// value with `num_digits` significant digits and no exponent while one is avoidable: 1234.5, 3 -> "1234".
std::string format_digits(double value, int num_digits);

enum class Align { kAuto, kLeft, kRight };

/// A plain-text table: a header, a rule, rows. A column is right-aligned when all its cells are numbers (with
/// or without a unit) or "-"; widths count characters, not bytes. A table wider than kMostColumns goes on
/// below, its first columns repeated; there the cells of a column of words are wrapped, those of the first
/// columns to 56 characters together.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void align(std::size_t column, Align align);
  /// So many first columns say what a row is about [1].
  void keys(std::size_t columns);
  /// As many cells as the header has. A shorter row is filled with empty cells; a longer one is a programmer
  /// error.
  void add_row(std::vector<std::string> cells);
  std::size_t num_rows() const { return rows_.size(); }
  static constexpr std::size_t kMostColumns = 120;  ///< characters of a line
  /// Lines end with '\n' and have no trailing blanks. `indent` blanks stand before each line.
  std::string str(int indent = 0) const;

 private:
  struct Layout {
    std::vector<std::size_t> widths;  ///< [column] characters
    std::vector<bool> right;          ///< [column]
  };
  static std::string line(const std::vector<std::string>& cells, const Layout& layout,
                          const std::vector<std::size_t>& columns, int indent);
  static std::string lines(const std::vector<std::string>& cells, const Layout& layout,
                           const std::vector<std::size_t>& columns, int indent);
  Layout layout() const;
  /// The columns of each part that stands below the other; narrows those of words that would be too wide.
  std::vector<std::vector<std::size_t>> blocks(Layout& layout, std::size_t room) const;
  bool is_right(std::size_t column) const;
  bool is_text(std::size_t column) const;
  std::vector<std::string> header_;
  std::vector<Align> align_;
  std::size_t num_keys_ = 1;
  std::vector<std::vector<std::string>> rows_;
};

/// The words of a text in lines of at most so many characters, but for words that are longer.
std::vector<std::string> wrap_words(const std::string& text, std::size_t width);
/// Characters of UTF-8 text (code points).
std::size_t display_width(std::string_view text);
/// "12.3", "-4", "1.2e-05", "12.3 ms", "45 %", "1.8x", "~3 GiB", "1,024": a number with at most one unit.
bool looks_numeric(std::string_view text);

}  // namespace hetermoe
