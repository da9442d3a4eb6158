#pragma once
#include <vector>

#include "hetermoe/ops/op_row.h"
#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// In which a step computes experts and sends their rows.
inline std::vector<Phase> expert_phases(const Plan& plan) {
  std::vector<Phase> phases = {Phase::kForward, Phase::kBackward};
  if (plan.recompute == Recompute::kResend) phases.push_back(Phase::kRecompute);
  return phases;
}

}  // namespace hetermoe
