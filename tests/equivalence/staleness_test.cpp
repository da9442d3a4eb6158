#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/train/checkpoint/shared_folder.h"
#include "hetermoe/train/session/session.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"
#include "tests/support/with_hosts.h"

// An optimizer that runs a step late, against plain code that does one thing after another.
namespace hetermoe::testing {
namespace {

constexpr i64 kSteps = 6;
constexpr double kMostNorm = 0.1;  // every step is clipped, by the norm

struct Trained {
  std::vector<double> losses, norms;
  TensorsByName values;
};

std::vector<StepInput> inputs_of(const Plan& plan, const ModelConfig& model) {
  std::vector<StepInput> inputs;
  for (i64 step = 0; step < kSteps; ++step) {
    inputs.push_back(random_input(plan, model, static_cast<u64>(3 + step)));
    inputs.back().step = step;
    inputs.back().learning_rate = 1e-2 / static_cast<double>(1 + step);
    inputs.back().max_grad_norm = kMostNorm;
  }
  return inputs;
}

Session::Options options_of(i64 staleness) {
  Session::Options options{{true, 1, true}, {}, {}};
  options.step.staleness = staleness;
  return options;
}

void set_values(Session& session, const TensorsByName& values) {
  for (DeviceState* state : session.states()) {
    for (const LogicalTensor& view : state->store().tensors())
      at::Tensor(view.value).copy_(values.at(view.name));
  }
}

TensorsByName clones(const TensorsByName& values) {
  TensorsByName out;
  for (const auto& [name, value] : values) out[name] = value.clone();
  return out;
}

/// One step at a time: gradients with the weights of the step before the last, then the update, which only
/// the step after the next will see. The session only computes gradients: its own updates have rate 0.
Trained sequential(const ModelConfig& model, const Cluster& cluster, const Plan& plan) {
  Session session(model, cluster, plan, options_of(0));
  session.initialize(3);
  Trained run;
  TensorsByName newest = clones(session.values()), used = clones(newest);
  std::map<std::string, AdamwState> moments;
  for (const StepInput& wanted : inputs_of(plan, model)) {
    set_values(session, used);
    StepInput input = wanted;
    input.learning_rate = 0;
    input.max_grad_norm = 0;
    const StepResult result = session.train_step(input);
    run.losses.push_back(result.loss);
    run.norms.push_back(result.grad_norm);
    used = clones(newest);
    const double factor = result.grad_norm > kMostNorm ? kMostNorm / result.grad_norm : 1;
    for (const auto& [name, grad] : session.gradients()) {
      std::vector<at::Tensor> value = {newest.at(name)};
      const auto state = moments.try_emplace(name, make_adamw_state(value)).first;
      adamw_update(value, {grad}, state->second, wanted.adamw, wanted.learning_rate, factor);
    }
  }
  run.values = newest;
  return run;
}

/// With as many steps under way as there may be, or one.
Trained lagging(const ModelConfig& model, const Cluster& cluster, const Plan& plan, bool overlap,
                std::function<void(const Op&, DeviceId)> before_op = {}) {
  Session::Options options = options_of(1);
  options.executor.before_op = std::move(before_op);
  Session session(model, cluster, plan, options);
  session.initialize(3);
  EXPECT_TRUE(session.may_overlap());
  Trained run;
  const auto end = [&] {
    const StepResult result = session.end_step();
    run.losses.push_back(result.loss);
    run.norms.push_back(result.grad_norm);
  };
  const std::vector<StepInput> inputs = inputs_of(plan, model);
  for (std::size_t step = 0; step < inputs.size(); ++step) {
    session.begin_step(inputs[step]);
    if (overlap && step == 0) continue;
    end();
  }
  if (overlap) end();
  run.values = session.values();
  return run;
}

void expect_equal(const Trained& got, const Trained& expected, const std::string& what) {
  EXPECT_EQ(got.losses, expected.losses) << what;
  EXPECT_EQ(got.norms, expected.norms) << what;
  ASSERT_EQ(got.values.size(), expected.values.size()) << what;
  for (const auto& [name, value] : expected.values)
    EXPECT_TRUE(at::equal(got.values.at(name), value)) << what << " " << name;
}

std::vector<NamedPlan> lagging_plans(const ModelConfig& model, const Cluster& cluster) {
  std::vector<NamedPlan> plans = strategy_plans(model, cluster, small_step());
  for (NamedPlan& named : plans) offload(named.plan, model, cluster, {"all"}, "test");
  return plans;
}

TEST(Staleness, WeightsAreThoseOfASequentialRun) {
  const Cluster cluster = with_hosts(load_cluster("demo"));
  for (const char* name : {"tiny", "tiny-deepseek-v3"}) {
    const ModelConfig model = load_model(name);
    for (const NamedPlan& named : lagging_plans(model, cluster)) {
      const bool few = name != std::string("tiny");  // of the others one that trades devices is enough
      if (few && named.name != "alternating" && named.name != "groups") continue;
      const Trained expected = sequential(model, cluster, named.plan);
      EXPECT_EQ(expected.losses[0] == expected.losses[1], false);  // other data
      const std::string what = std::string(name) + " " + named.name;
      expect_equal(lagging(model, cluster, named.plan, false), expected, what + " one by one");
      expect_equal(lagging(model, cluster, named.plan, true), expected, what + " overlapping");
    }
  }
}

TEST(Staleness, OtherDtypesKeepTheirBitsToo) {
  const Cluster cluster = with_hosts(load_cluster("demo"));
  const ModelConfig model = load_model("tiny");
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
    Plan plan = find_strategy("zebra").make(model, cluster, small_step());
    use_dtype(plan, dtype);
    offload(plan, model, cluster, {"all"}, "test");
    expect_equal(lagging(model, cluster, plan, true), sequential(model, cluster, plan), name_of(dtype));
  }
}

/// Whatever is late, no op reads what another step left or has already written.
TEST(Staleness, DelaysChangeNothing) {
  const Cluster cluster = with_hosts(load_cluster("demo"));
  const ModelConfig model = load_model("tiny");
  const std::vector<NamedPlan> plans = lagging_plans(model, cluster);
  std::vector<Trained> expected;
  for (const NamedPlan& named : plans) expected.push_back(sequential(model, cluster, named.plan));
  for (u64 seed = 0; seed < 20; ++seed) {
    const std::size_t which = seed % plans.size();
    const auto delay = [seed](const Op& op, DeviceId device) {
      thread_local std::mt19937_64 generator(seed * 1000 + static_cast<u64>(device) * 31 + idx(op.kind));
      // Few ops wait long: so whole lanes fall behind.
      if (generator() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(generator() % 2000));
    };
    expect_equal(lagging(model, cluster, plans[which].plan, true, delay), expected[which],
                 fmt::format("{} seed {}", plans[which].name, seed));
  }
}

/// Turns of one node: the device that comes next takes the next layers, so lanes of a device run ahead.
TEST(Staleness, RoundRobinTurnsKeepTheBits) {
  const ModelConfig model = load_model("tiny");
  Cluster cluster = make_cluster(3, 1, 1);
  cluster.nodes[0].host = NodeHost{.memory_gib = 64};
  StrategyRequest request = small_step();
  request.sequences = 8;
  request.microbatches = 8;
  Plan plan = find_strategy("roundpipe").make(model, cluster, request);
  use_fp64(plan);
  offload(plan, model, cluster, {"all"}, "test");
  const Trained expected = sequential(model, cluster, plan);
  for (int trial = 0; trial < 3; ++trial)
    expect_equal(lagging(model, cluster, plan, true), expected, fmt::format("trial {}", trial));
}

/// A slow optimizer is what the lag hides: here its first update does not end before the next step has
/// reached the head, for which a step without a lag would wait in vain.
TEST(Staleness, TheNextStepComputesWhileTheOptimizerWorks) {
  const Cluster cluster = with_hosts(load_cluster("demo"));
  const ModelConfig model = load_model("tiny");
  const Plan plan = lagging_plans(model, cluster)[0].plan;
  std::atomic<i64> updates = 0, heads = 0;
  std::atomic<bool> overlaps = false;
  const auto watch = [&](const Op& op, DeviceId) {
    if (op.kind == OpKind::kUpdate && updates++ == 0) overlaps = wait_until([&] { return heads > 1; }, 30);
    if (op.kind == OpKind::kHead && op.microbatch == 0 && op.group == 0) ++heads;
  };
  lagging(model, cluster, plan, true, watch);
  EXPECT_EQ(heads, kSteps);
  EXPECT_TRUE(overlaps);
}

/// Gradient descent on w^2 / 2 with rate 1/2 from 1, by the ops' own arithmetic: publish, take, update.
TEST(StalenessGolden, WeightsOfAQuadraticLoss) {
  const auto used = [](bool lags) {
    StateTensors state;
    state.values = {at::ones({1}, at::kDouble)};
    state.grads = {at::zeros({1}, at::kDouble)};
    if (lags) {
      state.published = {state.values[0].clone()};
      state.taken = {at::zeros({1}, at::kDouble)};
    }
    std::vector<double> weights;
    for (int step = 0; step < 8; ++step) {
      const at::Tensor& fetched = lags ? state.published[0] : state.values[0];
      weights.push_back(fetched.item<double>());
      state.grads[0].add_(fetched);  // the gradient of w^2 / 2
      if (lags) {
        state.publish();
        state.take_grads();
        EXPECT_EQ(state.grads[0].item<double>(), 0);
      }
      state.values[0].sub_(state.summed()[0], 0.5);
      if (!lags) state.grads[0].zero_();
    }
    return weights;
  };
  EXPECT_EQ(used(true), (std::vector<double>{1, 1, 0.5, 0, -0.25, -0.25, -0.125, 0}));
  EXPECT_EQ(used(false), (std::vector<double>{1, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125}));
}

}  // namespace
}  // namespace hetermoe::testing
