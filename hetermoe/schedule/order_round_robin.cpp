#include <algorithm>
#include <deque>
#include <utility>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/plan/backward_shares.h"
#include "hetermoe/plan/turns.h"
#include "hetermoe/schedule/order_policy.h"
#include "hetermoe/schedule/waves.h"

// Rounds of microbatches go from turn to turn: RoundPipe (arXiv 2604.27085). A turn is a run of layers that
// one row of shares computes, forward or backward; the last forward turn and the first backward turn are one,
// in which each microbatch turns round, if the head does not move. In a turn each microbatch goes through all
// layers and on to the next turn before the next one follows.
namespace hetermoe {
namespace {

struct Turn {
  std::vector<Wave> waves;
  i32 sends_input = -1;     ///< of this stage, if another forward turn follows
  i32 sends_gradient = -1;  ///< of the input of this stage, if another backward turn follows
};

/// A new turn begins wherever some microbatch changes devices.
class Borders {
 public:
  Borders(const Placement& placement, i32 group)
      : placement_(placement), group_(group), count_(placement.num_microbatches(group)) {}
  bool at(i32 layer, Phase phase) const {
    for (i32 m = 0; m < count_; ++m)
      if (placement_.moves_into(group_, layer, m, phase)) return true;
    return false;
  }

 private:
  const Placement& placement_;
  i32 group_, count_;
};

std::vector<Turn> make_turns(const Placement& placement, i32 group) {
  const i32 head = placement.num_layers();
  const Borders borders(placement, group);
  std::vector<Turn> turns(1);
  i32 level = 0;
  for (Wave& wave : make_waves(placement, group)) {
    const bool forward = wave.level <= head;
    const i32 layer = forward ? wave.level : 2 * head - wave.level + 1;  // the border that it crosses
    const Phase phase = forward ? Phase::kForward : Phase::kBackward;
    if (wave.level != level && borders.at(layer, phase)) {
      if (forward) {
        turns.back().sends_input = layer;
        wave.sends_input = false;
      } else {
        turns.back().sends_gradient = layer;
        for (Wave& sender : turns.back().waves) sender.sends_gradient = false;
      }
      turns.emplace_back();
    }
    level = wave.level;
    wave.sends_saved = false;
    turns.back().waves.push_back(wave);
  }
  return turns;
}

/// Something that a microbatch does in a turn.
struct Step {
  enum What { kSendsOn, kSendsSaved, kComputes };  // in this order where they are due at the same time
  double time = 0;                                 ///< by plan.turn_lengths
  What what;
  std::size_t turn;
  i32 microbatch;
  std::size_t group;  ///< of those that are appended
  i32 layer = -1;     ///< kSendsSaved
};

std::vector<i32> forward_layers(const Turn& turn) {
  std::vector<i32> layers;
  for (const Wave& wave : turn.waves) {
    const Op& op = wave.compute;
    if (wave.has_compute && op.kind == OpKind::kAttention && op.phase == Phase::kForward)
      layers.push_back(op.layer);
  }
  return layers;
}

class RoundRobin {
 public:
  RoundRobin(ScheduleBuilder& builder, i32 group)
      : p_(builder.placement()),
        runner_(builder, group),
        group_(group),
        turns_(make_turns(p_, group)),
        left_(turns_.size(), p_.num_microbatches(group)) {}

  void add_steps(std::size_t number, std::vector<Step>& steps) const {
    const Group& group = p_.plan().groups[idx(group_)];
    // Where steps overlap, devices begin one when they have ended the other, not all at once.
    const auto times = turn_times(p_.plan(), group, turns_of(p_.plan(), group),
                                  p_.options().staleness > 0 ? kStepsUntilAlike : 1);
    // Forward alone, as in validation, ends with the turn that has the head.
    const bool right = p_.options().backward ? times.size() == turns_.size() : times.size() >= turns_.size();
    HM_CHECK(right, "{} and {} turns", times.size(), turns_.size());
    for (std::size_t turn = 0; turn < turns_.size(); ++turn) {
      for (i32 m = 0; m < p_.num_microbatches(group_); ++m) {
        const auto [begin, end] = times[turn][idx(m)];
        steps.push_back({begin, Step::kComputes, turn, m, number});
        const std::vector<i32> layers = forward_layers(turns_[turn]);
        for (std::size_t l = 0; l < layers.size(); ++l) {
          const double done = begin + (end - begin) * real(l + 1) / real(layers.size());
          steps.push_back({done, Step::kSendsSaved, turn, m, number, layers[l]});
        }
        steps.push_back({end, Step::kSendsOn, turn, m, number});
      }
    }
  }

  void run(const Step& step) {
    const Turn& turn = turns_[step.turn];
    const i32 m = step.microbatch;
    if (step.what == Step::kSendsSaved) return runner_.send_saved(step.layer, m);
    if (step.what == Step::kSendsOn) {
      if (turn.sends_input >= 0) runner_.send_input(turn.sends_input, m);
      if (turn.sends_gradient >= 0) runner_.send_gradient(turn.sends_gradient, m);
      return;
    }
    for (const Wave& wave : turn.waves) runner_.run(wave, m, m + 1);
    runner_.finish_returns();
    // Rounds may overtake each other.
    if (--left_[step.turn] > 0) return;
    for (const Wave& wave : turn.waves) runner_.report_done(wave);
  }

 private:
  const Placement& p_;
  WaveRunner runner_;
  i32 group_;
  std::vector<Turn> turns_;
  std::vector<i32> left_;  // [turn] microbatches that it has not had
};

/// Moves of a device share a lane, which keeps the order in which they are appended: that is the order of
/// time, not turn by turn, for a turn sends while it still receives. What is sent comes when it is ready.
void append_round_robin(ScheduleBuilder& builder) {
  std::deque<RoundRobin> groups;
  std::vector<Step> steps;
  for (i32 g = 0; g < builder.placement().num_groups(); ++g) {
    if (!builder.lists_group(g)) continue;
    groups.emplace_back(builder, g);
    groups.back().add_steps(groups.size() - 1, steps);
  }
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
    return std::pair(a.time, a.what) < std::pair(b.time, b.what);
  });
  for (const Step& step : steps) groups[step.group].run(step);
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
    const i64 count = static_cast<i64>(group_.microbatches.size());
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

OrderPolicyTraits order_rows::round_robin_order() {
  return {.policy = OrderPolicy::kRoundRobin,
          .append = append_round_robin,
          .appends_end_of_step = false,
          .treats_equals_alike = false,
          .has_window = true,
          .zero_window_is_all = false,
          .windows_in_sequence = false,
          .has_stages = false,
          .has_rounds = true,
          .in_flight = in_rounds,
          .plan_name = ""};
}

}  // namespace hetermoe
