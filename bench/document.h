#pragma once
#include <fmt/format.h>

#include <string>
#include <vector>

#include "hetermoe/report/table.h"

namespace hetermoe {

using Row = std::vector<std::string>;

/// Writes the same sections as text and as Markdown.
class Document {
 public:
  void heading(const std::string& text) {
    text_ += fmt::format("\n== {}\n", text);
    markdown_ += fmt::format("\n## {}\n\n", text);
  }
  void paragraph(const std::string& text) {
    text_ += text + "\n";
    markdown_ += text + "\n\n";
  }
  void table(const Row& header, const std::vector<Row>& rows) {
    Table plain(header);
    markdown_ += line(header) + line(Row(header.size(), "---"));
    for (const Row& row : rows) {
      plain.add_row(row);
      markdown_ += line(row);
    }
    text_ += plain.str();
    markdown_ += "\n";
  }
  const std::string& text() const { return text_; }
  const std::string& markdown() const { return markdown_; }

 private:
  static std::string line(const Row& cells) {
    std::string out = "|";
    for (const std::string& cell : cells) out += " " + cell + " |";
    return out + "\n";
  }
  std::string text_, markdown_;
};

}  // namespace hetermoe
