#include <gtest/gtest.h>

#include "hetermoe/ops/buffer_sizes.h"
#include "hetermoe/plan/offload.h"
#include "tests/equivalence/adapters.h"
#include "tests/support/case_count.h"
#include "tests/support/strategy_plans.h"
#include "tests/support/with_hosts.h"

// Adapters whose frozen weights are on hosts: they are trained as if these were on the devices.
namespace hetermoe::testing {
namespace {

using Entries = std::vector<std::string>;

const std::vector<Entries>& residences() {
  static const std::vector<Entries> all = {
      {"all"}, {"experts.weights"}, {"attention.weights", "head.weights"}, {"weights", "saved"}};
  return all;
}

/// Every strategy, and turns on a cluster of one node.
template <class F>
void for_each_adapted_plan(const ModelConfig& model, F&& f) {
  const Cluster cluster = with_hosts(make_cluster(4, 3, 2)), server = with_hosts(make_cluster(4, 1, 1));
  for (NamedPlan& named : strategy_plans(model, cluster, small_step())) f(named, cluster);
  NamedPlan turns{"roundpipe", find_strategy("roundpipe").make(model, server, small_step())};
  use_fp64(turns.plan);
  f(turns, server);
}

class AdaptersOnHosts : public ::testing::TestWithParam<const char*> {
 protected:
  AdaptersOnHosts() : model(load_model(GetParam())) {}
  ModelConfig model;
};

TEST_P(AdaptersOnHosts, GradientsAreTheReferencesUnderEveryStrategy) {
  Turns turns(3);
  i32 count = 0;
  for (const Patterns& patterns : {Patterns{"*_proj*", "*.experts.*"}, {"*.self_attn.q_*proj*"}}) {
    const StepOptions step = with_lora(model, patterns);
    const TensorsByName values = lively(model, *step.lora);
    for_each_adapted_plan(model, [&](const NamedPlan& named, const Cluster& cluster) {
      for (const Entries& entries : residences()) {
        Plan plan = named.plan;
        offload(plan, model, cluster, entries, "test");
        plan.slots = {1 + count % 3, 1 + (count + 1) % 3, 1 + count % 2};
        if (count % 2 == 0) plan.weight_gradients = WeightGradients::kAfter;
        ++count;
        if (!turns.takes()) continue;
        ASSERT_EQ(validate(plan, model, cluster), std::vector<std::string>{}) << named.name;
        Session session = make_session(model, cluster, plan, step);
        EXPECT_EQ(validate(session.schedule(), plan, model, step), std::vector<std::string>{}) << named.name;
        load(session, values);
        const StepInput input = random_input(plan, model);
        const StepResult result = session.train_step(input);
        const Comparison c =
            compare(result, session.gradients(), reference_of(model, *step.lora, values, input));
        EXPECT_LE(c.max(), kTolerance) << named.name << " " << entries[0] << ": " << c.worst;
      }
    });
  }
}

/// Frozen weights on the hosts, adapters with all that is kept of them on the devices.
TEST_P(AdaptersOnHosts, TakeMemoryAsIsPredictedToTheByte) {
  const StepOptions step = with_lora(model, {"*_proj*", "*.experts.*"});
  Turns turns(2);
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
    for_each_adapted_plan(model, [&](NamedPlan named, const Cluster& cluster) {
      if (!turns.takes()) return;
      use_dtype(named.plan, dtype);
      offload(named.plan, model, cluster, {"all"}, "test");
      Session session = make_session(model, cluster, named.plan, step);
      const ExpectedRouting routing(model);
      const BufferSizes sizes(session.placement(), model, cluster, routing);
      for (DeviceState* state : session.states()) {
        const MemoryUse use = sizes.state(state->device());
        EXPECT_EQ(use.state(), static_cast<double>(state->store().bytes())) << named.name << name_of(dtype);
        // A device of roundpipe may have no turn, and keeps nothing.
        const bool has_adapters = state->device() < cluster.num_devices() && use.state() > 0;
        EXPECT_EQ(has_adapters, use.gradients + use.optimizer > 0) << named.name << state->device();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Equivalence, AdaptersOnHosts,
                         ::testing::Values("tiny", "tiny-qwen3", "tiny-deepseek-v3", "tiny-gpt-oss"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// 20 steps in fp32, with and without a sharded optimizer of the adapters.
TEST(AdaptersOnHostsBits, AreThoseOfWeightsOnTheDevices) {
  const ModelConfig model = load_model("tiny");
  const StepOptions step = with_lora(model, {"*_proj*", "*.experts.*"});
  const TensorsByName values = lively(model, *step.lora);
  const auto after = [&](const Plan& plan, const Cluster& cluster) {
    Session session = make_session(model, cluster, plan, step);
    load(session, values);
    for (i64 i = 0; i < 20; ++i) {
      StepInput input = random_input(plan, model, static_cast<u64>(i));
      input.step = i;
      input.learning_rate = 0.01;
      input.max_grad_norm = 0.5;
      EXPECT_TRUE(session.train_step(input).updated);
    }
    return session.values();
  };
  Turns turns(5);
  for (const bool sharded : {false, true}) {
    for_each_adapted_plan(model, [&](NamedPlan named, const Cluster& cluster) {
      if (!turns.takes()) return;
      use_dtype(named.plan, Dtype::kFp32);
      named.plan.shard_optimizer = sharded;
      const TensorsByName expected = after(named.plan, cluster);
      offload(named.plan, model, cluster, {"all"}, "test");
      const TensorsByName got = after(named.plan, cluster);
      ASSERT_EQ(got.size(), expected.size());
      for (const auto& [name, value] : expected) {
        EXPECT_TRUE(at::equal(got.at(name), value)) << name << " " << named.name;
        const at::Tensor begin = values.at(name).to(value.scalar_type());
        EXPECT_EQ(at::equal(value, begin), !is_adapter(name)) << name << " " << named.name;
      }
    });
  }
}

/// Of the pool of random plans.
TEST(AdaptersOnHostsOfRandomPlans, GiveTheGradientsOfTheReference) {
  i64 visits = 0;
  for (u64 seed = 500; seed < 500 + static_cast<u64>(case_count(40, 240)); ++seed) {
    RandomCase c = random_case(seed);
    adapt_on_hosts(c);
    ASSERT_EQ(validate(c.plan, c.model, c.cluster), std::vector<std::string>{}) << describe(c);
    const TensorsByName values = lively(c.model, *c.step.lora);
    Session session = make_session(c.model, c.cluster, c.plan, c.step);
    for (const Op& op : session.schedule().ops) visits += op.kind == OpKind::kFetch && op.state >= 0 ? 1 : 0;
    load(session, values);
    const StepInput input = random_input(c.plan, c.model);
    const StepResult result = session.train_step(input);
    const ReferenceResult reference = reference_of(c.model, *c.step.lora, values, input, aux_of(c.step));
    const Comparison compared = compare(result, session.gradients(), reference);
    EXPECT_LE(compared.max(), kTolerance) << describe(c) << ": " << compared.worst;
  }
  EXPECT_GT(visits, 200);
}

}  // namespace
}  // namespace hetermoe::testing
