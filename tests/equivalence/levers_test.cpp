#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>

#include "hetermoe/kernels/host_kernels.h"
#include "hetermoe/schedule/builder.h"
#include "tests/support/case_count.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

// Recomputation and gradients of weights as ops of their own: the same numbers, to the bit.
namespace hetermoe::testing {
namespace {

StrategyRequest lever_request() {
  StrategyRequest request;
  request.seq_len = 4;
  request.sequences = 6;
  request.microbatches = 2;
  return request;
}

struct Lever {
  Recompute recompute;
  WeightGradients weights;
  std::string name() const {
    return fmt::format("recompute {}, gradients of weights {}", name_of(recompute), name_of(weights));
  }
};

std::vector<Lever> all_levers() {
  std::vector<Lever> all;
  for (int r = 0; r < kEnumCount<Recompute>; ++r) {
    for (int w = 0; w < kEnumCount<WeightGradients>; ++w)
      all.push_back({static_cast<Recompute>(r), static_cast<WeightGradients>(w)});
  }
  return all;
}

void use(Plan& plan, const Lever& lever) {
  plan.recompute = lever.recompute;
  plan.weight_gradients = lever.weights;
}

/// The dense layer of a model that has one in its middle; layers that recompute differently.
void mix(Plan& plan) {
  for (Group& group : plan.groups) {
    for (std::size_t l = 0; l < group.layers.size(); ++l)
      group.layers[l].recompute = static_cast<Recompute>(l % kEnumCount<Recompute>);
  }
}

Comparison run_lever(const ModelConfig& model, const Cluster& cluster, const Plan& plan) {
  RigOptions options;
  options.step = {model.aux_loss_coef > 0, 1, true};
  Rig rig(model, cluster, plan, options);
  const TensorsByName values = lively_values(model);
  rig.load(values);
  const StepInput input = random_input(plan, model);
  const StepResult result = rig.executor().run(input);
  EXPECT_TRUE(rig.differing_replicas().empty());
  return compare(result, rig.gradients(), reference_step(model, values, input.tokens, input.targets, {1}));
}

TEST(Levers, EveryStrategyWithEachEqualsTheReference) {
  const Cluster cluster = make_cluster(4);
  Turns turns(3);
  for (const ModelConfig& model : {tiny_qwen3(), tiny_olmoe(), tiny_deepseek_v3()}) {
    for (const NamedPlan& named : strategy_plans(model, cluster, lever_request())) {
      for (const Lever& lever : all_levers()) {
        if (!turns.takes()) continue;
        Plan plan = named.plan;
        use(plan, lever);
        const Comparison c = run_lever(model, cluster, plan);
        EXPECT_LE(c.max(), kTolerance) << model.name << " " << named.name << " " << lever.name() << ": "
                                       << c.gradient << " of " << c.worst;
      }
      Plan plan = named.plan;
      mix(plan);
      EXPECT_LE(run_lever(model, cluster, plan).max(), kTolerance) << named.name << " mixed";
    }
  }
}

/// What three steps of training leave.
struct TrainedByLever {
  std::vector<double> losses;
  TensorsByName gradients, values;
};

TrainedByLever train_with_lever(const ModelConfig& model, const Cluster& cluster, const Plan& plan) {
  RigOptions options;
  options.step = {model.aux_loss_coef > 0, 1, true};
  Rig rig(model, cluster, plan, options);
  rig.load(lively_values(model));
  TrainedByLever out;
  for (i64 step = 0; step < 3; ++step) {
    StepInput input = random_input(plan, model, static_cast<u64>(step));
    input.step = step;
    input.learning_rate = 2e-3;
    input.max_grad_norm = 0.8;
    const StepResult result = rig.executor().run(input);
    out.losses.insert(out.losses.end(), {result.loss, result.aux_loss, result.grad_norm});
  }
  out.gradients = rig.gradients(), out.values = rig.values();
  return out;
}

std::string first_difference(const TensorsByName& a, const TensorsByName& b) {
  for (const auto& [name, tensor] : a) {
    if (!at::equal(tensor, b.at(name))) return name;
  }
  return a.size() == b.size() ? "" : "number of tensors";
}

void expect_equal_bits(const ModelConfig& model, const Cluster& cluster, const NamedPlan& named,
                       Dtype dtype) {
  Plan plan = named.plan;
  use_dtype(plan, dtype);
  use(plan, {Recompute::kLocal, WeightGradients::kWith});
  const TrainedByLever of_local = train_with_lever(model, cluster, plan);
  use(plan, {Recompute::kOff, WeightGradients::kWith});
  const TrainedByLever of_off = train_with_lever(model, cluster, plan);
  for (const Lever& lever : all_levers()) {
    if (lever.recompute == Recompute::kResend) continue;
    const TrainedByLever& expected = keeps_activations(lever.recompute) ? of_off : of_local;
    use(plan, lever);
    const TrainedByLever got = train_with_lever(model, cluster, plan);
    const std::string what = fmt::format("{} {} {} {}", model.name, named.name, name_of(dtype), lever.name());
    EXPECT_EQ(got.losses, expected.losses) << what;
    EXPECT_EQ(first_difference(got.gradients, expected.gradients), "") << what;
    EXPECT_EQ(first_difference(got.values, expected.values), "") << what;
  }
}

// Claim (Levers.ChangeNoBit*, Levers.StepsOfRandomPlansAreHardlyEverLonger, OneLayer.*): recomputing ahead
// and gradients of weights after those of inputs change no bit of losses, gradients and trained weights; nor
// do they make steps longer, but for anomalies
TEST(Levers, ChangeNoBit) {
  const Cluster cluster = make_cluster(4);
  const std::array dtypes = {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16};
  std::size_t turn = 0;
  Turns turns(4);
  for (const ModelConfig& model : {tiny_qwen3(), tiny_olmoe(), tiny_deepseek_v3()}) {
    for (const NamedPlan& named : strategy_plans(model, cluster, lever_request())) {
      ++turn;
      if (!turns.takes()) continue;
      for (const Dtype dtype : dtypes)
        if (every_case() || dtype == dtypes[turn % dtypes.size()])
          expect_equal_bits(model, cluster, named, dtype);
    }
  }
}

TEST(Levers, ChangeNoBitWithKernelsOfOurOwn) {
  const kernels::HostKernels on;
  const ModelConfig model = tiny_deepseek_v3();
  const Cluster cluster = make_cluster(2);
  for (const NamedPlan& named : strategy_plans(model, cluster, lever_request())) {
    if (named.name == "zebra" || named.name == "ep") expect_equal_bits(model, cluster, named, Dtype::kFp32);
  }
}

/// The same ops in an order in which state `reduced` is reduced before the first gradient of weights.
Schedule reduced_too_early(const Placement& placement, const Schedule& sound, i32 reduced) {
  ScheduleBuilder builder(placement);
  const auto append = [&](OpId op) {
    const Op& what = sound.ops[static_cast<std::size_t>(op)];
    is_compute(what.kind) ? builder.compute(what, device_of(sound.lanes_of(op)[0])) : builder.transfer(what);
  };
  const auto is_reduce = [&](const Op& op) { return op.kind == OpKind::kReduce && op.state == reduced; };
  OpId reduce = 0;
  while (!is_reduce(sound.ops[static_cast<std::size_t>(reduce)])) ++reduce;
  bool done = false;
  for (OpId op = 0; op < sound.num_ops(); ++op) {
    if (op == reduce) continue;
    if (!done && sound.ops[static_cast<std::size_t>(op)].phase == Phase::kWeights)
      append(reduce), done = true;
    append(op);
  }
  return builder.take();
}

/// What an order policy would make that forgets phase W when it says that a state is done.
TEST(Levers, AStateThatIsReducedBeforeTheGradientsOfItsWeightsIsFound) {
  const ModelConfig model = tiny_mixtral();
  const Cluster cluster = make_cluster(4);
  Plan plan = find_strategy("zebra").make(model, cluster, lever_request());
  use_fp64(plan);
  plan.weight_gradients = WeightGradients::kAfter;
  const StepOptions step = {true, 1, true};
  const Placement placement(plan, model, step);
  const Schedule sound = build_schedule(plan, model, step);
  i64 planted = 0;
  for (const Op& op : sound.ops) {
    if (op.kind != OpKind::kReduce || sound.states[static_cast<std::size_t>(op.state)].layer < 0) continue;
    RigOptions options;
    options.step = step;
    options.alter = [&](Schedule& s) { s = reduced_too_early(placement, sound, op.state); };
    Rig rig(model, cluster, plan, options);
    const TensorsByName values = lively_values(model);
    rig.load(values);
    const StepInput input = random_input(plan, model);
    const StepResult result = rig.executor().run(input);
    const Comparison c =
        compare(result, rig.gradients(), reference_step(model, values, input.tokens, input.targets, {1}));
    EXPECT_TRUE(c.max() > 1e-6 || !rig.differing_replicas().empty()) << to_string(op);
    ++planted;
  }
  EXPECT_GE(planted, 2);
}

}  // namespace
}  // namespace hetermoe::testing
