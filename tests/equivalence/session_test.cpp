#include "hetermoe/train/session/session.h"

#include <gtest/gtest.h>

#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

namespace hetermoe::testing {
namespace {

TEST(Session, FreshlyInitializedModelEqualsTheReference) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  const StrategyRequest request = small_step();
  std::vector<TensorsByName> starts;
  for (const NamedPlan& named : strategy_plans(model, cluster, request)) {
    Session session(model, cluster, named.plan, {{true, 1, true}, {}, {}});
    session.initialize(1);
    starts.push_back(session.values());
    for (const auto& [name, value] : starts[0]) EXPECT_TRUE(at::equal(value, starts.back().at(name))) << name;
    const StepInput input = random_input(named.plan, model);
    const StepResult result = session.train_step(input);
    const ReferenceResult expected = reference_step(model, starts[0], input.tokens, input.targets, {1});
    const Comparison c = compare(result, session.gradients(), expected);
    EXPECT_LE(c.max(), 1e-10) << named.name << " " << c.worst;
    // Validation: the loss of a forward-only pass, as a sum over targets.
    const StepResult validation = session.evaluate(input);
    EXPECT_NEAR(validation.loss / static_cast<double>(input.target_count), expected.loss - expected.aux_loss,
                1e-12);
    EXPECT_TRUE(at::equal(validation.counts_LE, result.counts_LE)) << named.name;
  }
  EXPECT_EQ(starts.size(), 14);
}

}  // namespace
}  // namespace hetermoe::testing
