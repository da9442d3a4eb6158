#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "hetermoe/routing/exchange_split.h"
#include "tests/support/rig.h"
#include "tests/support/tally_plan.h"

// Copies divided by their counts in each exchange: the numbers are the reference's, and the counts those that
// the split says.
namespace hetermoe::testing {
namespace {

constexpr double kTolerance = 1e-10;

struct Ran {
  Comparison difference;
  StepResult result;
  TensorsByName gradients;
};

Ran run_step(const ModelConfig& model, const Cluster& cluster, const Plan& plan, const StepOptions& step,
             RigOptions options = {}) {
  options.step = step;
  Rig rig(model, cluster, plan, options);
  const TensorsByName values = lively_values(model);
  rig.load(values);
  const StepInput input = random_input(plan, model);
  Ran out;
  out.result = rig.executor().run(input);
  out.gradients = rig.gradients();
  EXPECT_TRUE(rig.differing_replicas().empty());
  out.difference = compare(out.result, out.gradients,
                           reference_step(model, values, input.tokens, input.targets, step.aux_group));
  return out;
}

TEST(Tally, LplbWithCopiesEqualsTheReferenceOnTwoAndThreeDeviceTypes) {
  ModelConfig model = tiny_mixtral();
  model.num_experts = 7;
  for (const i32 num_types : {2, 3}) {
    const Cluster cluster = make_cluster(5, num_types);
    for (const char* strategy : {"ep", "zebra"}) {
      for (const i32 chunks : {1, 3}) {
        StrategyRequest request = small_step();
        request.sequences = 6;
        Plan plan = find_strategy(strategy).make(model, cluster, request);
        plan.chunks = chunks;
        use_lplb(plan, model);
        use_fp64(plan);
        const Ran with = run_step(model, cluster, plan, {true, 1, true});
        EXPECT_LE(with.difference.max(), kTolerance) << strategy << " " << num_types << " " << chunks;
        const Ran again = run_step(model, cluster, plan, {true, 1, true});
        EXPECT_EQ(with.result.loss, again.result.loss);
        for (const auto& [name, gradient] : with.gradients)
          EXPECT_TRUE(at::equal(gradient, again.gradients.at(name))) << name;
      }
    }
  }
}

TEST(Tally, RandomPlansEqualTheReference) {
  i64 runs = 0, tallied = 0, replicas = 0, groups = 0;
  for (u64 seed = 1; runs < 60; ++seed) {
    RandomCase c = random_case(seed);
    if (!use_tally(c.plan, c.model) || !validate(c.plan, c.model, c.cluster).empty()) continue;
    use_fp64(c.plan);
    const Ran got = run_step(c.model, c.cluster, c.plan, c.step);
    EXPECT_LE(got.difference.max(), kTolerance) << describe(c);
    ++runs;
    const Schedule schedule = build_schedule(c.plan, c.model, c.step);
    for (const Op& op : schedule.ops) tallied += op.kind == OpKind::kTally ? 1 : 0;
    for (const State& state : schedule.states)
      replicas += state.part == State::Part::kExperts && state.devices.size() > 1 ? 1 : 0;
    groups += c.plan.groups.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(tallied, 100);
  EXPECT_GT(replicas, 20);
  EXPECT_GT(groups, 5);
}

TEST(Tally, SharesOfThePlanDoNotMatterThen) {
  const ModelConfig model = tiny_mixtral();
  const Cluster cluster = make_cluster(4);
  StrategyRequest request = small_step();
  Plan plan = find_strategy("ep").make(model, cluster, request);
  use_lplb(plan, model);
  use_fp64(plan);
  const Ran one = run_step(model, cluster, plan, {true, 1, true});
  for (LayerPlacement& layer : plan.groups[0].layers) {
    for (ExpertOwners& owners : layer.experts) {
      if (owners.size() == 2) owners[0].share = 1, owners[1].share = 0;
    }
  }
  const Ran other = run_step(model, cluster, plan, {true, 1, true});
  EXPECT_EQ(one.result.loss, other.result.loss);
  for (const auto& [name, gradient] : one.gradients)
    EXPECT_TRUE(at::equal(gradient, other.gradients.at(name))) << name;
}

TEST(Tally, WrongCountsAreRefusedByName) {
  const ModelConfig model = tiny_mixtral();
  const Cluster cluster = make_cluster(3);
  Plan plan = find_strategy("ep").make(model, cluster, small_step());
  use_lplb(plan, model);
  use_fp64(plan);
  RigOptions options;
  options.on_send = [](const ExchangeCall& call, std::vector<Message>& out) {
    if (call.name != "tally.F l1 m0" || call.self != 0) return;
    out[2].tensors[0] = out[2].tensors[0].add(1);
  };
  std::string error;
  try {
    run_step(model, cluster, plan, {true, 1, true}, options);
  } catch (const Error& e) {
    error = e.what();
  }
  EXPECT_NE(error.find("tally.F l1 m0] [message of device 0"), std::string::npos) << error;
  EXPECT_NE(error.find("copies of all experts: got "), std::string::npos) << error;
}

}  // namespace
}  // namespace hetermoe::testing
