#include <gtest/gtest.h>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/schedule/builder.h"
#include "tests/golden/constant_cost.h"

// Worked examples of weights that visit a device: prefetch depth and waits follow from slots alone.
namespace hetermoe::test {
namespace {

/// Attention parts of layers take `forward` and `backward` seconds, their copies `fetch` and `store`; nothing
/// else takes time.
struct VisitCost : CostModel {
  Seconds forward = 0, backward = 0, fetch = 0, store = 0;

  Seconds compute(const ComputeWork& work) const override {
    if (work.op.kind != OpKind::kAttention) return 0;
    return work.op.phase == Phase::kBackward ? backward : forward;
  }
  TransferCost transfer(const TransferWork& work) const override {
    if (work.op.kind == OpKind::kFetch) return {fetch, {}};
    return {work.op.kind == OpKind::kStore ? store : 0, {}};
  }
};

Seconds step_seconds(i64 layers, i32 slots, bool backward, const VisitCost& cost, i32 num_devices = 1) {
  ModelConfig model = load_model("tiny");
  model.num_layers = layers;
  model.dense_layer.assign(static_cast<std::size_t>(layers), false);
  Cluster cluster = load_cluster("one");
  cluster.nodes[0].host = NodeHost{.memory_gib = 64};
  cluster.devices.resize(idx(num_devices), cluster.devices[0]);
  StrategyRequest request;
  request.seq_len = 8;
  request.sequences = num_devices;
  request.microbatches = 1;
  Plan plan = find_strategy(num_devices == 1 ? "single" : "ep").make(model, cluster, request);
  offload(plan, model, cluster, {"attention.weights"}, "test");
  plan.slots.attention = slots;
  StepOptions options;
  options.backward = backward;
  const Placement placement(plan, model, options);
  const Schedule schedule = build_schedule(placement);
  EXPECT_EQ(validate(schedule, plan, model, options), std::vector<std::string>{});
  return simulate(schedule, placement, model, cluster, cost, ExpectedRouting(model)).step;
}

TEST(OffloadGolden, ForwardOfSixLayers) {
  const auto seconds = [](Seconds forward, Seconds fetch, i32 slots) {
    VisitCost cost;
    cost.forward = forward;
    cost.fetch = fetch;
    return step_seconds(6, slots, false, cost);
  };
  EXPECT_DOUBLE_EQ(seconds(3, 1, 2), 19);
  EXPECT_DOUBLE_EQ(seconds(1, 3, 2), 19);
  EXPECT_DOUBLE_EQ(seconds(2, 2, 2), 14);
  EXPECT_DOUBLE_EQ(seconds(2, 2, 1), 24);
  EXPECT_DOUBLE_EQ(seconds(1, 3, 6), 19);
  EXPECT_DOUBLE_EQ(seconds(3, 3, 2), 21);
}

/// Devices of a node have links of their own: copies of one do not wait for those of another.
TEST(OffloadGolden, DevicesOfANodeCopyAtTheSameTime) {
  VisitCost cost;
  cost.forward = 2;
  cost.fetch = 2;
  for (const i32 devices : {1, 2, 8}) EXPECT_DOUBLE_EQ(step_seconds(6, 2, false, cost, devices), 14);
  // Where more devices than links are in a node, two of them take turns.
  EXPECT_DOUBLE_EQ(step_seconds(6, 2, false, cost, kHostLinks + 1), 26);
}

/// Layers 3 and 2 still lie in their slots when the backward pass begins.
TEST(OffloadGolden, StepOfFourLayers) {
  const auto seconds = [](Seconds fetch, Seconds store) {
    VisitCost cost;
    cost.forward = 2;
    cost.backward = 4;
    cost.fetch = fetch;
    cost.store = store;
    return step_seconds(4, 2, true, cost);
  };
  EXPECT_DOUBLE_EQ(seconds(1, 1), 27);
  EXPECT_DOUBLE_EQ(seconds(3, 3), 36);
  EXPECT_DOUBLE_EQ(seconds(5, 3), 47);
}

}  // namespace
}  // namespace hetermoe::test
