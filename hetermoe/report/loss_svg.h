#pragma once
#include <string>
#include <vector>

#include "hetermoe/base/types.h"

namespace hetermoe {

struct LossPoint {
  double step = 0;
  double loss = 0;  ///< not finite = a gap in the line
};

/// One run: its train loss is a solid line, its validation loss a dashed one with dots in another colour.
/// With many points the line is pale, and a solid line above it shows means over a fiftieth of the points.
struct LossSeries {
  std::string name;
  std::vector<LossPoint> train, validation;
};

/// A line across the plot, before a step from which on something is different.
struct PlotMark {
  double step = 0;
  std::string text;  ///< shown when it is pointed at
};

struct LossPlot {
  std::string title;
  std::string x_label = "step", y_label = "loss";
  std::vector<LossSeries> runs;
  int width = 900, height = 420;  ///< pixels
  std::vector<PlotMark> marks = {};
  std::string note = {};  ///< what is to be said below it; loss_svg() leaves it out
};

/// Standalone SVG with axes, ticks and a legend, white background. x counts something: its ticks are whole.
/// In a page with page_plots.js lines can be pointed at and zoomed.
std::string loss_svg(const LossPlot& plot);

/// About `num_wanted` round numbers (1, 2 or 5 times a power of ten) from low to high, both inside. Needs low
/// <= high.
std::vector<double> nice_ticks(double low, double high, int num_wanted);

}  // namespace hetermoe
