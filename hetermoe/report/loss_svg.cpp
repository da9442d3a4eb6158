#include "hetermoe/report/loss_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "hetermoe/report/escape.h"
#include "hetermoe/report/table.h"

namespace hetermoe {
namespace {

// Okabe and Ito's palette without its yellow, which is too light for lines on white.
constexpr std::array<const char*, 6> kColors = {"#0072B2", "#D55E00", "#009E73",
                                                "#CC79A7", "#56B4E9", "#E69F00"};
constexpr double kLeft = 64, kRight = 20, kTop = 44, kBottom = 52, kLegendRow = 20;

struct Box {
  double x_low = std::numeric_limits<double>::infinity(), x_high = -x_low, y_low = x_low, y_high = -x_low;
  bool empty() const { return x_low > x_high; }
};

void extend(Box& box, const std::vector<LossPoint>& points) {
  for (const LossPoint& p : points) {
    if (!std::isfinite(p.loss) || !std::isfinite(p.step)) continue;
    box.x_low = std::min(box.x_low, p.step);
    box.x_high = std::max(box.x_high, p.step);
    box.y_low = std::min(box.y_low, p.loss);
    box.y_high = std::max(box.y_high, p.loss);
  }
}

Box bounds_of(const LossPlot& plot) {
  Box box;
  for (const LossSeries& run : plot.runs) {
    extend(box, run.train);
    extend(box, run.validation);
  }
  if (box.empty()) box = {0, 1, 0, 1};
  // A single point, or a flat line, still gets a frame around it.
  if (box.x_low == box.x_high) box.x_high = box.x_low + 1;
  const double margin =
      box.y_low == box.y_high ? std::max(0.5, 0.05 * std::abs(box.y_low)) : 0.05 * (box.y_high - box.y_low);
  box.y_low -= margin;
  box.y_high += margin;
  return box;
}

/// Converts data to pixels.
struct Frame {
  Box box;
  double left, right, top, bottom;  // pixels
  double x(double step) const {
    return left + (step - box.x_low) / (box.x_high - box.x_low) * (right - left);
  }
  double y(double loss) const {
    return bottom - (loss - box.y_low) / (box.y_high - box.y_low) * (bottom - top);
  }
};

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     escape_markup(text));
}

std::string axes(const Frame& f, const LossPlot& plot) {
  std::string svg;
  for (const double tick : nice_ticks(f.box.x_low, f.box.x_high, 8)) {
    svg +=
        fmt::format("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#777\"/>\n",
                    f.x(tick), f.bottom, f.bottom + 5);
    svg += text_at(f.x(tick), f.bottom + 19, "middle", fmt::format("{:g}", tick));
  }
  for (const double tick : nice_ticks(f.box.y_low, f.box.y_high, 6)) {
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n",
                       f.left, f.y(tick), f.right, f.y(tick));
    svg += text_at(f.left - 8, f.y(tick) + 4, "end", fmt::format("{:g}", tick));
  }
  svg += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\" fill=\"none\" stroke=\"#777\"/>\n", f.left,
                     f.top, f.bottom, f.right);
  svg += text_at((f.left + f.right) / 2, f.bottom + 40, "middle", plot.x_label);
  const double middle = (f.top + f.bottom) / 2;
  svg += text_at(16, middle, "middle", plot.y_label,
                 fmt::format(" transform=\"rotate(-90 16 {:.1f})\"", middle).c_str());
  return svg;
}

/// A path through the finite points; a point that is not finite lifts the pen.
std::string path(const Frame& f, const std::vector<LossPoint>& points, const char* color,
                 const char* dashes) {
  std::string d;
  bool is_down = false;
  for (const LossPoint& p : points) {
    const bool is_finite = std::isfinite(p.loss) && std::isfinite(p.step);
    if (is_finite) d += fmt::format("{}{:.1f} {:.1f}", is_down ? "L" : "M", f.x(p.step), f.y(p.loss));
    is_down = is_finite;
  }
  if (d.empty()) return "";
  return fmt::format(
      "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" stroke-linejoin=\"round\"{}/>\n", d,
      color, dashes);
}

std::string dots(const Frame& f, const std::vector<LossPoint>& points, const char* color, double radius) {
  std::string svg;
  for (const LossPoint& p : points) {
    if (!std::isfinite(p.loss) || !std::isfinite(p.step)) continue;
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"/>\n", f.x(p.step),
                       f.y(p.loss), radius, color);
  }
  return svg;
}

constexpr const char* kDashes = " stroke-dasharray=\"6 4\"";

std::string run_svg(const Frame& f, const LossSeries& run, const char* color) {
  std::string svg = path(f, run.train, color, "");
  if (run.train.size() == 1) svg += dots(f, run.train, color, 3);
  svg += path(f, run.validation, color, kDashes);
  return svg + dots(f, run.validation, color, 3);
}

struct LegendEntry {
  std::string text;
  const char* color;
  const char* dashes;
};

std::vector<LegendEntry> legend_entries(const LossPlot& plot) {
  std::vector<LegendEntry> entries;
  const bool has_both = std::any_of(plot.runs.begin(), plot.runs.end(),
                                    [](const LossSeries& run) { return !run.validation.empty(); });
  for (std::size_t r = 0; r < plot.runs.size(); ++r) {
    const LossSeries& run = plot.runs[r];
    const char* color = kColors[r % kColors.size()];
    if (!run.train.empty()) entries.push_back({run.name + (has_both ? " train" : ""), color, ""});
    if (!run.validation.empty()) entries.push_back({run.name + " validation", color, kDashes});
  }
  return entries;
}

/// Dashed lines between the step before a change and the first one after it.
std::string marks_svg(const Frame& f, const std::vector<PlotMark>& marks) {
  std::string svg;
  for (const PlotMark& mark : marks) {
    const double step = mark.step - 0.5;
    if (step < f.box.x_low || step > f.box.x_high) continue;
    svg += fmt::format(
        "<line class=\"mark\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#a83244\" "
        "stroke-width=\"1.4\" stroke-dasharray=\"2 3\"><title>step {3:g}: {4}</title></line>\n",
        f.x(step), f.top, f.bottom, mark.step, escape_markup(mark.text));
  }
  return svg;
}

struct LegendBox {
  double left, top, width, height;
  bool covers(double x, double y) const {
    return x >= left && x <= left + width && y >= top && y <= top + height;
  }
};

LegendBox legend_size(const std::vector<LegendEntry>& entries) {
  std::size_t longest = 0;
  for (const LegendEntry& entry : entries) longest = std::max(longest, display_width(entry.text));
  return {0, 0, 44 + 7.0 * static_cast<double>(longest),
          kLegendRow * static_cast<double>(entries.size()) + 6};
}

/// Of a line through the points, looked at every few pixels.
bool covers_line(const LegendBox& box, const Frame& f, const std::vector<LossPoint>& points) {
  constexpr double kPixels = 4;
  const auto is_finite = [](const LossPoint& p) { return std::isfinite(p.loss) && std::isfinite(p.step); };
  for (std::size_t i = 0; i < points.size(); ++i) {
    const LossPoint &a = points[i], &b = points[i + 1 < points.size() ? i + 1 : i];
    if (!is_finite(a)) continue;
    const double x = f.x(a.step), y = f.y(a.loss);
    const double wide = is_finite(b) ? f.x(b.step) - x : 0, high = is_finite(b) ? f.y(b.loss) - y : 0;
    const int pieces = 1 + static_cast<int>(std::hypot(wide, high) / kPixels);
    for (int piece = 0; piece < pieces; ++piece) {
      if (box.covers(x + wide * piece / pieces, y + high * piece / pieces)) return true;
    }
  }
  return false;
}

/// A corner where the legend covers no line; the top right, where falling curves leave room, before others.
/// None: every corner has one.
std::optional<LegendBox> free_corner(const Frame& f, const LossPlot& plot, const LegendBox& size) {
  for (const double left : {f.right - size.width, f.left + 8}) {
    for (const double top : {f.top, f.bottom - size.height - 4}) {
      const LegendBox box{left, top, size.width, size.height};
      const bool covers = std::any_of(plot.runs.begin(), plot.runs.end(), [&](const LossSeries& run) {
        return covers_line(box, f, run.train) || covers_line(box, f, run.validation);
      });
      if (!covers) return box;
    }
  }
  return std::nullopt;
}

std::string legend(const std::vector<LegendEntry>& entries, const LegendBox& box) {
  std::string svg = fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#fff\" "
      "fill-opacity=\"0.85\"/>\n",
      box.left, box.top, box.width, box.height);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const double y = box.top + kLegendRow * (static_cast<double>(i) + 0.5) + 3;
    svg += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
        "stroke-width=\"1.8\"{}/>\n",
        box.left + 4, y, box.left + 30, y, entries[i].color, entries[i].dashes);
    svg += text_at(box.left + 36, y + 4, "start", entries[i].text);
  }
  return svg;
}

}  // namespace

std::vector<double> nice_ticks(double low, double high, int num_wanted) {
  const double raw = (high - low) / std::max(1, num_wanted);
  if (!(raw > 0) || !std::isfinite(raw)) return {low};
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double digit = raw / power;
  const double step = power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
  std::vector<double> ticks;
  const double slack = 1e-9;
  for (double k = std::ceil(low / step - slack); k <= high / step + slack; ++k)
    ticks.push_back(k * step + 0.0);
  return ticks;
}

std::string loss_svg(const LossPlot& plot) {
  Frame frame{bounds_of(plot), kLeft, plot.width - kRight, kTop, plot.height - kBottom};
  const std::vector<LegendEntry> entries = legend_entries(plot);
  const LegendBox size = legend_size(entries);
  std::optional<LegendBox> box = free_corner(frame, plot, size);
  if (!box) {  // beside the curves
    frame.right -= size.width + 8;
    box = {frame.right + 8, frame.top, size.width, size.height};
  }
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#333\" role=\"img\" "
      "aria-label=\"{2}\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      plot.width, plot.height, escape_markup(plot.title));
  svg += text_at(frame.left, 24, "start", plot.title, " font-size=\"15\" font-weight=\"600\"");
  svg += axes(frame, plot) + marks_svg(frame, plot.marks);
  for (std::size_t r = 0; r < plot.runs.size(); ++r)
    svg += run_svg(frame, plot.runs[r], kColors[r % kColors.size()]);
  if (entries.empty()) {
    svg += text_at((frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2, "middle",
                   "no losses recorded");
  } else {
    svg += legend(entries, *box);
  }
  return svg + "</svg>\n";
}

}  // namespace hetermoe
