#include <algorithm>
#include <deque>

#include "hetermoe/base/index.h"
#include "hetermoe/schedule/waves.h"

// Rounds of microbatches go from turn to turn: RoundPipe (arXiv 2604.27085). A turn is a run of layers that
// one row of shares computes, forward or backward; the last forward turn and the first backward turn are one,
// in which each microbatch turns round, if the head does not move. In a turn each microbatch goes through all
// layers and on to the next turn before the next one follows.
namespace hetermoe {
namespace {

struct Turn {
  std::vector<Wave> waves;
  i32 next_layer = -1;  ///< of a forward turn that another follows
};

/// The turns of a round, by the shares of its first microbatch.
std::vector<Turn> make_turns(const Placement& placement, i32 group, i32 microbatch) {
  const i32 head = placement.num_layers();
  std::vector<Turn> turns(1);
  i32 level = 0;
  for (Wave& wave : make_waves(placement, group)) {
    const bool forward = wave.level <= head;
    const i32 layer = forward ? wave.level : 2 * head - wave.level + 1;  // the border that it crosses
    const Phase phase = forward ? Phase::kForward : Phase::kBackward;
    if (wave.level != level && placement.moves_into(group, layer, microbatch, phase)) {
      if (forward) {
        turns.back().next_layer = layer;
        wave.sends_input = false;
      }
      turns.emplace_back();
    }
    level = wave.level;
    turns.back().waves.push_back(wave);
  }
  return turns;
}

/// A microbatch in a turn.
struct Step {
  double start = 0;  ///< by plan.turn_lengths
  const Turn* turn;
  i32 microbatch;
  std::size_t group;  ///< of those that are appended
};

class RoundRobin {
 public:
  RoundRobin(ScheduleBuilder& builder, i32 group)
      : p_(builder.placement()), runner_(builder, group), group_(group), free_(idx(p_.num_devices()), 0) {}

  void add_steps(std::size_t number, std::vector<Step>& steps) {
    const i32 count = p_.num_microbatches(group_), round = p_.plan().window > 0 ? p_.plan().window : count;
    for (i32 first = 0; first < count; first += round) {
      rounds_.push_back(make_turns(p_, group_, first));
      std::vector<double> ready(idx(std::min(round, count - first)), 0);
      std::size_t number_of_turn = 0;
      for (const Turn& turn : rounds_.back()) {
        double& now = free_[idx(device_of_turn(turn, first))];
        const double length = length_of(number_of_turn++);
        for (std::size_t i = 0; i < ready.size(); ++i) {
          now = std::max(now, ready[i]);
          steps.push_back({now, &turn, first + static_cast<i32>(i), number});
          ready[i] = now += length;
        }
      }
    }
  }

  void run(const Step& step) {
    const i32 m = step.microbatch;
    for (const Wave& wave : step.turn->waves) runner_.run(wave, m, m + 1);
    runner_.finish_returns();
    if (step.turn->next_layer >= 0) runner_.send_input(step.turn->next_layer, m);
    if (m + 1 < p_.num_microbatches(group_)) return;
    for (const Wave& wave : step.turn->waves) runner_.report_done(wave);
  }

 private:
  double length_of(std::size_t turn) const {
    const std::vector<double>& lengths = p_.plan().turn_lengths;
    return turn < lengths.size() ? lengths[turn] : 1;
  }
  DeviceId device_of_turn(const Turn& turn, i32 microbatch) const {
    const i32 head = p_.num_layers(), level = turn.waves.front().level;
    return level <= head ? p_.shares(group_, level, microbatch)[0].device
                         : p_.shares(group_, 2 * head - level, microbatch, Phase::kBackward)[0].device;
  }

  const Placement& p_;
  WaveRunner runner_;
  i32 group_;
  std::vector<double> free_;              // [device] when it has ended what it has to do
  std::deque<std::vector<Turn>> rounds_;  // stay where they are: steps point at them
};

}  // namespace

/// Moves of a device share a lane, which keeps the order in which they are appended: that is the order of
/// time, not turn by turn, for a turn sends while it still receives.
void order_round_robin(ScheduleBuilder& builder) {
  std::deque<RoundRobin> groups;
  std::vector<Step> steps;
  for (i32 g = 0; g < builder.placement().num_groups(); ++g) {
    if (!builder.lists_group(g)) continue;
    groups.emplace_back(builder, g);
    groups.back().add_steps(groups.size() - 1, steps);
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.start < b.start; });
  for (const Step& step : steps) groups[step.group].run(step);
}

}  // namespace hetermoe
