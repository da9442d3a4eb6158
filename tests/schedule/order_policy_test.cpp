#include "hetermoe/schedule/order_policy.h"

#include <gtest/gtest.h>

namespace hetermoe {
namespace {

TEST(OrderPolicies, HaveARowForEveryEnumeratorInItsOrder) {
  const std::vector<OrderPolicyTraits>& rows = order_policies();
  ASSERT_EQ(rows.size(), EnumNames<OrderPolicy>::names().size());
  for (std::size_t i = 0; i < rows.size(); ++i)
    EXPECT_EQ(&traits_of(static_cast<OrderPolicy>(static_cast<int>(i))), &rows[i]);
}

TEST(OrderPolicies, SayHowManyMicrobatchesAreInFlight) {
  Plan plan;
  Group group;
  group.devices = {0, 1, 2};
  group.microbatches = {1, 1, 1, 1, 1};
  const auto in_flight = [&](OrderPolicy policy) { return traits_of(policy).in_flight(plan, group); };
  EXPECT_EQ(in_flight(OrderPolicy::kLayerMajor), 5);
  EXPECT_EQ(in_flight(OrderPolicy::kOneFOneB), 3);
  EXPECT_EQ(in_flight(OrderPolicy::kExplicit), 5);
  plan.window = 2;
  EXPECT_EQ(in_flight(OrderPolicy::kLayerMajor), 2);
  EXPECT_EQ(in_flight(OrderPolicy::kOneFOneB), 3);
}

}  // namespace
}  // namespace hetermoe
