#pragma once
#include "hetermoe/ops/access_list.h"

// Functions that the compute ops of a layer (attention parts and experts) share.
namespace hetermoe {

/// Gradients of weights are products of what backward left.
template <UnitPart kPart>
std::optional<UsedPart> uses_in_layer(const Op& op, const Placement&) {
  return op.phase == Phase::kWeights ? std::nullopt : std::optional(UsedPart{kPart, op.layer});
}

template <UnitPart kPart>
std::optional<UsedPart> grades_in_layer(const Op& op, const Placement& placement) {
  const bool after = placement.leaves_weights(kPart, op.layer);
  return op.phase == (after ? Phase::kWeights : Phase::kBackward) ? std::optional(UsedPart{kPart, op.layer})
                                                                  : std::nullopt;
}

template <UnitPart kPart>
bool has_work_in_layer(const Op& op, const Placement& placement) {
  return op.phase != Phase::kWeights || placement.leaves_weights(kPart, op.layer);
}

}  // namespace hetermoe
