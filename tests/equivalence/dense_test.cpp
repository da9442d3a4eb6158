#include <gtest/gtest.h>

#include "tests/nn/newer_models.h"
#include "tests/support/error_of.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

// Models without experts: no exchange with experts anywhere, the rest of a step as ever.
namespace hetermoe::testing {
namespace {

StrategyRequest dense_request() {
  StrategyRequest request;
  request.seq_len = 6;
  request.sequences = 5;
  request.microbatches = 2;
  return request;
}

/// One device after another has the whole model, with a microbatch of its own.
Plan make_copies(const ModelConfig& model, const Cluster& cluster) {
  StrategyRequest request = dense_request();
  Plan plan;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    request.attention = {d};
    Plan one = find_strategy("single").make(model, cluster, request);
    one.groups.insert(one.groups.begin(), plan.groups.begin(), plan.groups.end());
    plan = std::move(one);
  }
  plan.strategy = "copies";
  return plan;
}

std::vector<NamedPlan> dense_plans(const ModelConfig& model, const Cluster& cluster) {
  std::vector<NamedPlan> all;
  for (const Strategy& strategy : strategies()) {
    if (strategy.use == DeviceUse::kApart) continue;
    StrategyRequest request = dense_request();
    if (strategy.cut == Cut::kStages)
      request.stages = std::min<i64>(cluster.num_devices(), model.num_layers);  // as many as there can be
    all.push_back({strategy.name, strategy.make(model, cluster, request)});
  }
  all.push_back({"pipeline", make_pipeline(model, cluster, dense_request())});
  all.push_back({"copies", make_copies(model, cluster)});
  all.push_back({"sharded", make_copies(model, cluster)});
  all.back().plan.shard_optimizer = true;
  for (NamedPlan& named : all) use_fp64(named.plan);
  return all;
}

bool is_exchange_with_experts(const Op& op) {
  return op.kind == OpKind::kDispatch || op.kind == OpKind::kExperts || op.kind == OpKind::kCombine ||
         op.kind == OpKind::kBalance;
}

Comparison run_dense(const ModelConfig& model, const Cluster& cluster, const Plan& plan) {
  RigOptions options;
  options.step = {false, 1, true};
  Rig rig(model, cluster, plan, options);
  for (const Op& op : rig.schedule().ops) EXPECT_FALSE(is_exchange_with_experts(op)) << to_string(op);
  const TensorsByName values = lively_values(model);
  rig.load(values);
  const StepInput input = random_input(plan, model);
  const StepResult result = rig.executor().run(input);
  EXPECT_TRUE(rig.differing_replicas().empty()) << plan.strategy;
  return compare(result, rig.gradients(), reference_step(model, values, input.tokens, input.targets, {1}));
}

TEST(DenseModels, EqualTheReferenceByEveryStrategyThatTakesThem) {
  std::vector<ModelConfig> models = tiny_dense_models();
  models.push_back(tiny_qwen2());
  for (const ModelConfig& model : models) {
    for (const i32 num_devices : {1, 2, 3, 4}) {
      const Cluster cluster = make_cluster(num_devices, std::min(num_devices, 3), /*num_nodes=*/1);
      for (NamedPlan& named : dense_plans(model, cluster)) {
        for (const Recompute recompute :
             {Recompute::kOff, Recompute::kLocal, Recompute::kResend, Recompute::kSelect}) {
          named.plan.recompute = recompute;
          const std::vector<std::string> faults = validate(named.plan, model, cluster);
          ASSERT_TRUE(faults.empty()) << named.name << ": " << faults[0];
          const Comparison c = run_dense(model, cluster, named.plan);
          EXPECT_LE(c.max(), 1e-10) << model.name << " " << named.name << " on " << num_devices << ": "
                                    << c.gradient << " of " << c.worst;
        }
      }
    }
  }
}

TEST(DenseModels, StrategiesWithDevicesForExpertsAloneRefuseThem) {
  const Cluster cluster = make_cluster(4);
  for (const Strategy& strategy : strategies()) {
    if (strategy.use != DeviceUse::kApart) continue;
    EXPECT_EQ(error_of<ConfigError>([&] { strategy.make(tiny_llama(), cluster, dense_request()); }),
              "[strategy " + strategy.name +
                  "] model llama has no experts, so the devices for experts alone would have nothing to do: "
                  "expected one of single, ep, ep-overlap, pp-ep, sp-ep");
  }
}

}  // namespace
}  // namespace hetermoe::testing
