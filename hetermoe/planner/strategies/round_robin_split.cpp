#include "hetermoe/planner/strategies/round_robin_split.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/plan/turns.h"
#include "hetermoe/planner/strategies/round_clock.h"

namespace hetermoe {
namespace {

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

/// How long a turn may be.
struct Limit {
  double seconds;
  i64 layers = std::numeric_limits<i64>::max();
};

/// Cuts a list into the fewest runs within the limit: as many entries as fit, one run after another. None
/// when an entry takes longer.
template <class Iterator>
std::optional<std::vector<i64>> fewest_runs(Iterator first, Iterator last, const Limit& limit) {
  std::vector<i64> runs;
  double sum = 0;
  for (; first != last; ++first) {
    if (*first > limit.seconds) return {};
    if (runs.empty() || sum + *first > limit.seconds || runs.back() == limit.layers) {
      runs.push_back(0);
      sum = 0;
    }
    sum += *first;
    ++runs.back();
  }
  return runs;
}

/// With turns within the limit; none = some layer takes longer. The head is no layer.
std::optional<TurnSplit> split_within(const TurnTimes& times, const Limit& limit) {
  const Limit most{limit.seconds * (1 + kRounding), limit.layers};
  if (times.backward.back() > most.seconds) return {};
  TurnSplit split;
  double sum = 0;
  for (auto b = times.backward.rbegin(); b != times.backward.rend() && sum + *b <= most.seconds; ++b) {
    if (split.fused > most.layers) break;
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
  split.longest = limit.seconds;
  return split;
}

/// Seconds of a microbatch in each turn.
std::vector<Seconds> turn_lengths(const LayerTimes& times, const TurnSplit& split) {
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

/// Every cut with the fewest turns within some limit, limits of time ascending.
std::vector<TurnSplit> all_splits(const TurnTimes& times, i64 most_layers = Limit{0}.layers) {
  HM_CHECK(!times.backward.empty() && times.forward.size() == times.backward.size(),
           "{} forward and {} backward times", times.forward.size(), times.backward.size());
  std::vector<TurnSplit> splits;
  for (const double seconds : run_sums(times)) {
    std::optional<TurnSplit> split = split_within(times, {seconds, most_layers});
    if (!split) continue;
    split->lengths = turn_lengths({times.forward, times.backward}, *split);
    splits.push_back(std::move(*split));
  }
  return splits;
}

/// How to deal turns.
struct Dealing {
  Dispatch dispatch = Dispatch::kInTurn;
  Seconds slowest = 0;  ///< to devices on which the longest turn takes no more
  i64 step = 0;         ///< as in this one, where steps overlap
};

Rounds deal(const Dealing& dealing, Rounds rounds, const RoundsRequest& request, Seconds hop) {
  std::vector<std::vector<Seconds>> lengths = rounds.lengths;
  for (std::vector<Seconds>& device : lengths) {
    if (*std::max_element(device.begin(), device.end()) > dealing.slowest)
      device.assign(device.size(), std::numeric_limits<Seconds>::infinity());
  }
  RoundClock dealer(lengths, hop, rounds.fetches), clock = dealer;
  for (i64 step = 0; step <= dealing.step; ++step)
    rounds.dealt =
        dealer.deal(dealing.dispatch, rounds.split.num_turns(), request.microbatches, rounds.round);
  Seconds before = 0;
  rounds.step = 0;
  for (i64 step = 0; step < (request.drains ? 1 : kStepsUntilAlike); ++step)
    before = std::exchange(rounds.step, clock.run(rounds.dealt, request.microbatches, rounds.round));
  rounds.step -= before;
  return rounds;
}

/// The best way to deal them. A slow device that takes a turn may make all others wait, so each kind of
/// device is left out once, with all that are slower. Where steps overlap, a step in the middle begins with
/// devices that come from the one before at different times.
Rounds deal(const Rounds& rounds, const RoundsRequest& request, Seconds hop) {
  std::set<Seconds> kinds;
  for (const std::vector<Seconds>& device : rounds.lengths)
    kinds.insert(*std::max_element(device.begin(), device.end()));
  Rounds best = deal({Dispatch::kInTurn, *kinds.rbegin()}, rounds, request, hop);
  for (const Seconds slowest : kinds) {
    for (i64 step = 0; step < (request.drains ? 1 : kStepsUntilAlike); ++step) {
      Rounds dealt = deal({Dispatch::kEarliestEnd, slowest, step}, rounds, request, hop);
      if (dealt.step < best.step * (1 - kRounding)) best = std::move(dealt);
    }
  }
  return best;
}

/// [turn] the last one that has one of its layers: of a forward turn the backward turn with its first layer.
std::vector<std::size_t> last_uses(const TurnSplit& split) {
  std::vector<std::size_t> uses(idx(split.num_turns()));
  std::iota(uses.begin(), uses.end(), 0);
  i64 first = 0;  // layer of a forward turn
  for (std::size_t turn = 0; turn < split.forward.size(); first += split.forward[turn++]) {
    i64 lowest = 0;  // layer of a backward turn
    std::size_t use = uses.size() - 1;
    for (auto layers = split.backward.rbegin(); first >= lowest + *layers; ++layers, --use) lowest += *layers;
    uses[turn] = use;
  }
  return uses;
}

TurnFetches turn_fetches(const TurnTimes& times, const TurnSplit& split) {
  if (times.fetch.empty()) return {};
  return {turn_lengths({times.fetch, times.fetch}, split), last_uses(split)};
}

/// [device][turn]
std::vector<std::vector<Seconds>> lengths_on_devices(const TurnTimes& times, const TurnSplit& split,
                                                     i64 devices) {
  std::vector<std::vector<Seconds>> lengths;
  for (const LayerTimes& device : times.of_devices) lengths.push_back(turn_lengths(device, split));
  if (lengths.empty()) lengths.assign(idx(devices), split.lengths);
  return lengths;
}

/// Where to cut a list into `count` runs of sums as equal as whole entries allow: each border is the one next
/// to where it would have to be. None = a run would be empty.
std::optional<std::vector<i64>> even_runs(std::span<const double> list, i64 count) {
  const double total = std::accumulate(list.begin(), list.end(), 0.0);
  std::vector<i64> runs;
  double sum = 0;
  auto next = list.begin();
  for (i64 run = 1; run <= count; ++run) {
    const auto first = next;
    const double border = total * real(run) / real(count);
    while (next != list.end() && (run == count || sum + *next / 2 <= border)) sum += *next++;
    if (next == first) return {};
    runs.push_back(next - first);
  }
  return runs;
}

/// With so many entries in the fused turn and so many turns before and behind it.
std::optional<TurnSplit> even_split(const TurnTimes& times, i64 fused, i64 forward, i64 backward) {
  const std::size_t layers = times.forward.size() - idx(fused);
  std::vector<double> descending(times.backward.begin(), times.backward.begin() + static_cast<i64>(layers));
  std::reverse(descending.begin(), descending.end());
  const auto before = even_runs(std::span(times.forward).first(layers), forward),
             behind = even_runs(descending, backward);
  if (!before || !behind) return {};
  TurnSplit split{.forward = *before, .fused = fused, .backward = *behind};
  split.lengths = turn_lengths({times.forward, times.backward}, split);
  split.longest = *std::max_element(split.lengths.begin(), split.lengths.end());
  return split;
}

constexpr double kUneven = 1.25;      ///< longest turn over the mean one
constexpr std::size_t kEvenCuts = 4;  ///< of each number of turns

/// Of each number of turns, up to twice that of devices, those whose longest turn is the least above the
/// mean. They may be longer than the greedy ones, but no turn is left with a rest, for which others wait.
std::vector<TurnSplit> even_splits(const TurnTimes& times, i64 devices) {
  std::vector<TurnSplit> splits;
  const auto entries = static_cast<i64>(times.forward.size());
  for (i64 turns = 3; turns <= 2 * devices; ++turns) {
    std::vector<std::pair<double, TurnSplit>> found;
    for (i64 fused = 1; fused <= entries / 2; ++fused) {
      for (i64 forward = 1; forward < turns - 1; ++forward) {
        std::optional<TurnSplit> split = even_split(times, fused, forward, turns - 1 - forward);
        if (!split) continue;
        const double mean = std::accumulate(split->lengths.begin(), split->lengths.end(), 0.0) / real(turns);
        if (split->longest <= kUneven * mean) found.emplace_back(split->longest / mean, std::move(*split));
      }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t i = 0; i < std::min(found.size(), kEvenCuts); ++i)
      splits.push_back(std::move(found[i].second));
  }
  return splits;
}

/// Of each number of turns the cut with the shortest turns: a longer limit that saves no turn only makes them
/// less even. And the same with few layers in a turn, whose weights need less room. And even ones.
std::vector<TurnSplit> splits_worth_a_look(const TurnTimes& times, i64 devices) {
  std::vector<TurnSplit> splits;
  const auto add = [&](TurnSplit split) {
    const bool known = std::any_of(splits.begin(), splits.end(), [&](const TurnSplit& other) {
      return other.forward == split.forward && other.backward == split.backward;
    });
    if (!known) splits.push_back(std::move(split));
  };
  for (const i64 most_layers : {Limit{0}.layers, i64{8}, i64{4}, i64{2}, i64{1}}) {
    i64 turns = 0;
    for (TurnSplit& split : all_splits(times, most_layers))
      if (split.num_turns() != std::exchange(turns, split.num_turns())) add(std::move(split));
  }
  for (TurnSplit& split : even_splits(times, devices)) add(std::move(split));
  return splits;
}

constexpr i64 kMostRounds = 32;  ///< each fetches all weights anew

/// Devices whose longest turn is shortest.
i64 num_fastest(const std::vector<std::vector<Seconds>>& lengths) {
  std::vector<Seconds> longest;
  for (const std::vector<Seconds>& device : lengths)
    longest.push_back(*std::max_element(device.begin(), device.end()));
  return std::count(longest.begin(), longest.end(), *std::min_element(longest.begin(), longest.end()));
}

/// Lengths of rounds worth a look, the longest first: as equal as can be, and no shorter than there are
/// devices of the fastest kind.
std::vector<i64> round_choices(const RoundsRequest& request, i64 devices) {
  if (request.round > 0) return {request.round};
  std::vector<i64> choices;
  for (i64 rounds = 1; rounds <= kMostRounds; ++rounds) {
    const i64 round = (request.microbatches + rounds - 1) / rounds;
    if (!choices.empty() && (round < devices || round == choices.back())) break;
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
  std::vector<Rounds> ranked;
  for (const TurnSplit& split : splits_worth_a_look(times, request.devices)) {
    Rounds rounds{.split = split,
                  .lengths = lengths_on_devices(times, split, request.devices),
                  .fetches = turn_fetches(times, split)};
    for (const i64 round : round_choices(request, num_fastest(rounds.lengths))) {
      rounds.round = round;
      ranked.push_back(deal(rounds, request, times.hop));
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Rounds& a, const Rounds& b) { return a.step < b.step; });
  return ranked;
}

double idle_share(i64 devices, i64 turns, i64 microbatches, i64 round) {
  RoundClock clock(std::vector(idx(devices), std::vector<Seconds>(idx(turns), 1)), 0);
  clock.deal(Dispatch::kInTurn, turns, microbatches, round);
  return 1 - real(microbatches * turns) / (real(devices) * clock.end());
}

}  // namespace hetermoe
