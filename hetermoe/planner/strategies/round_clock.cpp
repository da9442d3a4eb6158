#include "hetermoe/planner/strategies/round_clock.h"

#include <algorithm>
#include <utility>

#include "hetermoe/base/index.h"

namespace hetermoe {
RoundClock::RoundClock(std::vector<std::vector<Seconds>> lengths, Seconds hop, TurnFetches fetches)
    : lengths_(std::move(lengths)),
      hop_(hop),
      fetches_(std::move(fetches)),
      free_(lengths_.size(), 0),
      fetched_(free_),
      began_(free_),
      used_(lengths_.empty() ? 0 : lengths_[0].size(), 0),
      published_(used_) {}

void RoundClock::begin_step() {
  for (std::size_t turn = 0; turn < fetches_.last_uses.size(); ++turn)
    published_[turn] = used_[fetches_.last_uses[turn]];
  end_ = 0;
}

Seconds RoundClock::fetched_at(std::size_t device, std::size_t turn) const {
  return std::max({fetched_[device], began_[device], published_[turn]}) + fetches_.seconds[turn];
}

/// Of the device's next turn, if its microbatches are there.
Seconds RoundClock::start_of(std::size_t device, std::size_t turn) const {
  return fetches_.seconds.empty() ? free_[device] : std::max(free_[device], fetched_at(device, turn));
}

Seconds RoundClock::end_of(std::size_t device, std::size_t turn) const {
  Seconds now = start_of(device, turn);
  for (const Seconds at : ready_) now = std::max(now, at) + lengths_[device][turn];
  return now;
}

void RoundClock::take(std::size_t device, std::size_t turn) {
  Seconds& now = free_[device];
  now = start_of(device, turn);
  if (!fetches_.seconds.empty()) {
    fetched_[device] = fetched_at(device, turn);
    used_[turn] = std::max(used_[turn], fetched_[device]);
  }
  began_[device] = std::max(now, ready_.front());
  for (Seconds& at : ready_) {
    now = std::max(now, at) + lengths_[device][turn];
    at = now + hop_;
  }
  end_ = std::max(end_, now);
}

std::size_t RoundClock::earliest(std::size_t turn, std::size_t next) const {
  std::size_t best = next;
  Seconds best_end = end_of(next, turn);
  for (std::size_t i = 1; i < free_.size(); ++i) {
    const std::size_t device = (next + i) % free_.size();
    const Seconds end = end_of(device, turn);
    if (end < best_end * (1 - kRounding)) best = device, best_end = end;
  }
  return best;
}

std::vector<i64> RoundClock::deal(Dispatch dispatch, i64 turns, i64 microbatches, i64 round) {
  std::vector<i64> dealt;
  std::size_t next = 0;
  begin_step();
  for (i64 left = microbatches; left > 0; left -= round) {
    ready_.assign(idx(std::min(round, left)), 0);
    for (std::size_t turn = 0; turn < idx(turns); ++turn) {
      const std::size_t device = dispatch == Dispatch::kInTurn ? next : earliest(turn, next);
      take(device, turn);
      dealt.push_back(static_cast<i64>(device));
      next = (device + 1) % free_.size();
    }
  }
  return dealt;
}

Seconds RoundClock::run(const std::vector<i64>& dealt, i64 microbatches, i64 round) {
  const i64 turns = static_cast<i64>(dealt.size()) / ((microbatches + round - 1) / round);
  std::size_t number = 0;
  begin_step();
  for (i64 left = microbatches; left > 0; left -= round) {
    ready_.assign(idx(std::min(round, left)), 0);
    for (std::size_t turn = 0; turn < idx(turns); ++turn) take(idx(dealt[number++]), turn);
  }
  return end_;
}

}  // namespace hetermoe
