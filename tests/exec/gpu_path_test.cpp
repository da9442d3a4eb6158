#include <gtest/gtest.h>

#include <numeric>

#include "hetermoe/device/host_copy.h"
#include "hetermoe/kernels/launch.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/nn/cpu_bf16_product.h"
#include "hetermoe/nn/experts.h"
#include "hetermoe/plan/row_nodes.h"
#include "tests/fault/scene.h"
#include "tests/support/fake_stream.h"
#include "tests/support/launch_count.h"

// A step as a GPU takes it, on a CPU: kernels of our own run on the host, and streams are threads.
namespace hetermoe::testing {
namespace {

struct Outcome {
  StepResult result;
  TensorsByName gradients;
};

Outcome one_step(const Scene& s, const MakeStream& streams) {
  RigOptions options;
  if (streams) options.executor.make_stream = streams;
  const std::unique_ptr<Rig> rig = make_rig(s, options);
  Outcome out;
  const StepInput input = random_input(rig->plan(), rig->model());
  out.result = rig->executor().run(input);
  out.gradients = rig->gradients();
  return out;
}

/// And streams that end late give the same bits.
void expect_reference(const Scene& s, const std::string& name, u64 seed) {
  const Outcome plain = one_step(s, {});
  const StepInput input = random_input(s.plan, s.model);
  const ReferenceResult expected =
      reference_step(s.model, lively_values(s.model), input.tokens, input.targets, aux_of(s.step));
  EXPECT_LE(compare(plain.result, plain.gradients, expected).max(), 1e-10) << name;
  const Outcome streamed = one_step(s, fake_streams({.seed = seed, .most_delay_us = 200}));
  EXPECT_EQ(plain.result.loss, streamed.result.loss) << name;
  EXPECT_TRUE(at::equal(plain.result.counts_LE, streamed.result.counts_LE)) << name;
  for (const auto& [parameter, grad] : plain.gradients)
    EXPECT_TRUE(at::equal(grad, streamed.gradients.at(parameter))) << name << " " << parameter;
}

// Claim (GpuPath.*): on a GPU the host waits for sizes of dispatch and numbers of the norm alone; a step of
// olmoe4 stays within its launches
TEST(GpuPath, EqualsTheReferenceAndDelaysChangeNoBit) {
  const kernels::HostKernels on;
  for (const char* strategy : {"zebra", "ep-overlap", "dist-ep"}) {
    for (const Recompute recompute :
         {Recompute::kOff, Recompute::kLocal, Recompute::kResend, Recompute::kSelect}) {
      Scene s = scene_of(strategy);
      s.plan.recompute = recompute;
      expect_reference(s, strategy, 3);
    }
  }
}

/// The host knows the choices of a source before it tells sizes.
TEST(GpuPath, RowsByNodesEqualTheReference) {
  const kernels::HostKernels on;
  for (const char* strategy : {"zebra", "ep-overlap"}) {
    for (const Recompute recompute : {Recompute::kLocal, Recompute::kResend}) {
      Scene s = scene_of(strategy);
      s.plan.recompute = recompute;
      s.plan.row_nodes = nodes_of_devices(s.cluster);
      ASSERT_TRUE(may_pass_rows_on(s.plan, s.cluster)) << strategy;
      expect_reference(s, strategy, 5);
    }
  }
}

TEST(GpuPath, TheHostWaitsForSizesAndForTheNumbersOfTheStepAlone) {
  const kernels::HostKernels on;
  for (const char* strategy : {"zebra", "ep-overlap", "dist-ep"}) {
    const Scene s = scene_of(strategy);
    const Schedule schedule = build_schedule(s.plan, s.model, s.step);
    i64 dispatches = 0, norms = 0;
    for (OpId id = 0; id < schedule.num_ops(); ++id) {
      const Op& op = schedule.ops[static_cast<std::size_t>(id)];
      const auto participants = static_cast<i64>(schedule.lanes_of(id).size());
      if (op.kind == OpKind::kDispatch && op.phase == Phase::kForward) dispatches += participants;
      if (op.kind == OpKind::kNorm) norms += participants;
    }
    const HostWaits waits;
    one_step(s, {});
    const std::map<std::string, i64> expected = {{"numbers of the step", norms},
                                                 {"sizes of dispatch", dispatches}};
    EXPECT_EQ(waits.counts(), expected) << strategy;
  }
}

/// OLMoE-1B-7B with four layers and its number of tokens, experts and chunks of the head, but narrow.
ModelConfig narrow_olmoe4() {
  ModelConfig model = load_model("olmoe4");
  model.vocab = 96;
  model.hidden = 32;
  model.num_heads = model.num_kv_heads = 2;
  model.head_dim = 16;
  model.expert_hidden = 16;
  return model;
}

i64 sum_of(const std::map<std::string, i64>& counts) {
  return std::accumulate(counts.begin(), counts.end(), i64{0},
                         [](i64 sum, const auto& entry) { return sum + entry.second; });
}

/// Products of single experts stand for grouped ones: a GPU of compute capability 9 multiplies all experts in
/// one call, which launches two kernels: one fills in addresses. Weight gradients go in bunches, each with an
/// addition; with several bunches the ends of a weight's are one copy.
i64 grouped_products(const ModelConfig& of) {
  constexpr i64 kBytes = 2, kForwardAndBackward = 4 * 2, kOfBunch = 3;
  const auto gradients = [&](i64 elements) {
    const i64 most = std::max<i64>(1, kMostProductBytes / (elements * kBytes));
    const i64 bunches = (of.num_experts + most - 1) / most;
    return kOfBunch * bunches + (bunches > 1 ? 1 : 0);
  };
  return of.num_layers * (kForwardAndBackward + gradients(2 * of.expert_hidden * of.hidden) +
                          gradients(of.expert_hidden * of.hidden));
}

/// Attention is code of our own on this CPU: a kernel forward, three back.
i64 attention_kernels(const ModelConfig& of) { return of.num_layers * (1 + 3); }

/// The head of a narrow vocabulary has longer runs: what the others take, each with three products and the
/// loss.
i64 further_runs_of_head(const ModelConfig& whole, const ModelConfig& narrow, i64 tokens) {
  constexpr i64 kOfRun = 4;
  const auto runs = [&](const ModelConfig& of) {
    const i64 run = head_run_on_gpu(of, 2);
    return (tokens + run - 1) / run;
  };
  return kOfRun * (runs(whole) - runs(narrow));
}

/// Kernels that a GPU is given by one step of OLMoE-1B-7B with four layers, 8 x 2,048 tokens, bf16. They were
/// 2,194, with 203 waits, when ops went through libtorch and each waited.
TEST(GpuPath, AStepOfOlmoe4IsAtMost500LaunchesAnd40Waits) {
  if (bf16_unit() == Bf16Unit::kNone) GTEST_SKIP() << "this processor has no products in bf16";
  const kernels::HostKernels on;
  const ModelConfig model = narrow_olmoe4();
  const Cluster cluster = make_cluster(1);
  StrategyRequest request;
  request.seq_len = 2048;
  request.sequences = 8;
  request.microbatches = 1;
  Plan plan = find_strategy("single").make(model, cluster, request);
  use_dtype(plan, Dtype::kBf16);
  plan.recompute = Recompute::kOff;
  RigOptions options;
  options.step = {true, 1, true};
  options.executor.before_op = [](const Op& op, DeviceId) { OperatorCount::label(name_of(op.kind)); };
  Rig rig(model, cluster, plan, options);
  for (const std::unique_ptr<DeviceState>& state : rig.states()) state->store().initialize(1);
  StepInput input = random_input(plan, model);
  input.max_grad_norm = 1;
  rig.executor().run(input);  // tables are made once
  const HostWaits waits;
  const OperatorCount operators;
  const kernels::LaunchRecorder own;
  OperatorCount::label("begin");
  rig.executor().run(input);
  i64 all = 0;
  const std::set<std::string> products = {"hetermoe::product", "aten::addmm"};
  for (const auto& [kind, counts] : operators.counts()) {
    i64 of_kind = 0;
    std::string text;
    for (const auto& [name, count] : counts) {
      if (kind == name_of(OpKind::kExperts) && products.contains(name)) continue;
      of_kind += count;
      text += fmt::format(" {} {}", name, count);
    }
    std::cout << kind << ": " << of_kind << " of libtorch:" << text << "\n";
    all += of_kind;
  }
  const ModelConfig whole = load_model("olmoe4");
  const i64 grouped = grouped_products(whole), attention = attention_kernels(whole),
            further = further_runs_of_head(whole, model, request.seq_len * request.sequences);
  for (const auto& [name, count] : own.counts()) std::cout << name << " " << count << "\n";
  std::cout << "of libtorch: " << all << ", own kernels: " << own.total() << ", grouped products: " << grouped
            << ", attention: " << attention << ", further runs of the head: " << further
            << ", waits: " << sum_of(waits.counts()) << "\n";
  EXPECT_LE(all + own.total() + grouped + attention + further, 500);
  EXPECT_LE(sum_of(waits.counts()), 40);
}

}  // namespace
}  // namespace hetermoe::testing
