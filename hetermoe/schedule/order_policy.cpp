#include "hetermoe/schedule/order_policy.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/backward_shares.h"
#include "hetermoe/plan/pipeline_tasks.h"
#include "hetermoe/plan/turns.h"

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

/// In windows: of a pipeline's last stage one, of the stage before it two.
i64 in_stages(const Plan& plan, const Group& group, std::size_t layer, DeviceId /*device*/) {
  const PipelineStages stages = pipeline_stages(group);
  const i64 count = num_microbatches(group), window = std::max<i64>(1, plan.window);
  const std::vector<i32>& borders = stages.first_layer;
  const auto next = std::upper_bound(borders.begin(), borders.end(), static_cast<i32>(layer));
  const i32 stage = static_cast<i32>(next - borders.begin()) - 1;
  const i64 windows = (count + window - 1) / window;
  return std::min(count, window * windows_in_flight(stages, stage, static_cast<i32>(windows)));
}

/// Of the microbatches whose backward pass of the layer is on the device, the most of rounds that have begun
/// with it and not ended, by the lengths of turns.
i64 in_turns(const Plan& plan, const Group& group, std::size_t layer, DeviceId device) {
  const std::vector<PlanTurn> turns = turns_of(plan, group);
  const auto times = turn_times(plan, group, turns);
  const auto turn_with = [&](auto has) {
    return static_cast<std::size_t>(std::find_if(turns.begin(), turns.end(), has) - turns.begin());
  };
  const auto number = static_cast<i32>(layer);
  const bool head = layer == group.layers.size();
  const auto in = [&](const std::vector<i32>& layers) {
    return std::find(layers.begin(), layers.end(), number) != layers.end();
  };
  const std::size_t first = turn_with([&](const PlanTurn&t) { return head ? t.head : in(t.forward); }),
                    last = turn_with([&](const PlanTurn&t) { return head ? t.head : in(t.backward); });
  const Shares& shares = head ? group.head : backward_shares(group.layers[layer]);
  std::vector<std::pair<double, i64>> changes;
  const i64 count = num_microbatches(group), round = round_of(plan, group);
  for (i64 begin = 0; begin < count; begin += round) {
    const i64 end = std::min(begin + round, count);
    i64 here = 0;
    for (i64 m = begin; m < end; ++m)
      here += sequences_of(share_row(shares, static_cast<i32>(m)), device) > 0 ? 1 : 0;
    changes.emplace_back(times[first][idx(begin)].begin, here);
    changes.emplace_back(times[last][idx(end - 1)].end, -here);
  }
  // Where one begins as another ends both are counted.
  std::sort(changes.begin(), changes.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first, b.second) < std::pair(b.first, a.second);
  });
  i64 now = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  if (first != last) return most;
  // Each goes through the turn in which it turns round at once, while at most one waits for its first layer.
  const std::vector<i32>& layers = turns[first].forward;
  const bool first_of_turn = layers.empty() ? head : number == layers.front();
  return std::min<i64>(most, first_of_turn ? 2 : 1);
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
       .in_flight = in_stages,
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
       .in_flight = in_turns,
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
