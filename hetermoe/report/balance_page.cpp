#include "hetermoe/report/balance_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hetermoe/report/escape.h"
#include "hetermoe/report/heat_map.h"
#include "hetermoe/report/html.h"
#include "hetermoe/report/page.h"
#include "hetermoe/report/table.h"

namespace hetermoe {
namespace {

constexpr int kRowsLeft = 96, kRowsTop = 46, kRowsWide = 620, kRowsGap = 24, kRowsBar = 220, kRowsRight = 60,
              kRowsBottom = 26;
constexpr const char* kLentColour = "#e07a1f";

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

double lent_to(const DeviceMap& map, std::size_t device) {
  if (map.lent.empty()) return 0;
  return std::accumulate(map.lent[device].begin(), map.lent[device].end(), 0.0);
}

/// A cell of a guest has a frame of its own colour, inside its borders so that neighbours keep theirs.
std::string cell_svg(const DeviceMap& map, std::size_t device, std::size_t expert, double x, int y,
                     double wide, int height, double most) {
  const double copies = map.copies[device][expert];
  const bool is_guest = !map.lent.empty() && map.lent[device][expert] > 0;
  const double frame = is_guest ? std::min(1.4, wide / 3) : 0;
  const std::string stroke =
      is_guest ? fmt::format(" stroke=\"{}\" stroke-width=\"{:.2f}\"", kLentColour, frame) : "";
  std::string svg = fmt::format(
      "<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"{}",
      is_guest ? "cell guest" : "cell", x + frame / 2, y + frame / 2, wide - frame, height - 1 - frame,
      heat_colour(copies / most), stroke);
  if (map.copies[device].size() * map.copies.size() > kMostTooltips) return svg + "/>\n";
  return svg + fmt::format("><title>{}, expert {}: {:.0f} copies{}</title></rect>\n",
                           escape_markup(map.devices[device]), expert, copies,
                           is_guest ? ", as a guest" : "");
}

std::string device_row_svg(const DeviceMap& map, std::size_t device, int y, int height, double most,
                           double longest) {
  const std::vector<double>& copies = map.copies[device];
  const double wide = kRowsWide / static_cast<double>(std::max<std::size_t>(1, copies.size()));
  std::string svg = fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kRowsLeft - 6,
                                y + height / 2 + 4, escape_markup(map.devices[device]));
  for (std::size_t e = 0; e < copies.size(); ++e) {
    if (copies[e] > 0)
      svg += cell_svg(map, device, e, kRowsLeft + wide * static_cast<double>(e), y, wide, height, most);
  }
  const double time = map.times[device], sum = std::accumulate(copies.begin(), copies.end(), 0.0),
               lent = lent_to(map, device);
  const int x = kRowsLeft + kRowsWide + kRowsGap;
  const double end = x + kRowsBar * time / longest;
  svg += fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"><title>{}: {:.0f} copies, "
      "{:.2f} of a perfect division</title></rect><text x=\"{:.1f}\" y=\"{}\">{:.2f}</text>\n",
      x, y + 2, end - x, height - 4, time > 1.05 ? "#d1495b" : "#33658a", escape_markup(map.devices[device]),
      sum, time, end + 4, y + height / 2 + 4, time);
  if (lent == 0) return svg;
  const double part = (end - x) * lent / sum;
  return svg + fmt::format(
                   "<rect class=\"guest\" x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" "
                   "fill=\"{}\"><title>{}: {:.0f} copies as a host of guests</title></rect>\n",
                   end - part, y + 2, part, height - 4, kLentColour, escape_markup(map.devices[device]),
                   lent);
}

/// What the colour of guests means, below a map that has some.
std::string legend_svg(const DeviceMap& map, int y) {
  bool any = false;
  for (std::size_t d = 0; d < map.devices.size(); ++d) any = any || lent_to(map, d) > 0;
  if (!any) return "";
  const int x = kRowsLeft + kRowsWide + kRowsGap;
  return fmt::format(
      "<g class=\"lent-key\"><rect x=\"{0:.1f}\" y=\"{1:.1f}\" width=\"10\" height=\"10\" fill=\"{2}\" "
      "stroke=\"{3}\" stroke-width=\"1.4\"/><text x=\"{4}\" y=\"{5}\">a guest: lent for single "
      "exchanges</text>\n<rect x=\"{6}\" y=\"{7}\" width=\"10\" height=\"10\" fill=\"{3}\"/>"
      "<text x=\"{8}\" y=\"{5}\">of it for guests</text></g>\n",
      kRowsLeft + 180.0, y - 9.5, heat_colour(0.4), kLentColour, kRowsLeft + 196, y, x, y - 9, x + 16);
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
  std::string html =
      fmt::format("<section id=\"device-maps\"><h2>{}: layer {}</h2>\n<p class=\"how\">{}</p>\n",
                  escape_markup(page.maps_title), page.layers[0].layer, escape_markup(page.maps_text));
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
  const int width = kRowsLeft + kRowsWide + kRowsGap + kRowsBar + kRowsRight,
            tall = kRowsTop + rows + kRowsBottom;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"11\" role=\"img\">\n<rect width=\"{0}\" height=\"{1}\" "
      "fill=\"white\"/>\n<text x=\"{2}\" y=\"20\" font-size=\"14\">{3}</text>\n"
      "<text x=\"{4}\" y=\"38\">{5}</text>\n",
      width, tall, kRowsLeft, escape_markup(map.title), kRowsLeft + kRowsWide + kRowsGap,
      escape_markup(map.bars));
  for (std::size_t d = 0; d < map.devices.size(); ++d)
    svg +=
        device_row_svg(map, d, kRowsTop + height * static_cast<int>(d), height, std::max(most, 1.0), longest);
  const double line = kRowsLeft + kRowsWide + kRowsGap + kRowsBar / longest;
  svg += fmt::format(
      "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#1d2329\" stroke-dasharray=\"3 "
      "2\"/>\n"
      "<text x=\"{3}\" y=\"{4}\">experts 0 to {5}</text>\n",
      line, kRowsTop, kRowsTop + rows, kRowsLeft, kRowsTop + rows + 16,
      map.copies.empty() ? 0 : map.copies[0].size() - 1);
  return svg + legend_svg(map, kRowsTop + rows + 16) + "</svg>\n";
}

std::string balance_page(const BalancePage& page) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, "
      "initial-scale=1\">\n<title>{0}</title>\n<style>\n{1}</style></head>\n<body>\n"
      "<header><h1>{0}</h1>\n",
      escape_markup(page.title), kPageStyle);
  if (!page.label.empty())
    html +=
        fmt::format("<p class=\"labels\"><span class=\"label\">{}</span></p>\n", escape_markup(page.label));
  html += "<dl class=\"facts\">\n";
  for (const auto& [name, value] : page.facts)
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escape_markup(name), escape_markup(value));
  html += "</dl></header>\n";
  for (const PageTable& table : page.tables) html += page_table_html(table);
  html += maps_html(page);
  if (!page.curves.runs.empty())
    html +=
        fmt::format("<section><h2>{}</h2><div class=\"plots\"><div class=\"plot\">{}</div></div></section>\n",
                    escape_markup(page.curves_title), loss_svg(page.curves));
  return html + lent_html(page) + plot_script() + "</body></html>\n";
}

}  // namespace hetermoe
