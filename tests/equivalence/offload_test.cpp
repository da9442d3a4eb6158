#include "hetermoe/plan/offload.h"

#include <gtest/gtest.h>

#include <array>

#include "hetermoe/train/session/session.h"
#include "tests/support/case_count.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"
#include "tests/support/with_hosts.h"

// What lives on hosts changes no run: no bit where gradients are summed as before, else rounding alone.
namespace hetermoe::testing {
namespace {

struct TrainedOffloaded {
  std::vector<StepResult> steps;
  double validation = 0;
  TensorsByName gradients, values;
};

TrainedOffloaded run_of(const ModelConfig& model, const Cluster& cluster, const Plan& plan) {
  Session session(model, cluster, plan, {{true, 1, true}, {}, {}});
  session.initialize(3);
  TrainedOffloaded run;
  StepInput input = random_input(plan, model);
  input.learning_rate = 1e-2;
  input.max_grad_norm = 0.1;  // every step is clipped, by the norm
  for (int step = 0; step < 5; ++step) run.steps.push_back(session.train_step(input));
  run.gradients = session.gradients();
  run.validation = session.evaluate(input).loss;
  run.values = session.values();
  return run;
}

void expect_same(const TensorsByName& got, const TensorsByName& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (const auto& [name, tensor] : expected) {
    const at::Tensor& other = got.at(name);
    if (tolerance == 0) {
      EXPECT_TRUE(at::equal(other, tensor)) << what << name;
      continue;
    }
    const double scale = tensor.abs().max().item<double>();
    EXPECT_LE((other - tensor).abs().max().item<double>(), tolerance * scale) << what << name;
  }
}

void expect_no_difference(const TrainedOffloaded& expected, const TrainedOffloaded& got, double tolerance,
                          const std::string& what) {
  const auto near = [&](double a, double b) { return std::abs(a - b) <= tolerance * std::abs(b); };
  for (std::size_t step = 0; step < expected.steps.size(); ++step) {
    EXPECT_TRUE(near(got.steps[step].loss, expected.steps[step].loss)) << what << " step " << step;
    EXPECT_TRUE(near(got.steps[step].grad_norm, expected.steps[step].grad_norm)) << what << " step " << step;
  }
  EXPECT_NE(expected.steps.back().loss, expected.steps.front().loss) << "nothing was trained";
  EXPECT_TRUE(near(got.validation, expected.validation)) << what;
  expect_same(got.gradients, expected.gradients, tolerance, what + " gradient of ");
  expect_same(got.values, expected.values, tolerance, what + " ");
}

class Offloaded : public ::testing::TestWithParam<const char*> {};

// Claim (Offloaded.*, OffloadedBits.*): masters and moments on hosts change no bit of losses, norms,
// gradients and weights; weights on hosts change rounding alone, and nothing where a layer comes once
// backward; with 1, 2, 3 slots, with `ahead` and phase W
TEST_P(Offloaded, OptimizerOnTheHostChangesNoBit) {
  const ModelConfig model = load_model(GetParam());
  const Cluster cluster = with_hosts(load_cluster("demo"));
  Turns turns(8);
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
    for (NamedPlan& named : strategy_plans(model, cluster, small_step())) {
      if (!turns.takes()) continue;
      use_dtype(named.plan, dtype);
      const TrainedOffloaded expected = run_of(model, cluster, named.plan);
      for (const char* entry : {"optimizer", "experts.optimizer"}) {
        Plan plan = named.plan;
        offload(plan, model, cluster, {entry}, "test");
        ASSERT_EQ(validate(plan, model, cluster), std::vector<std::string>{}) << named.name;
        expect_no_difference(expected, run_of(model, cluster, plan), 0,
                             fmt::format("{} {} {}", named.name, entry, name_of(dtype)));
      }
    }
  }
}

TEST_P(Offloaded, WeightsOnTheHostChangeRoundingAlone) {
  const ModelConfig model = load_model(GetParam());
  const Cluster cluster = with_hosts(load_cluster("demo"));
  Turns turns(5);
  for (NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    const TrainedOffloaded expected = run_of(model, cluster, named.plan);
    i32 slots = 0;
    for (const std::vector<std::string>& entries : {std::vector<std::string>{"all"},
                                                    {"experts.weights"},
                                                    {"attention.weights", "embed.optimizer"},
                                                    {"optimizer", "layers 1:all"}}) {
      Plan plan = named.plan;
      offload(plan, model, cluster, entries, "test");
      plan.slots = {1 + slots % 3, 1 + (slots + 1) % 3};
      // These change no bit by themselves: they change the order of visits, and which op leaves a gradient.
      if (slots % 2 == 0) {
        plan.recompute = Recompute::kAhead;
        plan.weight_gradients = WeightGradients::kAfter;
      }
      ++slots;
      if (!turns.takes()) continue;
      ASSERT_EQ(validate(plan, model, cluster), std::vector<std::string>{}) << named.name;
      expect_no_difference(expected, run_of(model, cluster, plan), 1e-12,
                           fmt::format("{} {}", named.name, entries.back()));
    }
  }
}

/// Strategies x recomputation x slots; chunks, gradients of weights, dtype and what else is on the host take
/// turns.
TEST_P(Offloaded, SavedActivationsOnTheHostChangeNoBit) {
  const ModelConfig model = load_model(GetParam());
  const Cluster cluster = with_hosts(load_cluster("demo"));
  Turns turns(4);
  i32 turn = 0;
  for (NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    for (const Recompute recompute : {Recompute::kLocal, Recompute::kAhead, Recompute::kResend}) {
      if (!turns.takes()) {
        ++turn;
        continue;
      }
      Plan base = named.plan;
      use_dtype(base,
                std::array{Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}[static_cast<std::size_t>(turn % 3)]);
      base.recompute = recompute;
      base.weight_gradients = turn % 2 == 0 ? WeightGradients::kWith : WeightGradients::kAfter;
      if (turn % 4 == 1) base.chunks = 2;
      const TrainedOffloaded expected = run_of(model, cluster, base);
      for (const i32 slots : {1, 2, 3}) {
        if (!every_case() && slots != 1 + (turn + turn / 3) % 3) continue;
        Plan plan = base;
        const std::vector<std::string> entries =
            slots < 3 ? std::vector<std::string>{"saved"}
                      : std::vector<std::string>{"optimizer", "layers 0:saved"};
        offload(plan, model, cluster, entries, "test");
        plan.slots.saved = slots;
        ASSERT_EQ(validate(plan, model, cluster), std::vector<std::string>{}) << named.name;
        expect_no_difference(expected, run_of(model, cluster, plan), 0,
                             fmt::format("{} {} slots {}", named.name, name_of(recompute), slots));
      }
      ++turn;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Equivalence, Offloaded,
                         ::testing::Values("tiny", "tiny-qwen3", "tiny-deepseek-v3", "tiny-qwen2-moe",
                                           "tiny-gpt-oss"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// Zebra takes every layer once backward: each device has one sum of a state, whether it goes to the host or
/// to the other devices.
TEST(OffloadedBits, ExpertsThatComeOnceBackwardKeepTheirBits) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = with_hosts(load_cluster("demo"));
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16}) {
    Plan plan = find_strategy("zebra").make(model, cluster, small_step());
    use_dtype(plan, dtype);
    const TrainedOffloaded expected = run_of(model, cluster, plan);
    offload(plan, model, cluster, {"optimizer", "experts.weights"}, "test");
    expect_no_difference(expected, run_of(model, cluster, plan), 0, name_of(dtype));
  }
}

}  // namespace
}  // namespace hetermoe::testing
