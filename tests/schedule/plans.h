#pragma once
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/schedule/schedule.h"

// Small models, clusters and plans for tests of schedules and simulations.
namespace hetermoe::test {

struct ModelShape {
  i64 num_layers = 2, num_experts = 4, top_k = 2, hidden = 8;
  std::vector<i64> dense = {};  ///< layers without experts
};

inline ModelConfig make_model(const ModelShape& shape) {
  ModelConfig model;
  model.name = "model";
  model.model_type = "mixtral";
  model.vocab = 32;
  model.hidden = shape.hidden;
  model.num_layers = shape.num_layers;
  model.num_heads = model.num_kv_heads = 2;
  model.head_dim = shape.hidden / 2;
  model.num_experts = shape.num_experts;
  model.top_k = shape.top_k;
  model.expert_hidden = 2 * shape.hidden;
  model.dense_hidden = 4 * shape.hidden;
  model.dense_layer.assign(static_cast<std::size_t>(shape.num_layers), false);
  for (const i64 layer : shape.dense) model.dense_layer[static_cast<std::size_t>(layer)] = true;
  return model;
}

/// Nodes of the given sizes; device d has type d mod num_types.
inline Cluster make_cluster(const std::vector<i32>& node_sizes, i32 num_types = 1) {
  Cluster cluster;
  cluster.name = "test";
  for (i32 t = 0; t < num_types; ++t) {
    DeviceType type;
    type.name = fmt::format("T{}", t);
    type.memory_gib = type.memory_gb_s = type.fp32_tflops = type.fp16_tflops = 1 + t;
    cluster.types.push_back(type);
  }
  for (std::size_t n = 0; n < node_sizes.size(); ++n) {
    cluster.nodes.push_back({fmt::format("node{}", n), 1e9, 1e-5, 1e10, 1e-6});
    for (i32 i = 0; i < node_sizes[n]; ++i) {
      cluster.devices.push_back({cluster.num_devices() % num_types, static_cast<NodeId>(n), 1});
    }
  }
  return cluster;
}

/// `attention` and `experts` devices on one node each, numbered in this order.
struct ZebraShape {
  i32 attention = 1, experts = 1;
  i64 microbatches = 2;
  std::vector<i64> experts_moved = {};
  std::string strategy = "zebra";
};

inline Plan make_zebra_plan(const ModelConfig& model, const Cluster& cluster, const ZebraShape& shape) {
  StrategyRequest request;
  request.seq_len = 16;
  request.microbatches = shape.microbatches;
  request.sequences = shape.microbatches * shape.attention;
  request.experts_moved = shape.experts_moved;
  for (i32 d = 0; d < shape.attention; ++d) request.attention.push_back(d);
  for (i32 d = 0; d < shape.experts; ++d) request.experts.push_back(shape.attention + d);
  return find_strategy(shape.strategy).make(model, cluster, request);
}

/// The op with this text on this device (-1 = any); -1 when there is none.
inline OpId find_op(const Schedule& schedule, const std::string& text, DeviceId device = -1) {
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    if (to_string(schedule.ops[static_cast<std::size_t>(op)]) != text) continue;
    for (const LaneId lane : schedule.lanes_of(op)) {
      if (device < 0 || device_of(lane) == device) return op;
    }
  }
  return -1;
}

inline ::testing::AssertionResult no_faults(const std::vector<std::string>& faults) {
  if (faults.empty()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << fmt::format("{}", fmt::join(faults, "\n"));
}
inline ::testing::AssertionResult has_text(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "no \"" << part << "\" in\n" << text;
}
inline ::testing::AssertionResult has_fault(const std::vector<std::string>& faults, const std::string& part) {
  return has_text(fmt::format("{}", fmt::join(faults, "\n")), part);
}

}  // namespace hetermoe::test
