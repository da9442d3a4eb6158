#include "hetermoe/report/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "hetermoe/report/escape.h"

namespace hetermoe {
namespace {

constexpr int kMapLeft = 64, kMapTop = 40, kMapRight = 110, kMapBottom = 40, kMapWidth = 900, kMapColumn = 62;
/// [layers][experts] copies over the layer's mean.
std::vector<std::vector<double>> over_mean(const ExpertLoad& load) {
  std::vector<std::vector<double>> out = load.copies;
  for (std::vector<double>& layer : out) {
    const double mean = std::accumulate(layer.begin(), layer.end(), 0.0) / static_cast<double>(layer.size());
    for (double& copies : layer) copies = mean > 0 ? copies / mean : 0;
  }
  return out;
}

/// Experts in the order in which they stand: families one after another.
std::vector<std::size_t> order_of(const ExpertLoad& load, std::size_t layer) {
  std::vector<std::size_t> order(load.copies[layer].size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (load.families.empty()) return order;
  const std::vector<i64>& family = load.families[layer];
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return family.at(a) < family.at(b); });
  return order;
}

/// Where a row of cells is and how large.
struct Row {
  int y, height;
  double wide;  ///< of a cell
};

/// A layer's cells, `ratio` over its mean, the darkest `most`.
std::string row_svg(const ExpertLoad& load, std::size_t layer, const std::vector<double>& ratio, double most,
                    const Row& row) {
  const bool tells = load.copies.size() * ratio.size() <= kMostTooltips;
  std::string svg, borders;
  double x = kMapLeft;
  i64 family = -1;
  for (const std::size_t e : order_of(load, layer)) {
    svg +=
        fmt::format("<rect class=\"cell\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"",
                    x, row.y, row.wide, row.height, heat_colour(ratio[e] / most));
    std::string of_family;
    if (!load.families.empty()) {
      const i64 before = std::exchange(family, load.families[layer][e]);
      if (before >= 0 && before != family) borders += fmt::format("M{:.2f} {}v{}", x, row.y, row.height);
      of_family = fmt::format(", made of {}", family);
    }
    svg += tells ? fmt::format(
                       "><title>layer {} expert {}{}: {:.0f} copies, {:.2f} of the mean</title></rect>\n",
                       load.layers[layer], e, of_family, load.copies[layer][e], ratio[e])
                 : "/>\n";
    x += row.wide;
  }
  if (!borders.empty()) svg += fmt::format("<path class=\"family\" d=\"{}\" stroke=\"#c33\"/>\n", borders);
  return svg;
}

/// The figures of each layer, to the right of the scale.
std::string figures_svg(const ExpertLoad& load, int cell) {
  std::string svg;
  const auto write = [&](std::size_t column, int y, const std::string& text) {
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\"{}>{}</text>\n",
                       kMapWidth + kMapColumn * static_cast<int>(column + 1) - 8, y,
                       cell > 12 ? "" : " font-size=\"9\"", escape_markup(text));
  };
  for (std::size_t c = 0; c < load.columns.size(); ++c) {
    write(c, kMapTop - 6, load.columns[c]);
    for (std::size_t l = 0; l < load.figures.size(); ++l)
      write(c, kMapTop + cell * static_cast<int>(l) + cell / 2 + 4, load.figures[l].at(c));
  }
  return svg;
}

/// Up to which ratio cells get darker: a single busy expert must not make all others pale.
struct Scale {
  double darkest = 1, largest = 1;
};

Scale scale_of(const std::vector<std::vector<double>>& ratio) {
  std::vector<double> all;
  for (const std::vector<double>& layer : ratio) all.insert(all.end(), layer.begin(), layer.end());
  if (all.empty()) return {};
  std::sort(all.begin(), all.end());
  Scale scale;
  scale.largest = std::max(1.0, all.back());
  constexpr std::size_t kFew = 100;  // of fewer cells the largest is seen anyway
  scale.darkest =
      all.size() < kFew ? scale.largest : std::clamp(1.5 * all[all.size() * 95 / 100], 1.0, scale.largest);
  return scale;
}

std::string scale_svg(const Scale& scale, int height) {
  std::string svg;
  constexpr int kSteps = 20;
  const int x = kMapWidth - kMapRight + 24, rows = std::max(height, 60);
  for (int i = 0; i < kSteps; ++i) {
    svg += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"14\" height=\"{:.1f}\" fill=\"{}\"/>", x,
                       kMapTop + rows * i / double{kSteps}, rows / double{kSteps} + 0.5,
                       heat_colour(1 - (i + 0.5) / kSteps));
  }
  return svg + fmt::format(
                   "<text x=\"{0}\" y=\"{1}\">{2:.2f}{6}</text><text x=\"{0}\" y=\"{3}\">0</text>"
                   "<text x=\"{4}\" y=\"{5}\">over the mean{7}</text>\n",
                   x + 20, kMapTop + 10, scale.darkest, kMapTop + rows, x - 50, kMapTop + rows + 18,
                   scale.largest > scale.darkest ? " up" : "",
                   scale.largest > scale.darkest ? fmt::format(", largest {:.2f}", scale.largest) : "");
}

}  // namespace

std::string heat_colour(double part) {
  const double p = std::clamp(part, 0.0, 1.0);
  const auto mix = [&](int from, int to) { return static_cast<int>(std::lround(from + p * (to - from))); };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(255, 8), mix(255, 48), mix(255, 107));
}

std::string heat_map_svg(const ExpertLoad& load) {
  const std::vector<std::vector<double>> ratio = over_mean(load);
  const std::size_t num_layers = ratio.size(), num_experts = ratio.empty() ? 0 : ratio[0].size();
  const Scale scale = scale_of(ratio);
  const int cell = num_layers > 24 ? 10 : 22, rows = cell * static_cast<int>(num_layers);
  const double wide =
      double{kMapWidth - kMapLeft - kMapRight} / static_cast<double>(std::max<std::size_t>(num_experts, 1));
  const int height = kMapTop + std::max(rows, 60) + kMapBottom;
  const int width = kMapWidth + kMapColumn * static_cast<int>(load.columns.size());
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"11\" role=\"img\">\n<rect width=\"{0}\" height=\"{1}\" "
      "fill=\"white\"/>\n<text x=\"{2}\" y=\"20\" font-size=\"14\">{3}</text>\n",
      width, height, kMapLeft, escape_markup(load.title));
  for (std::size_t l = 0; l < num_layers; ++l) {
    const int y = kMapTop + cell * static_cast<int>(l);
    if (cell > 12 || l % 4 == 0)
      svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">layer {}</text>\n", kMapLeft - 6,
                         y + cell / 2 + 4, load.layers[l]);
    svg += row_svg(load, l, ratio[l], scale.darkest, {y, cell, wide});
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\">experts 0 to {}{}</text>\n", kMapLeft, kMapTop + rows + 18,
                     num_experts == 0 ? 0 : num_experts - 1,
                     load.families.empty() ? "" : ", those made of the same one side by side");
  return svg + scale_svg(scale, rows) + figures_svg(load, cell) + "</svg>\n";
}

}  // namespace hetermoe
