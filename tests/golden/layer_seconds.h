#pragma once
#include "hetermoe/planner/strategies/round_robin_plan.h"
#include "tests/golden/constant_cost.h"
#include "tests/schedule/plans.h"

namespace hetermoe {

/// Seconds of the layers of dense models.
struct LayerSeconds : CostModel {
  TurnTimes times;

  Seconds compute(const ComputeWork& work) const override {
    LayerTimes of{times.forward, times.backward};
    if (!times.of_devices.empty()) of = times.of_devices[static_cast<std::size_t>(work.device)];
    if (work.op.kind == OpKind::kHead) return of.backward.back();
    if (work.op.kind != OpKind::kAttention) return 0;
    const auto l = static_cast<std::size_t>(work.op.layer);
    return work.op.phase == Phase::kForward ? of.forward[l] : of.backward[l];
  }
  TransferCost transfer(const TransferWork&) const override { return {0, {}}; }
};

/// Of layers that are placed alike each has seconds of its own.
struct EachLayer : ExpectedRouting {
  using ExpectedRouting::ExpectedRouting;
  bool is_uniform() const override { return false; }
};

}  // namespace hetermoe
