#include <algorithm>
#include <deque>
#include <utility>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/plan/turns.h"
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

}  // namespace

/// Moves of a device share a lane, which keeps the order in which they are appended: that is the order of
/// time, not turn by turn, for a turn sends while it still receives. What is sent comes when it is ready.
void order_round_robin(ScheduleBuilder& builder) {
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

}  // namespace hetermoe
