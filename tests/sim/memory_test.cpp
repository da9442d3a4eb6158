#include "hetermoe/sim/memory.h"

#include <gtest/gtest.h>

#include "hetermoe/model/op_cost.h"
#include "tests/golden/constant_cost.h"
#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

using test::make_cluster, test::make_model, test::make_zebra_plan;

// One sequence of 16 tokens per microbatch and attention device, hidden 8, 4 experts of width 16, top 2,
// fp32.
constexpr Bytes kRow = 8 * 4, kTokens = 16, kCopies = 32;
constexpr Bytes kExpertParams = 4 * 3 * 8 * 16;
constexpr Bytes kRowsBuffer = kTokens * kRow + kCopies * 20;  // a weight and two indices per copy

struct Case {
  ModelConfig model;
  Cluster cluster = make_cluster({1, 1});
  Plan plan;
  StepOptions options;

  explicit Case(const test::ZebraShape& shape) : model(make_model({.num_layers = 1})) {
    cluster.types[0].attention_kernel = AttentionKernel::kFlash;
    plan = make_zebra_plan(model, cluster, shape);
  }

  std::vector<MemoryPeak> peaks() const {
    test::ConstantCost cost;
    cost.attention = 3;
    cost.experts = 4;
    cost.transfer_time = 1;
    cost.tail = 1;
    cost.num_experts = model.num_experts;
    const test::SimulatedPlan s = test::simulate(plan, model, cluster, cost, options);
    return peak_memory(s.schedule, s.times, Placement(plan, model, options), model, cluster,
                       ExpectedRouting(model));
  }
};

TEST(PeakMemory, ExpertDeviceIsFullestDuringItsBackward) {
  const MemoryPeak peak = Case({.microbatches = 1}).peaks()[1];
  EXPECT_EQ(peak.use.weights, 4 * kExpertParams);
  EXPECT_EQ(peak.use.gradients, 4 * kExpertParams);
  EXPECT_EQ(peak.use.optimizer, 8 * kExpertParams);
  EXPECT_EQ(peak.use.saved, kRowsBuffer);
  // Gradient rows in, gradient rows and weights out, counts of one source and one owner.
  EXPECT_EQ(peak.use.in_flight, kTokens * kRow + (kTokens * kRow + kCopies * 4) + 16);
  // Three inner activations of width 16 per copy, which their gradients replace; three gathered rows.
  EXPECT_EQ(peak.use.workspace, kCopies * (3 * 16 * 4 + 3 * kRow));
  EXPECT_EQ(peak.time, 3 + 1 + 4 + 1 + 3 + 1);  // attention, dispatch, experts, combine, head, combine.B
}

TEST(PeakMemory, ZebraKeepsTheRowsOfAllMicrobatches) {
  EXPECT_EQ(Case({.microbatches = 3}).peaks()[1].use.saved, 3 * kRowsBuffer);
  EXPECT_EQ(Case({.microbatches = 3, .strategy = "dist-ep"}).peaks()[1].use.saved, kRowsBuffer);
}

TEST(PeakMemory, WithoutRecomputationActivationsAreSaved) {
  Case c({.microbatches = 2});
  const MemoryUse local = c.peaks()[1].use;
  c.plan.recompute = Recompute::kOff;
  const MemoryUse off = c.peaks()[1].use;
  EXPECT_EQ(off.saved, local.saved + 2 * kCopies * 2 * 16 * 4);
  EXPECT_EQ(off.workspace, local.workspace - kCopies * 2 * 16 * 4);
}

TEST(PeakMemory, MixedPrecisionHalvesRowsAndKeepsAMaster) {
  Case c({.microbatches = 1});
  c.plan.dtype = {Dtype::kFp16, Dtype::kFp16};
  const MemoryUse use = c.peaks()[1].use;
  EXPECT_EQ(use.weights, 2 * kExpertParams);
  EXPECT_EQ(use.gradients, 4 * kExpertParams);  // summed in fp32
  EXPECT_EQ(use.optimizer, 12 * kExpertParams);
  EXPECT_EQ(use.saved, kTokens * kRow / 2 + kCopies * 20);
}

/// Of device 1, which holds the experts' state alone: what norm and update need besides.
std::pair<Bytes, Bytes> norm_and_update_work(const Case& c) {
  const Placement placement(c.plan, c.model, c.options);
  const ExpectedRouting routing(c.model);
  BufferSizes sizes(placement, c.model, c.cluster, routing);
  const i32 experts = placement.states().on(1)[0];
  const Op norm{.kind = OpKind::kNorm}, update{.kind = OpKind::kUpdate, .state = experts};
  return {sizes.workspace(norm, 1), sizes.workspace(update, 1)};
}

TEST(PeakMemory, NormAndUpdateConvertGradientsABlockAtATime) {
  Case c({.microbatches = 1});
  EXPECT_EQ(norm_and_update_work(c), std::pair(0.0, 0.0));  // fp32 is used as it is
  c.plan.dtype = {Dtype::kFp16, Dtype::kFp16};
  EXPECT_EQ(norm_and_update_work(c), std::pair(0.0, 0.0));  // summed in fp32
  c.plan.grad_dtype = Dtype::kFp16;
  EXPECT_EQ(norm_and_update_work(c), std::pair(8 * kExpertParams, 4 * kExpertParams));
  EXPECT_EQ(norm_work_bytes(1e9, 2), kUpdateBlockBytes);
  EXPECT_EQ(update_work_bytes(1e9, 2), kUpdateBlockBytes);
}

TEST(PeakMemory, ForwardOnlyNeedsNoGradients) {
  Case c({.microbatches = 2});
  c.options.backward = false;
  for (const MemoryPeak& peak : c.peaks()) {
    EXPECT_EQ(peak.use.gradients, 0);
    EXPECT_EQ(peak.use.optimizer, 0);
  }
  EXPECT_EQ(c.peaks()[1].use.saved,
            2 * kRowsBuffer);  // of one microbatch while computed, of the next as it arrives
}

/// Attention device, one microbatch: the backward of the attention part, which recomputes.
TEST(PeakMemory, AttentionDevice) {
  const Case c({.microbatches = 1});
  const MemoryUse use = c.peaks()[0].use;
  const ParamCounts counts = count_parameters(c.model);
  EXPECT_EQ(use.state(), 16 * static_cast<double>(counts.embedding + counts.attention_part[0] + counts.head));
  // Input of the layer, routing, indices of the rows and copies sent.
  EXPECT_EQ(use.saved, kTokens * (kRow + 2 * 12) + (kTokens + 3 * kCopies) * 8);
  // Gradient of the layer's output in and of its input out, gradients of rows and weights from the experts.
  EXPECT_EQ(use.in_flight, 2 * kTokens * kRow + kTokens * kRow + kCopies * 4);
  EXPECT_EQ(use.workspace,
            kTokens * (attention_work_bytes(c.model, 0, {4, KeptActivations::kAll, false, 16}) +
                       attention_gradient_bytes(c.model, 4)) +
                kTokens * (kRow + 4 * static_cast<double>(2 * c.model.num_experts + c.model.top_k)));
}

TEST(PeakMemory, PlainAttentionKeepsItsScores) {
  Case c({.microbatches = 1});
  const Bytes fused = c.peaks()[0].use.workspace;
  c.cluster.types[0].attention_kernel = AttentionKernel::kPlain;
  // Two heads x 16 scores per token instead of two log-sum-exps.
  EXPECT_EQ(c.peaks()[0].use.workspace, fused + kTokens * (2 * 16 * 4 - 2 * 4));
}

TEST(PeakMemory, IdleDevicesHoldNothing) {
  Case c({.microbatches = 1});
  c.cluster = make_cluster({1, 1, 1});
  c.plan.dtype.push_back(Dtype::kFp32);
  EXPECT_EQ(c.peaks()[2].use.total(), 0);
}

}  // namespace
}  // namespace hetermoe
