#include <gtest/gtest.h>

#include "hetermoe/train/session.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

// A sharded optimizer changes no bit of a run.
namespace hetermoe::testing {
namespace {

struct Run {
  std::vector<StepResult> steps;
  TensorsByName gradients, values;
  i64 bytes = 0;  ///< of all that outlives a step, on all devices
};

Run run_of(const ModelConfig& model, const Cluster& cluster, const Plan& plan) {
  Session session(model, cluster, plan, {{true, 1, true}, {}, {}});
  session.initialize(3);
  Run run;
  StepInput input = random_input(plan, model);
  input.learning_rate = 1e-2;
  input.max_grad_norm = 0.1;  // every step is clipped, by the norm
  for (int step = 0; step < 5; ++step) run.steps.push_back(session.train_step(input));
  run.gradients = session.gradients();
  run.values = session.values();
  for (DeviceState* state : session.states()) run.bytes += state->store().bytes();
  return run;
}

void expect_equal(const TensorsByName& got, const TensorsByName& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(got.at(name), tensor)) << what << name;
}

/// Returns whether some state of the plan is divided.
bool expect_no_difference(const ModelConfig& model, const Cluster& cluster, Plan plan,
                          const std::string& what) {
  const Run whole = run_of(model, cluster, plan);
  plan.shard_optimizer = true;
  EXPECT_EQ(validate(plan, model, cluster), std::vector<std::string>{}) << what;
  const Run sharded = run_of(model, cluster, plan);
  for (std::size_t step = 0; step < whole.steps.size(); ++step) {
    EXPECT_EQ(sharded.steps[step].loss, whole.steps[step].loss) << what << " step " << step;
    EXPECT_EQ(sharded.steps[step].grad_norm, whole.steps[step].grad_norm) << what << " step " << step;
    EXPECT_TRUE(sharded.steps[step].updated);
  }
  EXPECT_NE(whole.steps.back().loss, whole.steps.front().loss) << "nothing was trained";
  expect_equal(sharded.gradients, whole.gradients, what + " gradient of ");
  expect_equal(sharded.values, whole.values, what + " ");
  EXPECT_LE(sharded.bytes, whole.bytes) << what;
  return sharded.bytes < whole.bytes;
}

class ShardedOptimizer : public ::testing::TestWithParam<const char*> {};

TEST_P(ShardedOptimizer, ChangesNoBit) {
  const ModelConfig model = load_model(GetParam());
  const Cluster cluster = load_cluster("demo");
  i64 divided = 0;
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
    for (NamedPlan& named : strategy_plans(model, cluster, small_step())) {
      use_dtype(named.plan, dtype);
      const std::string what = fmt::format("{} {}", named.name, name_of(dtype));
      divided += expect_no_difference(model, cluster, named.plan, what) ? 1 : 0;
    }
  }
  EXPECT_GE(divided, 3 * 6) << "most plans have replicas";
}

INSTANTIATE_TEST_SUITE_P(Equivalence, ShardedOptimizer,
                         ::testing::Values("tiny", "tiny-qwen3", "tiny-deepseek-v3"), [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace hetermoe::testing
