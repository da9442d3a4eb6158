#pragma once
#include <string>
#include <vector>

namespace hetermoe {

/// A table of a page, with what its columns mean below it.
struct PageTable {
  std::string title;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  ///< the first cell of each says what the row is about
  std::vector<std::string> notes = {};         ///< "column: meaning"
};

/// A section of the page; empty without rows. All text is escaped.
std::string page_table_html(const PageTable& table);

}  // namespace hetermoe
