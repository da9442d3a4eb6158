#pragma once
#include <optional>
#include <vector>

#include "hetermoe/model/model_config.h"

// How evenly the routers of a step spread its tokens, layer by layer, and whether one of them collapses.
namespace hetermoe {

/// Figures of the copies that the router of one layer chose in a step.
struct LayerLoad {
  i64 layer = 0;
  double max_over_mean = 0;  ///< of the experts' copies
  double cv = 0;             ///< their standard deviation over their mean
  i64 dead = 0;              ///< experts without a copy
  double dropped = 0;        ///< share of the copies for which experts had no room
};

/// copies, dropped: [num_layers][experts] and [num_layers]; layers without experts are left out.
std::vector<LayerLoad> layer_loads(const ModelConfig& model, const std::vector<std::vector<double>>& copies,
                                   const std::vector<double>& dropped);

/// As many experts as would be in use if those in use had equal loads: (sum c)^2 / sum c^2. From top_k, where
/// all tokens choose alike, to the number of experts.
double effective_experts(const std::vector<double>& copies);

struct Collapse {
  i64 layer = 0;
  double effective = 0;  ///< of the last step
};

/// Names layers whose router sends nearly all tokens to the same few experts, step after step.
class CollapseWatch {
 public:
  static constexpr i64 kSteps = 10;  ///< so many steps in a row
  /// Share of the way from all tokens alike to an even load. A layer below it collapses.
  static constexpr double kShare = 0.25;
  static constexpr double kFewestCopies =
      4;  ///< per expert in the mean: of fewer, chance leaves many without

  explicit CollapseWatch(const ModelConfig& model) : top_k_(model.top_k), num_experts_(model.num_experts) {}
  /// copies: [num_layers][experts]. Returns what is found by this step; a layer is told once for as long as
  /// it lasts.
  std::vector<Collapse> add(const std::vector<std::vector<double>>& copies);

 private:
  i64 top_k_, num_experts_;
  std::vector<i64> steps_;  // [layer] in a row
};

}  // namespace hetermoe
