#include "hetermoe/planner/round_robin_split.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

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

}  // namespace

TurnSplit split_turns(const TurnTimes& times, i64 devices, i64 microbatches) {
  HM_CHECK(!times.backward.empty() && times.forward.size() == times.backward.size(),
           "{} forward and {} backward times", times.forward.size(), times.backward.size());
  TurnSplit best;
  best.cost = std::numeric_limits<double>::infinity();
  for (const double limit : run_sums(times)) {
    std::optional<TurnSplit> split = split_within(times, limit);
    if (!split) continue;
    const i64 turns = std::max(split->num_turns(), devices);
    split->cost = real(microbatches * turns + devices * (devices - 1)) * limit;
    if (split->cost < best.cost * (1 - kRounding)) best = std::move(*split);
  }
  return best;
}

double idle_share(i64 devices, i64 turns, i64 microbatches, i64 round) {
  const i64 rounds = (microbatches + round - 1) / round;
  // Turn i of a round begins when its device has ended the turn `devices` before it and the first microbatch
  // is there from the turn before; times are in turns of one microbatch.
  std::vector<i64> free(idx(devices), 0);
  i64 next = 0, end = 0, left = microbatches;
  for (i64 r = 0; r < rounds; ++r) {
    const i64 count = std::min(round, left);
    left -= count;
    std::vector<i64> ready(idx(count), 0);
    for (i64 turn = 0; turn < turns; ++turn) {
      i64& now = free[idx(next)];
      for (i64& at : ready) at = now = std::max(now, at) + 1;
      end = std::max(end, now);
      next = (next + 1) % devices;
    }
  }
  return 1 - real(microbatches * turns) / real(devices * end);
}

}  // namespace hetermoe
