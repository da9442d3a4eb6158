#include "hetermoe/schedule/order_policy.h"

#include <gtest/gtest.h>

#include "hetermoe/plan/turns.h"

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
  const auto in_flight = [&](OrderPolicy policy) { return traits_of(policy).in_flight(plan, group)(0, 0); };
  EXPECT_EQ(in_flight(OrderPolicy::kLayerMajor), 5);
  EXPECT_EQ(in_flight(OrderPolicy::kOneFOneB), 3);
  EXPECT_EQ(in_flight(OrderPolicy::kExplicit), 5);
  plan.window = 2;
  EXPECT_EQ(in_flight(OrderPolicy::kLayerMajor), 2);
  EXPECT_EQ(in_flight(OrderPolicy::kOneFOneB), 5) << "three windows of two";
  const auto in_stage = [&](std::size_t layer) {
    return traits_of(OrderPolicy::kOneFOneB).in_flight(plan, group)(layer, 0);
  };
  EXPECT_EQ(in_stage(1), 4);
  EXPECT_EQ(in_stage(2), 2);
  EXPECT_EQ(in_stage(3), 2) << "the head is in the last stage";
}

/// Rounds of two microbatches over three devices and five turns: those of two rounds are between the turns of
/// a layer at once, of which a device has its own.
TEST(OrderPolicies, RoundsInFlightAreThoseOfADevice) {
  Plan plan;
  plan.order = OrderPolicy::kRoundRobin;
  plan.window = 2;
  Group group;
  group.devices = {0, 1, 2};
  group.microbatches = {1, 1, 1, 1, 1, 1, 1, 1};
  const auto rows = [](std::vector<DeviceId> of_round) {
    Shares shares;
    for (const DeviceId device : of_round) shares.insert(shares.end(), 2, {{device, 1}});
    return shares;
  };
  group.embed = rows({0, 2, 1, 0});
  group.layers.push_back({.attention = group.embed, .experts = {}});
  group.layers.push_back({.attention = rows({1, 0, 2, 1}), .experts = {}});
  group.head = rows({2, 1, 0, 2});
  group.layers[0].attention_backward = rows({1, 0, 2, 1});
  group.layers[1].attention_backward = rows({0, 0, 1, 0});
  const auto waiting = [&](std::size_t layer, DeviceId device) {
    return traits_of(plan.order).in_flight(plan, group)(layer, device);
  };
  EXPECT_EQ(turns_of(plan, group).size(), 5);
  EXPECT_EQ(waiting(0, 0), 2);
  EXPECT_EQ(waiting(1, 0), 4) << "both rounds of the first two";
  EXPECT_EQ(waiting(1, 2), 0);
  EXPECT_EQ(waiting(2, 2), 2) << "the head";
}
}  // namespace
}  // namespace hetermoe
