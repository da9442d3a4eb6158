#pragma once
#include <string>
#include <vector>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// How many copies each expert of each layer computed.
struct ExpertLoad {
  std::string title;
  std::vector<i64> layers;                  ///< their numbers
  std::vector<std::vector<double>> copies;  ///< [layers][experts], each layer with as many experts
  /// [layers][experts] the expert that this one is an instance of: twins stand side by side. Empty = no
  /// growth.
  std::vector<std::vector<i64>> families = {};
  std::vector<std::string> columns = {};               ///< names of figures that stand beside the rows
  std::vector<std::vector<std::string>> figures = {};  ///< [layers][columns]
};

inline constexpr std::size_t kMostTooltips = 4096;  ///< of cells of a picture; more make the page slow

/// White at 0, dark blue at 1.
std::string heat_colour(double part);

/// Standalone SVG: a row for each layer, a column for each expert, the darker the more copies over the
/// layer's mean, with a scale. A layer without copies is left blank. A line parts families of twins.
std::string heat_map_svg(const ExpertLoad& load);

}  // namespace hetermoe
