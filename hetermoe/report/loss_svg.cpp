#include "hetermoe/report/loss_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>

#include "hetermoe/report/escape.h"
#include "hetermoe/report/table.h"

namespace hetermoe {
namespace {

// Okabe and Ito's palette without its yellow, which is too light for lines on white.
constexpr std::array<const char*, 6> kColors = {"#0072B2", "#D55E00", "#009E73",
                                                "#CC79A7", "#56B4E9", "#E69F00"};
constexpr double kLeft = 88, kRight = 20, kTop = 44, kBottom = 52, kLegendRow = 20;

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

/// Ten digits, so that a step of a million is written out.
std::string tick_text(double tick) { return fmt::format("{:.10g}", tick); }

std::string x_axis(const Frame& f) {
  std::string svg = "<g class=\"x-axis\">";
  for (const double tick : nice_ticks(f.box.x_low, f.box.x_high, 8)) {
    if (tick != std::round(tick)) continue;  // steps, layers and numbers of ranks are whole
    svg +=
        fmt::format("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#777\"/>\n",
                    f.x(tick), f.bottom, f.bottom + 5);
    svg += text_at(f.x(tick), f.bottom + 19, "middle", tick_text(tick));
  }
  return svg + "</g>\n";
}

std::string y_axis(const Frame& f) {
  std::string svg = "<g class=\"y-axis\">";
  for (const double tick : nice_ticks(f.box.y_low, f.box.y_high, 6)) {
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n",
                       f.left, f.y(tick), f.right, f.y(tick));
    svg += text_at(f.left - 8, f.y(tick) + 4, "end", tick_text(tick));
  }
  return svg + "</g>\n";
}

std::string axes(const Frame& f, const LossPlot& plot) {
  std::string svg = x_axis(f) + y_axis(f);
  svg += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\" fill=\"none\" stroke=\"#777\"/>\n", f.left,
                     f.top, f.bottom, f.right);
  svg += text_at((f.left + f.right) / 2, f.bottom + 40, "middle", plot.x_label);
  const double middle = (f.top + f.bottom) / 2;
  svg += text_at(16, middle, "middle", plot.y_label,
                 fmt::format(" transform=\"rotate(-90 16 {:.1f})\"", middle).c_str());
  return svg;
}

bool is_finite(const LossPoint& p) { return std::isfinite(p.loss) && std::isfinite(p.step); }

/// A path through the finite points, in steps and losses; a point that is not finite lifts the pen.
std::string path_data(const std::vector<LossPoint>& points) {
  std::string d;
  bool is_down = false;
  for (const LossPoint& p : points) {
    if (is_finite(p)) d += fmt::format("{}{:.10g} {:.6g}", is_down ? "L" : "M", p.step, p.loss);
    is_down = is_finite(p);
  }
  return d;
}

/// A line in data's coordinates, as wide on the screen at any zoom. name: of the line that is pointed at;
/// none = it stands for another.
std::string line_svg(const std::string& d, const char* color, const std::string& style,
                     const std::string& name) {
  if (d.empty()) return "";
  const std::string named = name.empty() ? "" : fmt::format(" data-name=\"{}\"", escape_markup(name));
  return fmt::format(
      "<path d=\"{}\" fill=\"none\" stroke=\"{}\" vector-effect=\"non-scaling-stroke\" "
      "stroke-linejoin=\"round\"{}{}/>\n",
      d, color, style, named);
}

/// Lines of no length with round ends.
std::string dots(const std::vector<LossPoint>& points, const char* color) {
  std::string d;
  for (const LossPoint& p : points) {
    if (is_finite(p)) d += fmt::format("M{:.10g} {:.6g}h0", p.step, p.loss);
  }
  return line_svg(d, color, " class=\"dots\" stroke-width=\"6\" stroke-linecap=\"round\"", "");
}

constexpr const char* kDashes = " stroke-dasharray=\"6 4\"";

/// Lines with more points get a smooth one above them.
constexpr std::size_t kSmoothFrom = 100, kSmoothPoints = 200;

/// Means over a fiftieth of the points around each of some of them.
std::vector<LossPoint> smoothed(const std::vector<LossPoint>& points) {
  std::vector<LossPoint> finite;
  std::copy_if(points.begin(), points.end(), std::back_inserter(finite), is_finite);
  if (finite.size() < kSmoothFrom) return {};
  const std::size_t half = std::max<std::size_t>(2, finite.size() / 100);
  std::vector<LossPoint> out;
  for (std::size_t i = 0; i < kSmoothPoints; ++i) {
    const std::size_t at = i * (finite.size() - 1) / (kSmoothPoints - 1);
    const std::size_t reach = std::min({half, at, finite.size() - 1 - at});  // as far to both sides
    double sum = 0;
    for (std::size_t j = at - reach; j <= at + reach; ++j) sum += finite[j].loss;
    if (out.empty() || out.back().step < finite[at].step)
      out.push_back({finite[at].step, sum / static_cast<double>(2 * reach + 1)});
  }
  return out;
}

/// Colours of a run: of its training and, apart from it, of its validation.
struct RunColors {
  const char *train, *validation;
};
RunColors colors_of(std::size_t run) {
  return {kColors[run % kColors.size()], kColors[(run + 3) % kColors.size()]};
}

std::string run_svg(const LossSeries& run, const RunColors& colors, bool has_both) {
  const std::vector<LossPoint> smooth = smoothed(run.train);
  const char* wide = " stroke-width=\"1.8\"";
  std::string svg =
      line_svg(path_data(run.train), colors.train,
               smooth.empty() ? wide : " class=\"raw\" stroke-width=\"1.2\" stroke-opacity=\"0.35\"",
               run.name + (has_both ? " train" : ""));
  svg += line_svg(path_data(smooth), colors.train, " class=\"smooth\" stroke-width=\"2\"", "");
  if (run.train.size() == 1) svg += dots(run.train, colors.train);
  if (run.validation.empty()) return svg;
  svg += line_svg(path_data(run.validation), colors.validation, wide + std::string(kDashes),
                  run.name + " validation");
  return svg + dots(run.validation, colors.validation);
}

bool has_validation(const LossPlot& plot) {
  return std::any_of(plot.runs.begin(), plot.runs.end(),
                     [](const LossSeries& run) { return !run.validation.empty(); });
}

struct LegendEntry {
  std::string text;
  const char* color;
  const char* dashes;
};

std::vector<LegendEntry> legend_entries(const LossPlot& plot) {
  std::vector<LegendEntry> entries;
  const bool has_both = has_validation(plot);
  for (std::size_t r = 0; r < plot.runs.size(); ++r) {
    const LossSeries& run = plot.runs[r];
    if (!run.train.empty())
      entries.push_back({run.name + (has_both ? " train" : ""), colors_of(r).train, ""});
    if (!run.validation.empty())
      entries.push_back({run.name + " validation", colors_of(r).validation, kDashes});
  }
  return entries;
}

/// Dashed lines between the step before a change and the first one after it.
std::string marks_svg(const Box& box, const std::vector<PlotMark>& marks) {
  std::string svg;
  for (const PlotMark& mark : marks) {
    const double step = mark.step - 0.5;
    if (step < box.x_low || step > box.x_high) continue;
    // As high as any zoom shows.
    const double low = box.y_low - 100 * (box.y_high - box.y_low),
                 high = box.y_high + 100 * (box.y_high - box.y_low);
    svg += fmt::format(
        "<line class=\"mark\" x1=\"{0:.10g}\" y1=\"{1:.6g}\" x2=\"{0:.10g}\" y2=\"{2:.6g}\" "
        "stroke=\"#a83244\" "
        "vector-effect=\"non-scaling-stroke\" stroke-width=\"1.4\" stroke-dasharray=\"2 3\"><title>step "
        "{3:g}: "
        "{4}</title></line>\n",
        step, low, high, mark.step, escape_markup(mark.text));
  }
  return svg;
}

/// The lines in their frame, beyond which nothing is drawn: y goes up, in data's coordinates.
std::string data_svg(const Frame& f, const LossPlot& plot) {
  const double sx = (f.right - f.left) / (f.box.x_high - f.box.x_low),
               sy = (f.bottom - f.top) / (f.box.y_high - f.box.y_low);
  std::string svg = fmt::format(
      "<svg x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"><g class=\"data\" "
      "transform=\"matrix({:.10g} 0 0 {:.10g} {:.10g} {:.10g})\">\n",
      f.left, f.top, f.right - f.left, f.bottom - f.top, sx, -sy, -f.box.x_low * sx, f.box.y_high * sy);
  svg += marks_svg(f.box, plot.marks);
  for (std::size_t r = 0; r < plot.runs.size(); ++r)
    svg += run_svg(plot.runs[r], colors_of(r), has_validation(plot));
  return svg + "</g></svg>\n";
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
  // data-frame and data-box are for page_plots.js: the frame in pixels, what it shows in steps and losses.
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#333\" role=\"img\" "
      "aria-label=\"{2}\" data-x=\"{3}\" data-frame=\"{4:.1f} {5:.1f} {6:.1f} {7:.1f}\" "
      "data-box=\"{8:.10g} {9:.10g} {10:.10g} {11:.10g}\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      plot.width, plot.height, escape_markup(plot.title), escape_markup(plot.x_label), frame.left,
      frame.right, frame.top, frame.bottom, frame.box.x_low, frame.box.x_high, frame.box.y_low,
      frame.box.y_high);
  svg += text_at(frame.left, 24, "start", plot.title, " font-size=\"15\" font-weight=\"600\"");
  svg += axes(frame, plot) + data_svg(frame, plot);
  if (entries.empty()) {
    svg += text_at((frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2, "middle",
                   "no losses recorded");
  } else {
    svg += legend(entries, *box);
  }
  return svg + "</svg>\n";
}

}  // namespace hetermoe
