#pragma once
#include <memory>
#include <string>
#include <utility>

#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

// A small step on three devices to break.
namespace hetermoe::testing {

struct Scene {
  ModelConfig model = tiny_mixtral();
  Cluster cluster = make_cluster(3);
  Plan plan;
  StepOptions step = {true, 1, true};
};

/// With zebra every kind of op: experts on attention devices, moves, reduces, balance.
inline Scene scene_of(const std::string& strategy) {
  Scene s;
  StrategyRequest request;
  request.seq_len = 2;
  request.sequences = 4;
  request.microbatches = 2;
  if (strategy == "zebra") request.experts_moved = {1, 0};
  s.plan = find_strategy(strategy).make(s.model, s.cluster, request);
  // The head elsewhere: moves, too.
  if (strategy == "zebra") s.plan.groups[0].head = make_share_rows({1, 2}, s.plan.groups[0].microbatches, {});
  use_fp64(s.plan);
  return s;
}

inline std::unique_ptr<Rig> make_rig(const Scene& s, RigOptions options) {
  options.step = s.step;
  auto rig = std::make_unique<Rig>(s.model, s.cluster, s.plan, options);
  rig->load(lively_values(s.model));
  return rig;
}

}  // namespace hetermoe::testing
