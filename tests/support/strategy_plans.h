#pragma once
#include <string>
#include <vector>

#include "hetermoe/planner/strategies/strategies.h"
#include "tests/support/random_plan.h"

// One plan of every way to fill a Plan, for a model and a number of devices. No torch.
namespace hetermoe::testing {

struct NamedPlan {
  std::string name;
  Plan plan;
};

/// Small enough for every strategy on the tiny model to run in a moment.
inline StrategyRequest small_step() {
  StrategyRequest request;
  request.seq_len = 8;
  request.sequences = 4;
  request.microbatches = 2;
  return request;
}

/// On every device and on the wire.
inline void use_dtype(Plan& plan, Dtype dtype) {
  plan.dtype.assign(plan.dtype.size(), dtype);
  plan.wire_forward = plan.wire_backward = wire_of(dtype);
  plan.grad_dtype.reset();
}
inline void use_fp64(Plan& plan) { use_dtype(plan, Dtype::kFp64); }

/// Devices first..last-1.
inline std::vector<DeviceId> device_range(DeviceId first, DeviceId last) {
  std::vector<DeviceId> devices;
  for (DeviceId d = first; d < last; ++d) devices.push_back(d);
  return devices;
}

/// Experts in turn over `owners`.
inline LayerOwners in_turn(const ModelConfig& model, const std::vector<DeviceId>& owners) {
  LayerOwners all;
  for (i64 e = 0; e < model.num_experts; ++e)
    all.push_back({{owners[static_cast<std::size_t>(e) % owners.size()], 1}});
  return all;
}

/// Layers over as many stages as there are devices (at most); each stage's experts live with its attention.
inline Plan make_pipeline(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  Plan plan = find_strategy("ep").make(model, cluster, request);
  plan.strategy = "pipeline";
  plan.order = OrderPolicy::kOneFOneB;
  Group& group = plan.groups[0];
  const i32 num_devices = cluster.num_devices();
  const i32 num_stages = std::min(num_devices, static_cast<i32>(model.num_layers));
  for (i32 l = 0; l < static_cast<i32>(model.num_layers); ++l) {
    const i32 stage = l * num_stages / static_cast<i32>(model.num_layers);
    const std::vector<DeviceId> devices =
        device_range(stage * num_devices / num_stages, (stage + 1) * num_devices / num_stages);
    LayerPlacement& layer = group.layers[static_cast<std::size_t>(l)];
    layer.attention = make_share_rows(devices, group.microbatches, {});
    if (model.is_moe(l)) layer.experts = in_turn(model, devices);
  }
  group.embed = group.layers.front().attention;
  group.head = group.layers.back().attention;
  return plan;
}

/// Attention and experts trade devices from layer to layer; embedding and head are elsewhere again.
inline Plan make_alternating(const ModelConfig& model, const Cluster& cluster,
                             const StrategyRequest& request) {
  Plan plan = find_strategy("zebra").make(model, cluster, request);
  plan.strategy = "alternating";
  Group& group = plan.groups[0];
  const i32 n = cluster.num_devices(), half = (n + 1) / 2;
  for (i32 l = 0; l < static_cast<i32>(model.num_layers); ++l) {
    const std::vector<DeviceId> a = device_range(0, half), b = device_range(half, n);
    LayerPlacement& layer = group.layers[static_cast<std::size_t>(l)];
    layer.attention = make_share_rows(l % 2 == 0 ? a : b, group.microbatches, {});
    if (model.is_moe(l)) layer.experts = in_turn(model, l % 2 == 0 ? b : a);
  }
  group.embed = make_share_rows({n - 1}, group.microbatches, {});
  group.head = make_share_rows({0}, group.microbatches, {});
  return plan;
}

/// Two groups of different shapes: a small one that does everything on one device, and zebra on the others.
inline Plan make_two_groups(const ModelConfig& model, const Cluster& cluster, StrategyRequest request) {
  const i32 n = cluster.num_devices();
  request.attention = {0};
  Plan plan = find_strategy("single").make(model, cluster, request);
  request.attention = n == 2 ? std::vector<DeviceId>{1} : device_range(1, 1 + (n - 1) / 2);
  request.experts = device_range(n == 2 ? 1 : 1 + (n - 1) / 2, n);
  request.sequences = 2 * request.sequences;
  const Plan other = find_strategy("zebra").make(model, cluster, request);
  plan.strategy = "groups";
  plan.window = 0;
  plan.groups.push_back(other.groups[0]);
  return plan;
}

/// Every expert on two or three devices with unequal token shares.
inline Plan make_replicas(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  Plan plan = find_strategy("ep").make(model, cluster, request);
  plan.strategy = "replicas";
  const i32 n = cluster.num_devices();
  for (LayerPlacement& layer : plan.groups[0].layers) {
    for (std::size_t e = 0; e < layer.experts.size(); ++e) {
      const auto d = static_cast<DeviceId>(e) % n;
      layer.experts[e] = {{(d + 1) % n, 0.3}, {d, 0.7}};
      if (n > 2 && e % 2 == 0) layer.experts[e] = {{(d + 2) % n, 0.25}, {(d + 1) % n, 0.5}, {d, 0.25}};
    }
  }
  return plan;
}

/// Every strategy in fp64; those that need two devices are left out on one.
inline std::vector<NamedPlan> strategy_plans(const ModelConfig& model, const Cluster& cluster,
                                             StrategyRequest request) {
  std::vector<NamedPlan> all;
  const auto add = [&](const std::string& name, Plan plan) {
    use_fp64(plan);
    all.push_back({name, std::move(plan)});
  };
  const auto make = [&](const std::string& strategy, const StrategyRequest& r) {
    return find_strategy(strategy).make(model, cluster, r);
  };
  add("single", make("single", request));
  if (cluster.num_devices() == 1) return all;
  for (const char* name : {"ep", "ep-overlap", "dist-ep", "zebra"}) add(name, make(name, request));
  StrategyRequest uneven = request;
  uneven.attention = default_roles(cluster).attention;
  for (std::size_t i = 0; i < uneven.attention.size(); ++i)
    uneven.attention_weights.push_back(i == 0 ? 1 : i == 1 ? 1e-9 : 2.5);  // the second gets no sequence
  add("zebra_uneven", make("zebra", uneven));
  StrategyRequest moved = request;
  moved.experts_moved.assign(static_cast<std::size_t>(model.num_layers), 1);
  add("zebra_moved", make("zebra", moved));
  add("af-pipe", make("af-pipe", request));
  StrategyRequest to_next = request;
  to_next.combine_to = CombineTo::kNext;
  add("af-pipe-next", make("af-pipe", to_next));
  StrategyRequest team = request;
  team.team = {cluster.num_devices()};
  for (i32 d = 0; d < cluster.num_devices(); ++d) {
    team.attention_weights.push_back(1 + d % 3);
    team.head_weights.push_back(d == 1 ? 0 : 1);  // the second has no heads
  }
  add("sp-ep", make("sp-ep", team));
  add("pipeline", make_pipeline(model, cluster, request));
  add("alternating", make_alternating(model, cluster, request));
  add("groups", make_two_groups(model, cluster, request));
  add("replicas", make_replicas(model, cluster, request));
  return all;
}

}  // namespace hetermoe::testing
