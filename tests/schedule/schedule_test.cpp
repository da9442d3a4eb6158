#include "hetermoe/schedule/schedule.h"

#include <gtest/gtest.h>

#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

using test::make_cluster, test::make_model, test::make_zebra_plan;

std::vector<i32> numbers(const std::vector<Queue>& queues) {
  std::vector<i32> out;
  for (const Queue queue : queues) out.push_back(static_cast<i32>(queue));
  return out;
}

TEST(TransferQueues, AreThoseThatTheScheduleUses) {
  const ModelConfig model = make_model({});
  Plan plan = make_zebra_plan(model, make_cluster({1, 1}), {.microbatches = 2});
  EXPECT_EQ(transfer_queues(build_schedule(plan, model)),
            numbers({Queue::kToExpert, Queue::kToAttention, Queue::kReduce}));
  StepOptions forward;
  forward.backward = false;
  EXPECT_EQ(transfer_queues(build_schedule(plan, model, forward)),
            numbers({Queue::kToExpert, Queue::kToAttention}));
}

}  // namespace
}  // namespace hetermoe
