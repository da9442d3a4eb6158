#include "hetermoe/planner/round_robin_split.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// Sums of the same numbers in another order differ by less.
constexpr double kRounding = 1e-12;

/// Sums of consecutive entries, ascending, each once.
std::vector<double> run_sums(const TurnTimes& times) {
  std::vector<double> sums;
  for (const std::vector<double>* list : {&times.forward, &times.backward}) {
    for (std::size_t first = 0; first < list->size(); ++first) {
      double sum = 0;
      for (std::size_t l = first; l < list->size(); ++l) sums.push_back(sum += (*list)[l]);
    }
  }
  std::sort(sums.begin(), sums.end());
  sums.erase(std::unique(sums.begin(), sums.end()), sums.end());
  return sums;
}

/// Cuts a list into the fewest runs that take no longer than `limit`: as many entries as fit, one run after
/// another. None when an entry takes longer.
template <class Iterator>
std::optional<std::vector<i64>> fewest_runs(Iterator first, Iterator last, double limit) {
  std::vector<i64> runs;
  double sum = 0;
  for (; first != last; ++first) {
    if (*first > limit) return {};
    if (runs.empty() || sum + *first > limit) {
      runs.push_back(0);
      sum = 0;
    }
    sum += *first;
    ++runs.back();
  }
  return runs;
}

/// With turns of at most `limit`; none = some layer takes longer.
std::optional<TurnSplit> split_within(const TurnTimes& times, double limit) {
  const double most = limit * (1 + kRounding);
  if (times.backward.back() > most) return {};
  TurnSplit split;
  double sum = 0;
  for (auto b = times.backward.rbegin(); b != times.backward.rend() && sum + *b <= most; ++b) {
    sum += *b;
    ++split.fused;
  }
  const i64 layers = static_cast<i64>(times.backward.size()) - split.fused;
  const auto forward_end = times.forward.begin() + layers;
  // Greedy from the last layer towards the first, so that the first forward turn is the one that is not full.
  auto forward = fewest_runs(std::make_reverse_iterator(forward_end), times.forward.rend(), most);
  auto backward = fewest_runs(times.backward.begin(), times.backward.begin() + layers, most);
  if (!forward || !backward) return {};
  split.forward.assign(forward->rbegin(), forward->rend());
  split.backward.assign(backward->rbegin(), backward->rend());
  split.longest = limit;
  return split;
}

/// Seconds of a microbatch in each turn.
std::vector<Seconds> turn_lengths(const TurnTimes& times, const TurnSplit& split) {
  std::vector<Seconds> lengths;
  auto forward = times.forward.begin();
  for (const i64 layers : split.forward) {
    lengths.push_back(std::accumulate(forward, forward + layers, 0.0));
    forward += layers;
  }
  auto backward = times.backward.rbegin();
  lengths.push_back(std::accumulate(backward, backward + split.fused, 0.0));
  backward += split.fused;
  for (const i64 layers : split.backward) {
    lengths.push_back(std::accumulate(backward, backward + layers, 0.0));
    backward += layers;
  }
  return lengths;
}

/// Every cut with the fewest turns within some limit, limits ascending.
std::vector<TurnSplit> all_splits(const TurnTimes& times) {
  HM_CHECK(!times.backward.empty() && times.forward.size() == times.backward.size(),
           "{} forward and {} backward times", times.forward.size(), times.backward.size());
  std::vector<TurnSplit> splits;
  for (const double limit : run_sums(times)) {
    std::optional<TurnSplit> split = split_within(times, limit);
    if (!split) continue;
    split->lengths = turn_lengths(times, *split);
    splits.push_back(std::move(*split));
  }
  return splits;
}

/// Devices that take turns of a step, round after round.
class RoundClock {
 public:
  RoundClock(std::vector<Seconds> turns, Seconds hop, i64 devices)
      : turns_(std::move(turns)), hop_(hop), free_(idx(devices), 0) {}

  /// When the last microbatch of a step leaves its last turn. Turn i of a round begins when its device has
  /// ended what it had before and the first microbatch is there from turn i - 1.
  Seconds step(i64 microbatches, i64 round) {
    std::size_t next = 0;
    Seconds end = 0;
    for (i64 left = microbatches; left > 0; left -= round) {
      ready_.assign(idx(std::min(round, left)), 0);
      for (const Seconds turn : turns_) {
        Seconds& now = free_[next];
        for (Seconds& at : ready_) {
          now = std::max(now, at) + turn;
          at = now + hop_;
        }
        end = std::max(end, now);
        next = (next + 1) % free_.size();
      }
    }
    return end;
  }

 private:
  std::vector<Seconds> turns_;  // [turn] of one microbatch
  Seconds hop_;
  std::vector<Seconds> free_;   // [device] when it has ended what it began
  std::vector<Seconds> ready_;  // [microbatch of the round] scratch
};

constexpr int kSteps = 4;  ///< after which steps that overlap take equally long

Seconds step_seconds(const TurnTimes& times, const TurnSplit& split, const RoundsRequest& request,
                     i64 round) {
  RoundClock clock(split.lengths, times.hop, request.devices);
  Seconds end = clock.step(request.microbatches, round), before = 0;
  for (int step = 1; step < kSteps && !request.drains; ++step)
    before = std::exchange(end, clock.step(request.microbatches, round));
  return end - before;
}

constexpr i64 kMostRounds = 32;  ///< each fetches all weights anew

/// Lengths of rounds worth a look, the longest first: as equal as can be, and no shorter than there are
/// devices.
std::vector<i64> round_choices(const RoundsRequest& request) {
  if (request.round > 0) return {request.round};
  std::vector<i64> choices;
  for (i64 rounds = 1; rounds <= kMostRounds; ++rounds) {
    const i64 round = (request.microbatches + rounds - 1) / rounds;
    if (!choices.empty() && (round < request.devices || round == choices.back())) break;
    choices.push_back(round);
  }
  return choices;
}

}  // namespace

TurnSplit split_turns(const TurnTimes& times, i64 devices, i64 microbatches) {
  TurnSplit best;
  best.cost = std::numeric_limits<double>::infinity();
  for (TurnSplit& split : all_splits(times)) {
    const i64 turns = std::max(split.num_turns(), devices);
    split.cost = real(microbatches * turns + devices * (devices - 1)) * split.longest;
    if (split.cost < best.cost * (1 - kRounding)) best = std::move(split);
  }
  return best;
}

std::vector<Rounds> ranked_rounds(const TurnTimes& times, const RoundsRequest& request) {
  std::vector<TurnSplit> splits = all_splits(times);
  const i64 most_turns = splits.front().num_turns();
  std::vector<Rounds> ranked;
  i64 turns = 0;
  for (TurnSplit& split : splits) {
    if (split.num_turns() < std::min(request.devices, most_turns)) break;
    // A longer limit that saves no turn only makes turns less even.
    if (split.num_turns() == std::exchange(turns, split.num_turns())) continue;
    Rounds best{.split = {}, .round = 0, .step = std::numeric_limits<double>::infinity()};
    for (const i64 round : round_choices(request)) {
      const Seconds step = step_seconds(times, split, request, round);
      if (step < best.step * (1 - kRounding)) best.round = round, best.step = step;
    }
    best.split = std::move(split);
    ranked.push_back(std::move(best));
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Rounds& a, const Rounds& b) { return a.step < b.step; });
  return ranked;
}

double idle_share(i64 devices, i64 turns, i64 microbatches, i64 round) {
  const Seconds end = RoundClock(std::vector<Seconds>(idx(turns), 1), 0, devices).step(microbatches, round);
  return 1 - real(microbatches * turns) / (real(devices) * end);
}

}  // namespace hetermoe
