#pragma once
#include <optional>

#include "hetermoe/planner/search/evaluator.h"

// The tensors of a layer that backward needs are kept on the device, computed again, or kept on the host and
// fetched back.
namespace hetermoe {

/// How a layer's activations are kept, on the device.
struct KeptLayer {
  std::optional<Recompute> recompute;  ///< nothing = as it is
};

/// The plan with as many of its last layers kept so as have room, those first that are needed first. Nothing
/// = no layer that is kept otherwise has room.
std::optional<Plan> with_last_layers(const Evaluator& evaluator, const Plan& plan, const KeptLayer& kept);

/// Varies the fastest plans so far, which treat all layers alike. The memory that they leave is used for
/// layers that recompute less or keep their activations on the device. Pipelines choose by stage
/// (planner/stage_cost).
void evaluate_residences(Evaluator& evaluator);

}  // namespace hetermoe
