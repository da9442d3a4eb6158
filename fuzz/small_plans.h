#pragma once
#include <string>
#include <vector>

#include "hetermoe/planner/strategies/strategies.h"
#include "tests/support/fast_nodes.h"

namespace hetermoe::fuzz {

/// The model `tiny` and the cluster `demo`, under which plans and orders are read. Sums go in two levels.
inline const ModelConfig& tiny_model() {
  static const ModelConfig model = load_model("tiny");
  return model;
}
inline const Cluster& demo_cluster() {
  static const Cluster cluster = testing::with_fast_nodes("demo");
  return cluster;
}

/// Four sequences of eight tokens in two microbatches.
inline Plan small_plan(const std::string& strategy) {
  StrategyRequest request;
  request.seq_len = 8;
  request.sequences = 4;
  request.microbatches = 2;
  return find_strategy(strategy).make(tiny_model(), demo_cluster(), request);
}

inline std::vector<std::string> strategy_names() {
  return {"single", "ep", "ep-overlap", "dist-ep", "zebra"};
}

}  // namespace hetermoe::fuzz
