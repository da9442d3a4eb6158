#include <gtest/gtest.h>

#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

// Answers alone are counted: the loss is the mean over the counted targets of the whole step, however few a
// microbatch or a device has.
namespace hetermoe::testing {
namespace {

/// Counted are: nothing of the first half of the sequences but one token, much of some, little of others. So
/// there are microbatches, devices and groups with nothing to learn.
StepInput answers_only(const Plan& plan, const ModelConfig& model) {
  StepInput input = random_input(plan, model);
  const i64 sequences = input.targets.size(0), seq_len = input.targets.size(1);
  at::Tensor counted = at::zeros_like(input.targets);
  counted[0][seq_len / 2] = 1;
  for (i64 s = (sequences + 1) / 2; s < sequences; ++s)
    counted[s].narrow(0, s % seq_len, seq_len - s % seq_len).fill_(1);
  input.targets.masked_fill_(counted.eq(0), -100);
  input.target_count = input.targets.ne(-100).sum().item<i64>();
  return input;
}

ReferenceResult expect_reference(const ModelConfig& model, const Cluster& cluster, const NamedPlan& named) {
  RigOptions options;
  options.step = {model.aux_loss_coef > 0, 1, true};
  Rig rig(model, cluster, named.plan, options);
  const TensorsByName values = lively_values(model);
  rig.load(values);
  const StepInput input = answers_only(named.plan, model);
  const StepResult result = rig.executor().run(input);
  EXPECT_TRUE(rig.differing_replicas().empty()) << named.name;
  ReferenceResult expected = reference_step(model, values, input.tokens, input.targets, {1});
  const Comparison comparison = compare(result, rig.gradients(), expected);
  EXPECT_LE(comparison.max(), kTolerance) << model.name << " " << named.name << ": " << comparison.worst;
  return expected;
}

// Claim (LossMask.*, Conversations.*, Mpi.Conversations*): loss of answers alone: the mean over the counted
// targets of the step, where microbatches, devices and groups have few or none
TEST(LossMask, EqualsTheReferenceUnderEveryStrategy) {
  const Cluster cluster = make_cluster(4, 3);
  for (const char* name : {"tiny", "tiny-qwen3", "tiny-deepseek-v2"}) {
    const ModelConfig model = load_model(name);
    for (const NamedPlan& named : strategy_plans(model, cluster, small_step()))
      expect_reference(model, cluster, named);
  }
}

TEST(LossMask, EqualsTheReferenceWithEveryLever) {
  const Cluster cluster = make_cluster(4, 3);
  const ModelConfig model = load_model("tiny-qwen3");
  for (int r = 0; r < kEnumCount<Recompute>; ++r) {
    Plan plan = find_strategy(r % 2 == 0 ? "zebra" : "ep").make(model, cluster, small_step());
    use_fp64(plan);
    plan.recompute = static_cast<Recompute>(r);
    plan.chunks = 1 + r;
    plan.weight_gradients = r % 2 == 0 ? WeightGradients::kAfter : WeightGradients::kWith;
    expect_reference(model, cluster, {name_of(plan.recompute), plan});
  }
}

/// What the tests above would not let pass: a mean of the means of microbatches.
TEST(LossMask, AMeanOfMeansIsAnotherLoss) {
  const ModelConfig model = load_model("tiny");
  Plan plan = find_strategy("single").make(model, make_cluster(1), small_step());
  const TensorsByName values = lively_values(model);
  const StepInput input = answers_only(plan, model);
  double whole = 0, sum = 0, parts = 0;
  const auto loss_of = [&](i64 first, i64 count) {
    const at::Tensor targets = input.targets.narrow(0, first, count);
    const ReferenceResult result =
        reference_step(model, values, input.tokens.narrow(0, first, count), targets, {1});
    return result.loss - result.aux_loss;
  };
  whole = loss_of(0, input.targets.size(0));
  for (i64 first = 0; first < input.targets.size(0); first += 2) {
    if (input.targets.narrow(0, first, 2).ne(-100).any().item<bool>()) sum += loss_of(first, 2), ++parts;
  }
  EXPECT_GT(parts, 1);
  EXPECT_GT(std::abs(sum / parts - whole), 1e-3);
}

}  // namespace
}  // namespace hetermoe::testing
