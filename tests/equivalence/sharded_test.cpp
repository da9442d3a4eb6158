#include <gtest/gtest.h>

#include <array>
#include <map>

#include "hetermoe/plan/offload.h"
#include "hetermoe/train/session/session.h"
#include "tests/support/case_count.h"
#include "tests/support/fast_nodes.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

// A sharded optimizer changes no bit of a run; sharded weights change none where a state has one backward
// visit.
namespace hetermoe::testing {
namespace {

struct TrainedSharded {
  std::vector<StepResult> steps;
  double validation = 0;
  TensorsByName gradients, values;
  i64 bytes = 0;  ///< of all that outlives a step, on all devices
};

TrainedSharded run_sharded(const ModelConfig& model, const Cluster& cluster, const Plan& plan) {
  Session session(model, cluster, plan, {{true, 1, true}, {}, {}});
  session.initialize(3);
  TrainedSharded run;
  StepInput input = random_input(plan, model);
  input.learning_rate = 1e-2;
  input.max_grad_norm = 0.1;  // every step is clipped, by the norm
  for (int step = 0; step < 5; ++step) run.steps.push_back(session.train_step(input));
  run.gradients = session.gradients();
  run.validation = session.evaluate(input).loss;
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
  const TrainedSharded whole = run_sharded(model, cluster, plan);
  plan.shard_optimizer = true;
  EXPECT_EQ(validate(plan, model, cluster), std::vector<std::string>{}) << what;
  const TrainedSharded sharded = run_sharded(model, cluster, plan);
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

/// Of one model sums go at once, of the others in two levels.
Cluster cluster_for(const ModelConfig& model) {
  return model.name == "tiny" ? load_cluster("demo") : with_fast_nodes("demo");
}

class ShardedOptimizer : public ::testing::TestWithParam<const char*> {};

TEST_P(ShardedOptimizer, ChangesNoBit) {
  const ModelConfig model = load_model(GetParam());
  const Cluster cluster = cluster_for(model);
  i64 divided = 0;
  Turns turns(4);
  for (const auto& [dtype, master] :
       {std::pair(Dtype::kFp64, Master::kFp32), std::pair(Dtype::kFp32, Master::kFp32),
        std::pair(Dtype::kBf16, Master::kFp32), std::pair(Dtype::kBf16, Master::kNone)}) {
    for (NamedPlan& named : strategy_plans(model, cluster, small_step())) {
      if (!turns.takes()) continue;
      use_dtype(named.plan, dtype);
      named.plan.master = master;
      if (master == Master::kNone) named.plan.moments_dtype = Dtype::kBf16;
      const std::string what = fmt::format("{} {} master {}", named.name, name_of(dtype), name_of(master));
      divided += expect_no_difference(model, cluster, named.plan, what) ? 1 : 0;
    }
  }
  EXPECT_GE(divided, case_count(1, 4) * 6) << "most plans have replicas";
}

/// The most gradients that a step reduces of one state: one for each visit.
i64 most_backward_visits(const ModelConfig& model, const Plan& plan) {
  std::map<i32, i64> visits;
  i64 most = 0;
  for (const Op& op : build_schedule(plan, model).ops) {
    if (op.kind == OpKind::kReduceScatter) most = std::max(most, ++visits[op.state]);
  }
  return most;
}

void expect_near(const TensorsByName& got, const TensorsByName& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (const auto& [name, tensor] : expected) {
    const double scale = tensor.abs().max().item<double>();
    EXPECT_LE((got.at(name) - tensor).abs().max().item<double>(), 1e-12 * scale) << what << name;
  }
}

void expect_as_whole(const TrainedSharded& whole, const TrainedSharded& gathered, bool bits,
                     const std::string& what) {
  const auto near = [&](double a, double b) { return std::abs(a - b) <= (bits ? 0 : 1e-12) * std::abs(b); };
  for (std::size_t step = 0; step < whole.steps.size(); ++step) {
    EXPECT_TRUE(near(gathered.steps[step].loss, whole.steps[step].loss)) << what << " step " << step;
    EXPECT_TRUE(near(gathered.steps[step].grad_norm, whole.steps[step].grad_norm))
        << what << " step " << step;
  }
  EXPECT_NE(whole.steps.back().loss, whole.steps.front().loss) << "nothing was trained";
  EXPECT_TRUE(near(gathered.validation, whole.validation)) << what;
  const auto same = bits ? expect_equal : expect_near;
  same(gathered.gradients, whole.gradients, what + " gradient of ");
  same(gathered.values, whole.values, what + " ");
}

class ShardedWeights : public ::testing::TestWithParam<const char*> {};

/// Recomputation, gradients of weights, chunks, slots and dtypes take turns: these change no bit by
/// themselves, but the order of visits, and which op leaves a gradient.
TEST_P(ShardedWeights, ChangeNoBitWhereThereIsOneBackwardVisit) {
  const ModelConfig model = load_model(GetParam());
  const Cluster cluster = cluster_for(model);
  i64 turn = 0, divided = 0, same_bits = 0;
  for (const i64 microbatches : {1, 2}) {
    StrategyRequest request = small_step();
    request.microbatches = microbatches;
    for (NamedPlan& named : strategy_plans(model, cluster, request)) {
      Plan whole = named.plan;
      whole.recompute = std::array{Recompute::kLocal, Recompute::kAhead, Recompute::kResend, Recompute::kOff,
                                   Recompute::kSelect}[static_cast<std::size_t>(turn % 5)];
      whole.weight_gradients = turn % 2 == 0 ? WeightGradients::kWith : WeightGradients::kAfter;
      if (turn % 3 == 2) whole.chunks = 2;
      Plan plan = whole;
      shard_weights(plan);
      plan.slots.attention = static_cast<i32>(1 + turn % 3);
      const bool bits = most_backward_visits(model, plan) <= 1;
      const Dtype dtype =
          bits ? std::array{Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}[static_cast<std::size_t>(turn % 3)]
               : Dtype::kFp64;
      use_dtype(whole, dtype), use_dtype(plan, dtype);
      const std::string what = fmt::format("{} {} microbatches {}", named.name, microbatches, name_of(dtype));
      EXPECT_EQ(validate(plan, model, cluster), std::vector<std::string>{}) << what;
      const TrainedSharded expected = run_sharded(model, cluster, whole),
                           got = run_sharded(model, cluster, plan);
      expect_as_whole(expected, got, bits, what);
      divided += got.bytes < expected.bytes ? 1 : 0;
      same_bits += bits ? 1 : 0;
      ++turn;
    }
  }
  EXPECT_GE(divided, 2 * 6) << "most plans have replicas";
  EXPECT_GE(same_bits, 6);
  EXPECT_LT(same_bits, turn);
}

std::string name_of_model(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Equivalence, ShardedOptimizer,
                         ::testing::Values("tiny", "tiny-qwen3", "tiny-deepseek-v3", "tiny-qwen2-moe",
                                           "tiny-ernie"),
                         name_of_model);
INSTANTIATE_TEST_SUITE_P(Equivalence, ShardedWeights,
                         ::testing::Values("tiny", "tiny-qwen3", "tiny-deepseek-v3", "tiny-qwen2-moe",
                                           "tiny-ernie"),
                         name_of_model);

}  // namespace
}  // namespace hetermoe::testing
