#include "hetermoe/report/balance_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hetermoe/report/escape.h"
#include "hetermoe/report/heat_map.h"
#include "hetermoe/report/page.h"
#include "hetermoe/report/table.h"

namespace hetermoe {
namespace {

constexpr int kLeft = 96, kTop = 46, kWide = 620, kGap = 24, kBar = 220, kRight = 60, kBottom = 26;

double most_copies(const LayerMaps& layer) {
  double most = 0;
  for (const DeviceMap& map : layer.maps) {
    for (const std::vector<double>& of_device : map.copies) {
      for (const double copies : of_device) most = std::max(most, copies);
    }
  }
  return most;
}

double longest_time(const LayerMaps& layer) {
  double longest = 1;
  for (const DeviceMap& map : layer.maps) {
    for (const double time : map.times) longest = std::max(longest, time);
  }
  return longest;
}

std::string device_row_svg(const DeviceMap& map, std::size_t device, int y, int height, double most,
                           double longest) {
  const std::vector<double>& copies = map.copies[device];
  const double wide = kWide / static_cast<double>(std::max<std::size_t>(1, copies.size()));
  std::string svg = fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLeft - 6,
                                y + height / 2 + 4, escape_markup(map.devices[device]));
  const bool tells = copies.size() * map.copies.size() <= kMostTooltips;
  for (std::size_t e = 0; e < copies.size(); ++e) {
    if (copies[e] == 0) continue;
    svg += fmt::format(
        "<rect class=\"cell\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"",
        kLeft + wide * static_cast<double>(e), y, wide, height - 1, heat_colour(copies[e] / most));
    svg += tells ? fmt::format("><title>{}, expert {}: {:.0f} copies</title></rect>\n",
                               escape_markup(map.devices[device]), e, copies[e])
                 : "/>\n";
  }
  const double time = map.times[device], sum = std::accumulate(copies.begin(), copies.end(), 0.0);
  const int x = kLeft + kWide + kGap;
  return svg +
         fmt::format(
             "<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"><title>{}: {:.0f} copies, "
             "{:.2f} of a perfect division</title></rect><text x=\"{:.1f}\" y=\"{}\">{:.2f}</text>\n",
             x, y + 2, kBar * time / longest, height - 4, time > 1.05 ? "#d1495b" : "#33658a",
             escape_markup(map.devices[device]), sum, time, x + kBar * time / longest + 4, y + height / 2 + 4,
             time);
}

std::string table_html(const BalancePage& page) {
  std::string html = "<section><h2>Balancers</h2><div class=\"scroll\"><table><thead><tr>";
  for (const std::string& name : page.header) html += "<th>" + escape_markup(name) + "</th>";
  html += "</tr></thead><tbody>\n";
  for (const std::vector<std::string>& row : page.rows) {
    html += "<tr>";
    for (std::size_t c = 0; c < row.size(); ++c)
      html += (c == 0 ? "<th scope=\"row\">" : "<td class=\"num\">") + escape_markup(row[c]) +
              (c == 0 ? "</th>" : "</td>");
    html += "</tr>\n";
  }
  return html + "</tbody></table></div></section>\n";
}

std::string layer_html(const LayerMaps& layer) {
  const double most = most_copies(layer), longest = longest_time(layer);
  std::string html;
  for (const DeviceMap& map : layer.maps)
    html += "<div class=\"plot\">" + device_map_svg(map, most, longest) + "</div>\n";
  return html;
}

std::string maps_html(const BalancePage& page) {
  if (page.layers.empty()) return "";
  std::string html = fmt::format(
      "<section id=\"device-maps\"><h2>Device by expert, before and after: layer {}</h2>\n<p "
      "class=\"how\">Copies of "
      "the last step that each device computes of each expert, the darker the more, on one scale. Right: the "
      "time "
      "that a device takes for them over a perfect division by speed (the line). The step waits for the "
      "longest "
      "bar of each exchange; here microbatches are added up.</p>\n",
      page.layers[0].layer);
  html += layer_html(page.layers[0]);
  for (std::size_t l = 1; l < page.layers.size(); ++l)
    html += fmt::format("<details><summary>layer {}</summary>\n{}</details>\n", page.layers[l].layer,
                        layer_html(page.layers[l]));
  return html + "</section>\n";
}

std::string lent_html(const BalancePage& page) {
  if (page.lent.empty()) return "";
  std::string html =
      "<section id=\"lent\"><h2>What was lent</h2>\n<p class=\"how\">Experts lent for single exchanges of "
      "the last "
      "step, simulated. Hidden: what no other work had to wait for.</p>\n<div "
      "class=\"scroll\"><table><thead><tr>"
      "<th>balancer</th><th>weights</th><th>gradients</th><th>on the "
      "wire</th><th>hidden</th></tr></thead><tbody>\n";
  for (const LentRow& row : page.lent) {
    html += fmt::format(
        "<tr><th scope=\"row\">{}</th><td class=\"num\">{}</td><td class=\"num\">{}</td><td "
        "class=\"num\">{}</td>"
        "<td class=\"time\">{}<span class=\"bar\"><i style=\"width:{:.1f}%\"></i></span></td></tr>\n",
        escape_markup(row.balancer), format_bytes(row.weights), format_bytes(row.gradients),
        format_seconds(row.seconds), format_percent(row.hidden_share), 100 * row.hidden_share);
  }
  return html + "</tbody></table></div></section>\n";
}

}  // namespace

std::string device_map_svg(const DeviceMap& map, double most, double longest) {
  const int height = map.devices.size() > 24 ? 12 : 20, rows = height * static_cast<int>(map.devices.size());
  const int width = kLeft + kWide + kGap + kBar + kRight, tall = kTop + rows + kBottom;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"11\" role=\"img\">\n<rect width=\"{0}\" height=\"{1}\" "
      "fill=\"white\"/>\n<text x=\"{2}\" y=\"20\" font-size=\"14\">{3}</text>\n"
      "<text x=\"{4}\" y=\"38\">{5}</text>\n",
      width, tall, kLeft, escape_markup(map.title), kLeft + kWide + kGap, escape_markup(map.bars));
  for (std::size_t d = 0; d < map.devices.size(); ++d)
    svg += device_row_svg(map, d, kTop + height * static_cast<int>(d), height, std::max(most, 1.0), longest);
  const double line = kLeft + kWide + kGap + kBar / longest;
  svg += fmt::format(
      "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#1d2329\" stroke-dasharray=\"3 "
      "2\"/>\n"
      "<text x=\"{3}\" y=\"{4}\">experts 0 to {5}</text>\n",
      line, kTop, kTop + rows, kLeft, kTop + rows + 16, map.copies.empty() ? 0 : map.copies[0].size() - 1);
  return svg + "</svg>\n";
}

std::string balance_page(const BalancePage& page) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, "
      "initial-scale=1\">\n<title>{0}</title>\n<style>\n{1}</style></head>\n<body>\n"
      "<header><h1>{0}</h1>\n<p class=\"labels\"><span class=\"label\">times are simulated</span></p>\n"
      "<dl class=\"facts\">\n",
      escape_markup(page.title), kPageStyle);
  for (const auto& [name, value] : page.facts)
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escape_markup(name), escape_markup(value));
  html += "</dl></header>\n" + table_html(page) + maps_html(page);
  if (!page.time_ratio.runs.empty())
    html += "<section><h2>Over the steps</h2><div class=\"plots\"><div class=\"plot\">" +
            loss_svg(page.time_ratio) + "</div></div></section>\n";
  return html + lent_html(page) + "</body></html>\n";
}

}  // namespace hetermoe
