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
void order_timed(ScheduleBuilder& builder);

namespace {

i64 num_microbatches(const Group& group) { return static_cast<i64>(group.microbatches.size()); }

InFlight in_window(const Plan& plan, const Group& group) {
  const i64 all = num_microbatches(group), most = plan.window > 0 ? std::min<i64>(all, plan.window) : all;
  return [most](std::size_t /*layer*/, DeviceId /*device*/) { return most; };
}

/// In windows: of a pipeline's last stage one, of the stage before it two.
InFlight in_stages(const Plan& plan, const Group& group) {
  const i64 count = num_microbatches(group), window = std::max<i64>(1, plan.window);
  const i64 windows = (count + window - 1) / window;
  return [=, stages = pipeline_stages(group)](std::size_t layer, DeviceId /*device*/) {
    const std::vector<i32>& borders = stages.first_layer;
    const auto next = std::upper_bound(borders.begin(), borders.end(), static_cast<i32>(layer));
    const i32 stage = static_cast<i32>(next - borders.begin()) - 1;
    return std::min(count, window * windows_in_flight(stages, stage, static_cast<i32>(windows)));
  };
}

/// Rounds that are on a device at once, by the lengths of turns.
class RoundsInFlight {
 public:
  RoundsInFlight(const Plan& plan, const Group& group)
      : group_(group),
        turns_(turns_of(plan, group)),
        times_(turn_times(plan, group, turns_)),
        round_(round_of(plan, group)) {}

  /// Of the microbatches whose backward pass of the layer is on the device, the most of rounds that have
  /// begun with it and not ended.
  i64 operator()(std::size_t layer, DeviceId device) const {
    const bool head = layer == group_.layers.size();
    const auto number = static_cast<i32>(layer);
    const std::size_t first = turn_with(&PlanTurn::forward, number),
                      last = turn_with(&PlanTurn::backward, number);
    const i64 most =
        most_between(first, last, head ? group_.head : backward_shares(group_.layers[layer]), device);
    if (first != last) return most;
    // Each goes through the turn in which it turns round at once, while at most one waits for its first
    // layer.
    const std::vector<i32>& layers = turns_[first].forward;
    const bool first_of_turn = layers.empty() ? head : number == layers.front();
    return std::min<i64>(most, first_of_turn ? 2 : 1);
  }

 private:
  std::size_t turn_with(std::vector<i32> PlanTurn::*pass, i32 layer) const {
    const bool head = layer == static_cast<i32>(group_.layers.size());
    const auto has = [&](const PlanTurn& turn) {
      const std::vector<i32>& layers = turn.*pass;
      return head ? turn.head : std::find(layers.begin(), layers.end(), layer) != layers.end();
    };
    return static_cast<std::size_t>(std::find_if(turns_.begin(), turns_.end(), has) - turns_.begin());
  }

  i64 most_between(std::size_t first, std::size_t last, const Shares& shares, DeviceId device) const {
    std::vector<std::pair<double, i64>> changes;
    const i64 count = num_microbatches(group_);
    for (i64 begin = 0; begin < count; begin += round_) {
      const i64 end = std::min(begin + round_, count);
      i64 here = 0;
      for (i64 m = begin; m < end; ++m)
        here += sequences_of(share_row(shares, static_cast<i32>(m)), device) > 0 ? 1 : 0;
      changes.emplace_back(times_[first][idx(begin)].begin, here);
      changes.emplace_back(times_[last][idx(end - 1)].end, -here);
    }
    // Where one begins as another ends both are counted.
    std::sort(changes.begin(), changes.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first, b.second) < std::pair(b.first, a.second);
    });
    i64 now = 0, most = 0;
    for (const auto& [time, change] : changes) most = std::max(most, now += change);
    return most;
  }

  const Group& group_;
  std::vector<PlanTurn> turns_;
  std::vector<std::vector<TurnTime>> times_;
  i64 round_;
};

InFlight in_rounds(const Plan& plan, const Group& group) { return RoundsInFlight(plan, group); }

}  // namespace

const std::vector<OrderPolicyTraits>& order_policies() {
  static const std::vector<OrderPolicyTraits> all = {
      {.policy = OrderPolicy::kLayerMajor,
       .append = order_layer_major,
       .appends_end_of_step = false,
       .treats_equals_alike = true,
       .has_window = true,
       .zero_window_is_all = true,
       .windows_in_sequence = true,
       .has_stages = false,
       .has_rounds = false,
       .in_flight = in_window,
       .plan_name = ""},
      {.policy = OrderPolicy::kOneFOneB,
       .append = order_one_f_one_b,
       .appends_end_of_step = false,
       .treats_equals_alike = true,
       .has_window = true,
       .zero_window_is_all = false,
       .windows_in_sequence = false,
       .has_stages = true,
       .has_rounds = false,
       .in_flight = in_stages,
       .plan_name = "pipeline"},
      {.policy = OrderPolicy::kExplicit,
       .append = order_explicit,
       .appends_end_of_step = true,
       .treats_equals_alike = false,
       .has_window = false,
       .zero_window_is_all = false,
       .windows_in_sequence = false,
       .has_stages = false,
       .has_rounds = false,
       .in_flight = in_window,
       .plan_name = ""},
      {.policy = OrderPolicy::kRoundRobin,
       .append = order_round_robin,
       .appends_end_of_step = false,
       .treats_equals_alike = false,
       .has_window = true,
       .zero_window_is_all = false,
       .windows_in_sequence = false,
       .has_stages = false,
       .has_rounds = true,
       .in_flight = in_rounds,
       .plan_name = ""},
      {.policy = OrderPolicy::kTimed,
       .append = order_timed,
       .appends_end_of_step = false,
       .treats_equals_alike = true,
       .has_window = true,
       .zero_window_is_all = true,
       .windows_in_sequence = false,
       .has_stages = false,
       .has_rounds = false,
       .in_flight = in_window,
       .plan_name = "af-pipe"},
  };
  return all;
}

const OrderPolicyTraits& traits_of(OrderPolicy policy) {
  const OrderPolicyTraits& traits = order_policies().at(idx(static_cast<int>(policy)));
  HM_CHECK(traits.policy == policy, "rows of order_policies() are not in the order of the enumerators");
  return traits;
}

}  // namespace hetermoe
