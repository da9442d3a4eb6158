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
  for (const DeviceId device : group.devices)
    group.layers.push_back({.attention = {{{device, 1}}}, .experts = {}});
  const auto in_flight = [&](OrderPolicy policy) { return traits_of(policy).in_flight(plan, group, 0); };
  EXPECT_EQ(in_flight(OrderPolicy::kLayerMajor), 5);
  EXPECT_EQ(in_flight(OrderPolicy::kOneFOneB), 3);
  EXPECT_EQ(in_flight(OrderPolicy::kExplicit), 5);
  plan.window = 2;
  EXPECT_EQ(in_flight(OrderPolicy::kLayerMajor), 2);
  EXPECT_EQ(in_flight(OrderPolicy::kOneFOneB), 5) << "three windows of two";
  const auto in_stage = [&](std::size_t layer) {
    return traits_of(OrderPolicy::kOneFOneB).in_flight(plan, group, layer);
  };
  EXPECT_EQ(in_stage(1), 4);
  EXPECT_EQ(in_stage(2), 2);
  EXPECT_EQ(in_stage(3), 2) << "the head is in the last stage";
}

}  // namespace
}  // namespace hetermoe
