#include <gtest/gtest.h>

#include <algorithm>

#include "hetermoe/cost/hiding.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/sim/simulator.h"
#include "tests/support/random_plan.h"

// Whether transfers hide behind experts, simulated: one layer on its own, experts on all devices, in chunks.
namespace hetermoe {
namespace {

constexpr FlopsPerSecond kPeak = 989e12;
constexpr BytesPerSecond kLink = 400e9;

/// Experts and the bytes of their rows, nothing else; each device has a link out and a link in.
struct ExpertsAlone : CostModel {
  explicit ExpertsAlone(const ModelConfig& model) : flops(expert_flops(model)) {}
  Flops flops;

  Seconds compute(const ComputeWork& work) const override {
    return row_of(work.op.kind).pricing == Pricing::kExperts ? flops * work.copies / kPeak : 0;
  }
  TransferCost transfer(const TransferWork& work) const override {
    TransferCost cost;
    for (std::size_t i = 0; i < work.participants.size(); ++i) {
      const i32 out = 2 * work.participants[i];
      cost.loads.push_back({out, work.bytes[i].local_out / kLink});
      cost.loads.push_back({out + 1, work.bytes[i].local_in / kLink});
    }
    return cost;
  }
};

/// From the first dispatch to the last combine, less what experts compute, over what a link is busy.
double exposed(double width, i32 chunks, double& ratio) {
  constexpr i64 kDevices = 8;
  ModelConfig model = load_model("mixtral-8x7b");
  model.num_layers = 1, model.dense_layer.assign(1, false);
  model.expert_hidden = static_cast<i64>(width);
  const Cluster cluster = testing::make_cluster(kDevices, 1, 1);
  StrategyRequest request;
  request.seq_len = 4096, request.sequences = kDevices, request.microbatches = 1;
  Plan plan = find_strategy("ep").make(model, cluster, request);
  plan.chunks = chunks, plan.row_dedup = false;
  plan.wire_forward = plan.wire_backward = Wire::kBf16;
  const StepOptions forward{.balance = false, .backward = false};
  const Placement placement(plan, model, forward);
  const Schedule schedule = build_schedule(plan, model, forward);
  const ExpertsAlone cost(model);
  const OpTimes times = simulate(schedule, placement, model, cluster, cost, ExpectedRouting(model));
  Seconds first = 1e9, last = 0, compute = 0;
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    const auto i = static_cast<std::size_t>(op);
    if (schedule.ops[i].kind == OpKind::kDispatch) first = std::min(first, times.start[i]);
    if (schedule.ops[i].kind == OpKind::kCombine) last = std::max(last, times.end[i]);
    if (schedule.ops[i].kind == OpKind::kExperts && device_of(schedule.lanes_of(op)[0]) == 0)
      compute += times.end[i] - times.start[i];
  }
  ratio = compute_over_transfer(width, kLink, kPeak, kDevices);
  return (last - first - compute) / (compute / ratio);
}

TEST(HidingGolden, TransfersHideWhereExpertsComputeLonger) {
  for (const double width : {1792.0, 3072.0, 14336.0}) {
    double ratio = 0;
    const double part = exposed(width, 16, ratio);
    EXPECT_GE(ratio, 1.2) << width;
    EXPECT_LT(part, 0.15) << width;
    EXPECT_GT(part, 0) << width;
  }
}

TEST(HidingGolden, ElseThePartIsExposedThatComputeDoesNotCover) {
  for (const double width : {256.0, 512.0, 1024.0, 1152.0}) {
    double ratio = 0;
    const double part = exposed(width, 16, ratio);
    EXPECT_LE(ratio, 0.8) << width;
    EXPECT_NEAR(part, 1 - ratio, 0.1) << width;
  }
}

/// Where nothing is cut nothing can hide. Routing weights and indices travel, too: 12 bytes beside 8 KiB.
TEST(HidingGolden, InOnePieceAllIsExposed) {
  double ratio = 0;
  EXPECT_NEAR(exposed(14336, 1, ratio), 1, 1e-3);
}

}  // namespace
}  // namespace hetermoe
