#include "hetermoe/schedule/order_policy.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/backward_shares.h"

namespace hetermoe {

void order_layer_major(ScheduleBuilder& builder);
void order_one_f_one_b(ScheduleBuilder& builder);
void order_explicit(ScheduleBuilder& builder);
void order_round_robin(ScheduleBuilder& builder);

namespace {

i64 num_microbatches(const Group& group) { return static_cast<i64>(group.microbatches.size()); }

i64 in_window(const Plan& plan, const Group& group, std::size_t /*layer*/, DeviceId /*device*/) {
  return plan.window > 0 ? std::min<i64>(num_microbatches(group), plan.window) : num_microbatches(group);
}

/// A window for the layer's stage and for each one after it.
i64 one_window_per_stage(const Plan& plan, const Group& group, std::size_t layer, DeviceId /*device*/) {
  i64 stages = 1;
  for (std::size_t l = layer + 1; l < group.layers.size(); ++l)
    stages += group.layers[l].attention != group.layers[l - 1].attention ? 1 : 0;
  return std::min(num_microbatches(group), stages * std::max<i64>(1, plan.window));
}

/// A turn of round r + k runs beside one of round r only if it is less than `devices` turns later: a device
/// takes turns in order. So few rounds have microbatches between the turns of a layer at once.
i64 rounds_at_once(const Group& group) {
  const i64 turns = num_turns(group), devices = static_cast<i64>(group.devices.size());
  return 1 + (devices + turns - 1) / turns;
}

/// Of the microbatches whose backward pass is on the device, the most in so many rounds.
i64 in_rounds(const Plan& plan, const Group& group, std::size_t layer, DeviceId device) {
  const Shares& shares = layer < group.layers.size() ? backward_shares(group.layers[layer]) : group.head;
  const i64 count = num_microbatches(group), round = plan.window > 0 ? plan.window : count;
  const i64 at_once = round * rounds_at_once(group);
  i64 most = 0;
  for (i64 first = 0; first < count; first += round) {
    i64 here = 0;
    for (i64 m = first; m < std::min(count, first + at_once); ++m)
      here += sequences_of(share_row(shares, static_cast<i32>(m)), device) > 0 ? 1 : 0;
    most = std::max(most, here);
  }
  return most;
}

}  // namespace

const std::vector<OrderPolicyTraits>& order_policies() {
  static const std::vector<OrderPolicyTraits> all = {
      {.policy = OrderPolicy::kLayerMajor,
       .append = order_layer_major,
       .appends_end_of_step = false,
       .treats_equals_alike = true,
       .has_window = true,
       .takes_turns = true,
       .in_flight = in_window,
       .plan_name = ""},
      {.policy = OrderPolicy::kOneFOneB,
       .append = order_one_f_one_b,
       .appends_end_of_step = false,
       .treats_equals_alike = true,
       .has_window = true,
       .takes_turns = false,
       .in_flight = one_window_per_stage,
       .plan_name = "pipeline"},
      {.policy = OrderPolicy::kExplicit,
       .append = order_explicit,
       .appends_end_of_step = true,
       .treats_equals_alike = false,
       .has_window = false,
       .takes_turns = false,
       .in_flight = in_window,
       .plan_name = ""},
      {.policy = OrderPolicy::kRoundRobin,
       .append = order_round_robin,
       .appends_end_of_step = false,
       .treats_equals_alike = false,
       .has_window = true,
       .takes_turns = false,
       .in_flight = in_rounds,
       .plan_name = ""},
  };
  return all;
}

const OrderPolicyTraits& traits_of(OrderPolicy policy) {
  const OrderPolicyTraits& traits = order_policies().at(idx(static_cast<int>(policy)));
  HM_CHECK(traits.policy == policy, "rows of order_policies() are not in the order of the enumerators");
  return traits;
}

}  // namespace hetermoe
