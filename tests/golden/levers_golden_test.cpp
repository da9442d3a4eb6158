#include <gtest/gtest.h>

#include "tests/golden/constant_cost.h"
#include "tests/schedule/plans.h"

// One layer of zebra on two devices, one microbatch: the attention device waits for the round trip, the
// expert device for the head and the gradient.
namespace hetermoe {
namespace {

/// Backward is as long as the ops that it stands for.
struct PartsCost : CostModel {
  PartsCost(const Plan& plan)
      : inside(plan.recompute == Recompute::kLocal), whole(plan.weight_gradients == WeightGradients::kWith) {}
  bool inside, whole;
  Seconds recompute = 2, inputs = 4, weights = 3, head = 1, transfer_time = 1;

  Seconds compute(const ComputeWork& work) const override {
    const ComputeKind kind = compute_kind(work.op.kind);
    if (kind == ComputeKind::kHead) return head;
    if (kind != ComputeKind::kAttention && kind != ComputeKind::kExperts) return 0;
    switch (work.op.phase) {
      case Phase::kForward:
      case Phase::kRecompute:
        return recompute;
      case Phase::kBackward:
        return (inside ? recompute : 0) + inputs + (whole ? weights : 0);
      case Phase::kWeights:
        return weights;
    }
    return 0;
  }
  TransferCost transfer(const TransferWork& work) const override {
    const bool exchange = work.op.kind == OpKind::kDispatch || work.op.kind == OpKind::kCombine;
    return {exchange ? transfer_time : 0, {}};
  }
};

class OneLayer : public testing::Test {
 protected:
  Seconds step(Recompute recompute, WeightGradients weights) {
    plan.recompute = recompute;
    plan.weight_gradients = weights;
    PartsCost cost(plan);
    cost.transfer_time = transfer_time, cost.head = head, cost.recompute = again;
    const test::SimulatedPlan run = test::simulate(plan, model, cluster, cost);
    return *std::max_element(run.times.end.begin(), run.times.end.end());
  }
  static constexpr auto kWith = WeightGradients::kWith, kAfter = WeightGradients::kAfter;

  ModelConfig model = test::make_model({.num_layers = 1});
  Cluster cluster = test::make_cluster({2});
  Plan plan = test::make_zebra_plan(model, cluster, {.microbatches = 1});
  Seconds transfer_time = 1, head = 1, again = 2;
};

TEST_F(OneLayer, WithoutLeversEverythingIsOneAfterAnother) {
  // A.F, dispatch, E.F, combine, head, combine, E.B, dispatch, A.B
  EXPECT_DOUBLE_EQ(step(Recompute::kLocal, kWith), 2 + 1 + 2 + 1 + 1 + 1 + 9 + 1 + 9);
}

TEST_F(OneLayer, AheadSavesRecomputationsThatFitIntoTheirWaits) {
  // The expert device waits 3 s for combine.F, head and combine.B, the attention device longer.
  EXPECT_DOUBLE_EQ(step(Recompute::kLocal, kWith) - step(Recompute::kAhead, kWith), 2 + 2);
}

TEST_F(OneLayer, AheadSavesTheWaitWhereRecomputationIsLonger) {
  again = 5;
  // Of the experts' 5 s the wait hides 3; attention's fit into the round trip: combine 1, rest of R 2, B 7,
  // dispatch 1.
  EXPECT_DOUBLE_EQ(step(Recompute::kLocal, kWith) - step(Recompute::kAhead, kWith), 3 + 5);
  transfer_time = 0, head = 0;
  // The expert device waits for nothing; the attention device waits for the experts alone.
  EXPECT_DOUBLE_EQ(step(Recompute::kLocal, kWith) - step(Recompute::kAhead, kWith), 5);
}

TEST_F(OneLayer, GradientsOfWeightsHideBehindDispatchAndTheOtherDevice) {
  // experts.W 3 s beside dispatch.B and attention.B; nothing comes after attention.W.
  EXPECT_DOUBLE_EQ(step(Recompute::kLocal, kWith) - step(Recompute::kLocal, kAfter), 3);
  EXPECT_DOUBLE_EQ(step(Recompute::kLocal, kWith) - step(Recompute::kAhead, kAfter), 2 + 2 + 3);
}

}  // namespace
}  // namespace hetermoe
