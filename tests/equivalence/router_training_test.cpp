#include <gtest/gtest.h>

#include "hetermoe/kernels/host_kernels.h"
#include "hetermoe/nn/router_jitter.h"
#include "tests/support/rig.h"
#include "tests/support/tally_plan.h"

// z-loss, jitter and capacity under every strategy: what the reference computes token by token.
namespace hetermoe::testing {
namespace {

struct Setting {
  std::string name;
  RouterTraining router;
};

std::vector<Setting> settings() {
  return {{"z-loss", {.z_loss = 0.01}},
          {"jitter", {.jitter = 0.2, .seed = 5, .step = 3, .first_sequence = 40}},
          {"capacity", {.capacity_factor = 0.8}}};
}

Setting all_together() { return {"all", {.z_loss = 0.02, .jitter = 0.1, .capacity_factor = 0.8, .seed = 9}}; }

struct RanWithRouter {
  StepResult result;
  Comparison comparison;
  ReferenceResult expected;
};

RanWithRouter run_with_router(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                              const RouterTraining& router) {
  RigOptions options;
  options.step = {model.aux_loss_coef > 0, 1, true};
  Rig rig(model, cluster, plan, options);
  const TensorsByName values = lively_values(model);
  rig.load(values);
  StepInput input = random_input(plan, model);
  input.router = router;
  RanWithRouter out;
  out.result = rig.executor().run(input);
  EXPECT_TRUE(rig.differing_replicas().empty());
  out.expected = reference_step(model, values, input.tokens, input.targets, {1}, {}, {}, router);
  out.comparison = compare(out.result, rig.gradients(), out.expected);
  return out;
}

/// Returns the loss.
double expect_router_reference(const ModelConfig& model, const Cluster& cluster, const NamedPlan& named,
                               const Setting& setting) {
  const RanWithRouter ran = run_with_router(model, cluster, named.plan, setting.router);
  const std::string what = model.name + " " + named.name + " " + setting.name;
  EXPECT_LE(ran.comparison.max(), kTolerance) << what << ": " << ran.comparison.worst;
  const i64 dropped = ran.result.dropped_L.sum().item<i64>();
  EXPECT_EQ(dropped > 0, setting.router.capacity_factor > 0) << what;
  EXPECT_LT(dropped, ran.result.counts_LE.sum().item<i64>()) << what;
  return ran.expected.loss;
}

Plan plan_of(const char* strategy, const ModelConfig& model, const Cluster& cluster) {
  Plan plan = find_strategy(strategy).make(model, cluster, small_step());
  use_fp64(plan);
  return plan;
}

TEST(RouterTraining, EachSettingEqualsTheReferenceAndChangesTheLoss) {
  const Cluster cluster = make_cluster(4, 3);
  const ModelConfig model = load_model("tiny-qwen3");
  const NamedPlan zebra{"zebra", plan_of("zebra", model, cluster)};
  const double plain = expect_router_reference(model, cluster, zebra, {"none", {}});
  for (const Setting& setting : settings())
    EXPECT_GT(std::abs(expect_router_reference(model, cluster, zebra, setting) - plain), 1e-6)
        << setting.name;
}

TEST(RouterTraining, EqualsTheReferenceUnderEveryStrategy) {
  const Cluster cluster = make_cluster(4, 3);
  for (const ModelConfig& model :
       {load_model("tiny"), load_model("tiny-qwen3"), load_model("tiny-deepseek-v3")}) {
    for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
      Setting setting = all_together();
      if (has_teams(named.plan))
        setting.router.capacity_factor = 0;  // refused: no device has whole sequences
      expect_router_reference(model, cluster, named, setting);
    }
  }
}

TEST(RouterTraining, EqualsTheReferenceWithEveryLever) {
  const Cluster cluster = make_cluster(4, 3);
  const ModelConfig model = load_model("tiny-qwen3");
  for (int r = 0; r < kEnumCount<Recompute>; ++r) {
    Plan plan = plan_of("zebra", model, cluster);
    plan.recompute = static_cast<Recompute>(r);
    plan.chunks = 1 + r;
    plan.weight_gradients = r % 2 == 0 ? WeightGradients::kWith : WeightGradients::kAfter;
    expect_router_reference(model, cluster, {name_of(plan.recompute), plan}, all_together());
  }
  Plan tallied = plan_of("ep", model, cluster);
  use_lplb(tallied, model);
  expect_router_reference(model, cluster, {"tally", tallied}, all_together());
}

TEST(RouterTraining, EqualsTheReferenceWithKernelsOfOurOwn) {
  const kernels::HostKernels on;
  const Cluster cluster = make_cluster(4, 3);
  const ModelConfig model = load_model("tiny-qwen3");
  for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    if (named.name == "zebra" || named.name == "replicas")
      expect_router_reference(model, cluster, named, all_together());
  }
}

/// What one device and many compute of the same tokens, to the last bit of what was routed.
TEST(RouterTraining, DropsTheSameCopiesWhateverThePlan) {
  const Cluster cluster = make_cluster(4, 3);
  const ModelConfig model = load_model("tiny-qwen3");
  const RouterTraining router = {.jitter = 0.2, .capacity_factor = 0.8, .seed = 3};
  at::Tensor dropped;
  for (const NamedPlan& named : strategy_plans(model, cluster, small_step())) {
    if (named.name == "groups") continue;  // it has more sequences
    if (has_teams(named.plan)) continue;   // capacity is refused
    const RanWithRouter ran = run_with_router(model, cluster, named.plan, router);
    if (!dropped.defined()) dropped = ran.result.dropped_L;
    EXPECT_TRUE(at::equal(ran.result.dropped_L, dropped)) << named.name;
  }
}

TEST(RouterTraining, ScaledLossesGiveTheSameGradients) {
  const Cluster cluster = make_cluster(2);
  const ModelConfig model = load_model("tiny-qwen3");
  Plan plan = find_strategy("ep").make(model, cluster, small_step());
  use_fp64(plan);
  const TensorsByName values = lively_values(model);
  double norm = 0, aux = 0;
  for (const double scale : {1.0, 1024.0}) {
    RigOptions options;
    options.step = {true, 1, true};
    Rig rig(model, cluster, plan, options);
    rig.load(values);
    StepInput input = random_input(plan, model);
    input.router.z_loss = 0.5;
    input.loss_scale = scale;
    const StepResult result = rig.executor().run(input);
    if (norm == 0) norm = result.grad_norm, aux = result.aux_loss;
    EXPECT_NEAR(result.grad_norm, norm, 1e-10 * norm);
    EXPECT_NEAR(result.aux_loss, aux, 1e-10 * aux);
  }
}

TEST(RouterTraining, JitterIsWithinItsBoundsAndNewForEachTokenLayerAndStep) {
  const ModelConfig model = load_model("tiny");
  const at::TensorOptions options = at::kDouble;
  const RouterTraining router = {.jitter = 0.25, .seed = 1, .step = 2, .first_sequence = 7};
  const auto of = [&](RouterTraining with, i64 layer, i64 first) {
    return jittered(at::ones({64, model.hidden}, options), router_jitter(with, layer, first, 0, 64),
                    at::kDouble);
  };
  const at::Tensor factors = of(router, 0, 0);
  EXPECT_GE(factors.min().item<double>(), 0.75);
  EXPECT_LE(factors.max().item<double>(), 1.25);
  EXPECT_NEAR(factors.mean().item<double>(), 1, 0.02);
  EXPECT_NEAR(factors.std().item<double>(), 0.25 / std::sqrt(3.0), 0.01);
  RouterTraining other = router;
  other.step = 3;
  EXPECT_FALSE(at::equal(factors, of(other, 0, 0)));
  EXPECT_FALSE(at::equal(factors, of(router, 1, 0)));
  EXPECT_FALSE(at::equal(factors, of(router, 0, 1)));
  other = router;
  other.first_sequence = 6;
  EXPECT_TRUE(at::equal(factors, of(other, 0, 1))) << "the sequence counts, not its place in the step";
}

TEST(RouterTraining, AFullExpertDropsTheLaterTokens) {
  const at::Tensor topk =
      at::tensor({0, 1, 0, 2, 1, 0, /* next sequence */ 3, 0, 2, 0, 1, 0}, at::kLong).view({6, 2});
  const at::Tensor kept = within_capacity(topk, 3, 2);
  EXPECT_TRUE(at::equal(kept.view({-1}), at::tensor({0, 1, 0, 2, 1, -1, 3, 0, 2, 0, 1, -1}, at::kLong)))
      << kept;
  EXPECT_TRUE(at::equal(within_capacity(topk, 3, 3), topk));
}

}  // namespace
}  // namespace hetermoe::testing
