#pragma once
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

namespace hetermoe::testing {

/// Runs a step of the plan in fp64, on equal weights and random tokens, and compares it with that of one
/// device. change: of the random input, before both have it.
inline Comparison against_reference(const ModelConfig& model, const Cluster& cluster, Plan plan,
                                    const std::function<void(StepInput&)>& change = {}) {
  use_fp64(plan);
  EXPECT_EQ(validate(plan, model, cluster), std::vector<std::string>{});
  RigOptions options;
  options.step = {model.aux_loss_coef > 0 && model.num_moe_layers() > 0, 1, true};
  Rig rig(model, cluster, plan, options);
  EXPECT_EQ(validate(rig.schedule(), plan, model, options.step), std::vector<std::string>{});
  const TensorsByName values = lively_values(model);
  rig.load(values);
  StepInput input = random_input(plan, model);
  if (change) change(input);
  const StepResult result = rig.executor().run(input);
  EXPECT_TRUE(rig.differing_replicas().empty());
  return compare(result, rig.gradients(),
                 reference_step(model, values, input.tokens, input.targets, aux_of(options.step), {},
                                input.starts, input.router));
}

}  // namespace hetermoe::testing
