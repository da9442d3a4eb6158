#include <gtest/gtest.h>

#include "hetermoe/kernels/host_kernels.h"
#include "hetermoe/ops/exchange.h"
#include "tests/equivalence/against_reference.h"
#include "tests/equivalence/ran_step.h"
#include "tests/support/tally_plan.h"

// Results of experts that go to the devices of the next layer (CombineTo::kNext) give the gradients of the
// reference.
namespace hetermoe::testing {
namespace {

TEST(CombineToNext, RandomPlansGiveTheGradientsOfTheReference) {
  i64 joins = 0, plans = 0, cut = 0, replicas = 0, owners_receive = 0, chunks = 0;
  for (u64 seed = 7000; seed < 7060; ++seed) {
    RandomCase c = random_case(seed);
    const i64 found = combine_to_next(c);
    joins += found;
    plans += found > 0 ? 1 : 0;
    EXPECT_EQ(validate(c.plan, c.model, c.cluster), std::vector<std::string>{}) << describe(c);
    RigOptions options;
    options.step = c.step;
    Rig rig(c.model, c.cluster, c.plan, options);
    EXPECT_EQ(validate(rig.schedule(), c.plan, c.model, c.step), std::vector<std::string>{}) << describe(c);
    const TensorsByName values = lively_values(c.model);
    rig.load(values);
    const StepInput input = random_input(c.plan, c.model);
    const StepResult result = rig.executor().run(input);
    const Comparison compared =
        compare(result, rig.gradients(),
                reference_step(c.model, values, input.tokens, input.targets, aux_of(c.step)));
    EXPECT_LE(compared.max(), kTolerance) << describe(c) << ": loss " << compared.loss << ", gradient "
                                          << compared.gradient << " of " << compared.worst;
    for (const Op& op : rig.schedule().ops) {
      if (op.kind != OpKind::kCombine || op.phase != Phase::kForward) continue;
      const Exchange exchange(op, rig.placement());
      if (!exchange.of_next()) continue;
      chunks += op.chunk > 0 ? 1 : 0;
      const auto segments = next_segments(rig.placement(), op.group, op.layer, op.microbatch, op.chunk);
      for (std::size_t i = 1; i < segments.size(); ++i)
        cut += segments[i].source == segments[i - 1].source ? 1 : 0;
      for (const DeviceId owner : exchange.owners()) owners_receive += exchange.is_source(owner) ? 1 : 0;
      const LayerOwners& experts = c.plan.groups[static_cast<std::size_t>(op.group)]
                                       .layers[static_cast<std::size_t>(op.layer)]
                                       .experts;
      replicas += std::any_of(experts.begin(), experts.end(), [](const auto& of) { return of.size() > 1; });
    }
  }
  EXPECT_GT(plans, 30);
  EXPECT_GT(joins, 100);
  EXPECT_GT(cut, 3);  // sources whose tokens go to several receivers
  EXPECT_GT(replicas, 5);
  EXPECT_GT(owners_receive, 20);
  EXPECT_GT(chunks, 20);
}

/// Copies of experts are divided by replayed choices: who returns what follows from the division.
TEST(CombineToNext, ForeseenCountsGiveTheGradientsOfTheReference) {
  i64 runs = 0, replicas = 0;
  for (u64 seed = 7000; runs < 12; ++seed) {
    RandomCase c = random_case(seed);
    if (combine_to_next(c) == 0 || !use_tally(c.plan, c.model)) continue;
    c.plan.tally = false, c.plan.foreseen = true;
    const std::vector<at::Tensor> choices = random_choices(c.plan, c.model, seed);
    if (!validate(c.plan, c.model, c.cluster).empty()) continue;
    use_fp64(c.plan);
    const Ran got = run_step(c.model, c.cluster, c.plan, c.step, choices);
    EXPECT_LE(got.difference.max(), kTolerance) << describe(c) << " " << got.difference.worst;
    ++runs;
    for (const State& state : build_schedule(c.plan, c.model, c.step).states)
      replicas += state.part == State::Part::kExperts && state.devices.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(replicas, 5);
}

/// Stages and interleaved stages have their moves between layers, too.
TEST(CombineToNext, StrategiesWithStagesGiveTheGradientsOfTheReference) {
  ModelConfig model = load_model("tiny");
  model.num_layers = 4;
  model.dense_layer.assign(4, false);
  const Cluster cluster = make_cluster(8);
  for (const char* strategy : {"pp-ep", "pp-zebra"}) {
    StrategyRequest request;
    request.seq_len = 4;
    request.sequences = 6, request.microbatches = 3;
    request.stages = 2;
    Plan plan = find_strategy(strategy).make(model, cluster, request);
    plan.combine_to = CombineTo::kNext;
    const Comparison found = against_reference(model, cluster, plan);
    EXPECT_LE(found.max(), 1e-10) << strategy << ": " << found.gradient << " of " << found.worst;
  }
}

/// Two depth groups of two devices with attention and one with experts each. Groups divide sequences
/// otherwise, so that a source has tokens of two receivers.
Plan deep_plan(const ModelConfig& model, const Cluster& cluster) {
  StrategyRequest request;
  request.seq_len = 4;
  request.sequences = 9, request.microbatches = 2;
  request.attention = device_range(0, 4), request.experts = device_range(4, 6);
  request.depth_groups = {2};
  Plan plan = find_strategy("af-pipe").make(model, cluster, request);
  plan.combine_to = CombineTo::kNext;
  use_fp64(plan);
  for (std::size_t l = 1; l < plan.groups[0].layers.size(); l += 2) {
    for (ShareRow& row : plan.groups[0].layers[l].attention) --row[0].sequences, ++row[1].sequences;
  }
  return plan;
}

std::string error_with(const HookedTransport::Hook& on_send) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = make_cluster(6);
  const Plan plan = deep_plan(model, cluster);
  RigOptions options;
  options.on_send = on_send;
  return error_of_step(model, cluster, plan, options);
}

/// What is added in which order is the same.
void check_bits() {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = make_cluster(6);
  Plan plan = deep_plan(model, cluster);
  plan.dtype.assign(plan.dtype.size(), Dtype::kFp32);
  plan.wire_forward = plan.wire_backward = Wire::kFp32;
  for (const i32 chunks : {1, 2}) {
    plan.chunks = chunks, plan.row_dedup = chunks == 1;
    TensorsByName gradients[2];
    double losses[2];
    for (const CombineTo to : {CombineTo::kSource, CombineTo::kNext}) {
      const auto i = static_cast<std::size_t>(to);
      plan.combine_to = to;
      Rig rig(model, cluster, plan);
      rig.load(lively_values(model));
      losses[i] = rig.executor().run(random_input(plan, model)).loss;
      gradients[i] = rig.gradients();
    }
    EXPECT_EQ(losses[0], losses[1]);
    for (const auto& [name, gradient] : gradients[0])
      EXPECT_TRUE(at::equal(gradient, gradients[1].at(name))) << name;
  }
}

TEST(CombineToNext, GivesTheBitsOfTheWayByTheSource) { check_bits(); }
/// As on a GPU, where tables are made on the device.
TEST(CombineToNext, GivesTheBitsOfTheWayByTheSourceWithKernels) {
  const kernels::HostKernels on;
  check_bits();
}

/// A residual stream without the owners of its tokens' choices is not taken.
TEST(CombineToNext, ResidualWithoutRoutingIsRefused) {
  const std::string error = error_with([](const ExchangeCall& call, std::vector<Message>& out) {
    if (!call.name.starts_with("move.F l1")) return;
    for (Message& message : out)
      if (message.tensors.size() == 3) message.tensors.erase(message.tensors.begin() + 1);
  });
  EXPECT_NE(error.find("tensors: got 2, expected 3"), std::string::npos) << error;
}

/// Without a look the rows of experts would be added to tokens that nobody named.
TEST(CombineToNext, OwnersThatDoNotGoWithTheRowsAreRefused) {
  const std::string error = error_with([](const ExchangeCall& call, std::vector<Message>& out) {
    if (!call.name.starts_with("move.F l1")) return;
    for (Message& message : out)
      if (message.tensors.size() >= 2) message.tensors[1] = at::full_like(message.tensors[1], -1);
  });
  EXPECT_NE(error.find("attention.F l1"), std::string::npos) << error;
  EXPECT_NE(error.find("expected 0 by the owners of choices that came with the residual stream"),
            std::string::npos)
      << error;
}

/// A source that counts all its rows in its first segment tells an owner to send other rows than a receiver
/// waits for.
TEST(CombineToNext, RowsCountedBySourceInPlaceOfSegmentAreFound) {
  const i64 experts = load_model("tiny").num_experts;
  const std::string error = error_with([&](const ExchangeCall& call, std::vector<Message>& out) {
    if (!call.name.starts_with("dispatch.F l0") || call.round != 0) return;
    for (Message& message : out) {
      if (message.tensors.empty() || call.self != 0) continue;
      at::Tensor& told = message.tensors[0];
      // One owner: two numbers of rows, one for each expert and one more of copies, and one for each segment.
      const i64 segments = told.numel() - (2 + experts + 1);
      if (segments < 2) continue;
      at::Tensor changed = told.clone();
      at::Tensor counts = changed.narrow(0, told.numel() - segments, segments);
      const i64 all = counts.sum().item<i64>();
      counts.zero_();
      counts[0] = static_cast<int>(all);
      told = changed;
    }
  });
  EXPECT_NE(error.find("combine.F l0"), std::string::npos) << error;
}

}  // namespace
}  // namespace hetermoe::testing
