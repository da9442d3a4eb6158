#include "hetermoe/report/page_table.h"

#include <fmt/format.h>

#include "hetermoe/report/escape.h"

namespace hetermoe {

std::string page_table_html(const PageTable& table) {
  if (table.rows.empty()) return "";
  std::string html =
      fmt::format("<section><h2>{}</h2><div class=\"scroll\"><table><thead><tr>", escape_markup(table.title));
  for (const std::string& name : table.header) html += "<th>" + escape_markup(name) + "</th>";
  html += "</tr></thead><tbody>\n";
  for (const std::vector<std::string>& row : table.rows) {
    html += "<tr>";
    for (std::size_t c = 0; c < row.size(); ++c)
      html += (c == 0 ? "<th scope=\"row\">" : "<td class=\"num\">") + escape_markup(row[c]) +
              (c == 0 ? "</th>" : "</td>");
    html += "</tr>\n";
  }
  html += "</tbody></table></div>\n";
  if (!table.notes.empty()) html += "<ul class=\"how notes\">\n";
  for (const std::string& note : table.notes) html += "<li>" + escape_markup(note) + "</li>\n";
  return html + (table.notes.empty() ? "" : "</ul>\n") + "</section>\n";
}

}  // namespace hetermoe
