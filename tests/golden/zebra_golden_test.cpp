#include <gtest/gtest.h>

#include "tests/golden/constant_cost.h"
#include "tests/schedule/plans.h"

// Worked examples of zebra parallelism: HeterMoE (arXiv 2504.03871), section on Asym-EA, and full iterations
// counted by hand from the same rules.
namespace hetermoe {
namespace {

using test::ConstantCost, test::make_cluster, test::make_model, test::make_zebra_plan, test::SimulatedPlan;
using Gaps = std::vector<std::pair<Seconds, Seconds>>;

/// Times in units of the paper's figure: attention 3, experts 4 on either side, transfers 1, 6 experts, 3
/// layers, 3 microbatches, one device per role. Forward only.
SimulatedPlan worked_example(const std::vector<i64>& experts_moved) {
  const ModelConfig model = make_model({.num_layers = 3, .num_experts = 6});
  const Cluster cluster = make_cluster({1, 1});
  const Plan plan = make_zebra_plan(model, cluster, {1, 1, 3, experts_moved});
  return test::simulate_worked_example(plan, model, cluster);
}

// Claim (WorkedExample.*, FullIteration.*): the paper's worked example and full iterations
TEST(WorkedExample, ForwardTimeDependsOnTheMovedExperts) {
  EXPECT_NEAR(worked_example({0, 0, 0}).last_end(OpKind::kExperts), 40, 1e-9);
  EXPECT_NEAR(worked_example({0, 1, 1}).last_end(OpKind::kExperts), 36, 1e-9);
  EXPECT_NEAR(worked_example({1, 1, 1}).last_end(OpKind::kExperts), 36, 1e-9);
  EXPECT_NEAR(worked_example({0, 1, 0}).last_end(OpKind::kExperts), 38, 1e-9);
  EXPECT_NEAR(worked_example({0, 0, 1}).last_end(OpKind::kExperts), 38, 1e-9);
}

void expect_gaps(const Gaps& got, const Gaps& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i].first, expected[i].first, 1e-9);
    EXPECT_NEAR(got[i].second, expected[i].second, 1e-9);
  }
}

TEST(WorkedExample, MovedExpertsFillTheGapsOfTheAttentionDevice) {
  expect_gaps(worked_example({0, 0, 0}).gaps(0, OpKind::kAttention),
              {{12, 13}, {16, 17}, {20, 21}, {24, 25}, {28, 29}});
  expect_gaps(worked_example({0, 1, 1}).gaps(0, OpKind::kAttention), {{12, 13}, {16, 17}});
}

TEST(WorkedExample, TooManyMovedExpertsLeaveTheExpertDeviceIdle) {
  expect_gaps(worked_example({0, 0, 0}).gaps(1, OpKind::kExperts), {});
  expect_gaps(worked_example({1, 1, 1}).gaps(1, OpKind::kExperts), {{14, 15}, {25, 26}});
}

struct Iteration {
  i64 layers, microbatches;
  Seconds attention, experts, transfer, tail;
  Seconds by_direction, by_name;  // expected steps
};

class FullIteration : public ::testing::TestWithParam<Iteration> {
 protected:
  Seconds step(QueueBinding binding) const {
    const Iteration& i = GetParam();
    const ModelConfig model = make_model({.num_layers = i.layers});
    const Cluster cluster = make_cluster({1, 1});
    Plan plan = make_zebra_plan(model, cluster, {1, 1, i.microbatches});
    plan.queue_binding = binding;
    ConstantCost cost;
    cost.attention = i.attention;
    cost.experts = i.experts;
    cost.transfer_time = i.transfer;
    cost.tail = i.tail;
    cost.num_experts = model.num_experts;
    return test::simulate(plan, model, cluster, cost).times.step;
  }
};

TEST_P(FullIteration, StepByDirection) {
  EXPECT_NEAR(step(QueueBinding::kDirection), GetParam().by_direction, 1e-9);
}
TEST_P(FullIteration, StepByName) { EXPECT_NEAR(step(QueueBinding::kName), GetParam().by_name, 1e-9); }

INSTANTIATE_TEST_SUITE_P(
    Zebra, FullIteration,
    ::testing::Values(Iteration{2, 2, 3, 4, 1, 1, 61, 62}, Iteration{3, 3, 3, 4, 1, 1, 119, 121},
                      Iteration{4, 4, 3, 4, 1, 1, 203, 205}, Iteration{3, 4, 4, 4, 1, 1, 158, 160},
                      Iteration{3, 4, 5, 4, 1, 1, 194, 196}, Iteration{8, 6, 3, 4, 1, 1, 587, 589}));

}  // namespace
}  // namespace hetermoe
