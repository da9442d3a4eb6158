#include <gtest/gtest.h>

#include <set>
#include <string>

#include "hetermoe/model/op_cost.h"
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
    const Pricing kind = *row_of(work.op.kind).pricing;
    if (kind == Pricing::kHead) return head;
    if (kind != Pricing::kAttention && kind != Pricing::kExperts) return 0;
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

class OneLayer : public ::testing::Test {
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

TEST_F(OneLayer, RowsThatAreSentAgainHideBehindTheGradient) {
  // No backward op recomputes: 2 s of the experts, 2 of attention. attention.R follows the head, as in a
  // selected layer it is an op with a time of its own here, and dispatch.R and combine.B share a queue.
  EXPECT_DOUBLE_EQ(step(Recompute::kLocal, kWith) - step(Recompute::kSelect, kWith), 2 + 2 - again - 1);
}

/// Numbers that a layer keeps with recompute: select, per token in rows of the hidden size. The published
/// ledger of selective rematerialisation, whose width is `width` and whose query heads share a key m to one.
double selected_ledger(i64 top_k, i64 width, i64 hidden, i64 m) {
  ModelConfig model = load_model("mixtral-8x7b");
  model.top_k = top_k, model.expert_hidden = width, model.hidden = hidden;
  model.num_heads = hidden / model.head_dim, model.num_kv_heads = model.num_heads / m;
  double elements = 0;
  for (const Activation& line : activation_ledger(model, 0, {})) {
    if (!is_kept(line.kept, KeptActivations::kSelected)) continue;
    elements += line.elements * (line.of == Activation::Of::kCopy ? static_cast<double>(top_k) : 1);
  }
  return elements / static_cast<double>(hidden);
}

/// Rows of the hidden size that a device of an even team makes for a token of its own, and those that it
/// keeps with recompute: select. Every device gets every row, as in the published exchange.
struct TeamLedger {
  double made = 0, kept = 0;
};
TeamLedger team_ledger(i64 n, i64 top_k, i64 width, i64 hidden, i64 m, const std::set<std::string>& without) {
  ModelConfig model = load_model("mixtral-8x7b");
  model.top_k = top_k, model.expert_hidden = width, model.hidden = hidden;
  model.num_heads = hidden / model.head_dim, model.num_kv_heads = model.num_heads / m;
  ActivationOptions options;
  options.of_team = true, options.team = n, options.rows = static_cast<double>(n);
  TeamLedger out;
  for (const Activation& line : activation_ledger(model, 0, options)) {
    const double rows = times_per_token(model, line, options) * line.elements / static_cast<double>(hidden);
    out.made += rows;
    if (is_kept(line.kept, KeptActivations::kSelected) && !without.contains(line.name)) out.kept += rows;
  }
  return out;
}

/// 2 n + 2 k + 3 k f + 12 + 5/m rows are made, 2 k f + 4 + 2/m kept. Ours keep two rows more: what an op of a
/// team makes is kept whole, so the normed input, and the kernel's output lies by heads and by tokens.
TEST(SelectedLedger, OfATeamIsThePublishedOneButForTwoRows) {
  const std::set<std::string> ours = {"normed input", "attended by tokens"};
  struct Case {
    i64 n, k, width, hidden, m;
    double made, kept;
  };
  for (const Case& c : {Case{8, 3, 14336, 4096, 4, 66.75, 25.5}, Case{8, 2, 14336, 4096, 4, 54.25, 18.5},
                        Case{8, 2, 16384, 6144, 6, 48 + 5.0 / 6, 15}, Case{2, 2, 8192, 4096, 2, 34.5, 13}}) {
    const TeamLedger all = team_ledger(c.n, c.k, c.width, c.hidden, c.m, {});
    EXPECT_DOUBLE_EQ(all.made, c.made) << c.k << " " << c.width;
    EXPECT_DOUBLE_EQ(all.kept, c.kept + 2) << c.k << " " << c.width;
    EXPECT_DOUBLE_EQ(team_ledger(c.n, c.k, c.width, c.hidden, c.m, ours).kept, c.kept) << c.k;
  }
}

TEST(SelectedLedger, IsThePublishedOne) {
  EXPECT_DOUBLE_EQ(selected_ledger(3, 14336, 4096, 4), 25.5);
  EXPECT_DOUBLE_EQ(selected_ledger(2, 14336, 4096, 4), 18.5);
  EXPECT_DOUBLE_EQ(selected_ledger(2, 16384, 6144, 6), 15);
  EXPECT_DOUBLE_EQ(selected_ledger(2, 8192, 4096, 2), 13);
}

}  // namespace
}  // namespace hetermoe
