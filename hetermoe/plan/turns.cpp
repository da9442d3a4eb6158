#include "hetermoe/plan/turns.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/backward_shares.h"

namespace hetermoe {
namespace {

class TurnList {
 public:
  TurnList(const Plan& plan, const Group& group) : plan_(plan), group_(group) {}

  std::vector<PlanTurn> run() {
    const auto layers = static_cast<i32>(group_.layers.size());
    for (i32 l = 0; l < layers; ++l) go_to(group_.layers[idx(l)].attention).forward.push_back(l);
    go_to(group_.head).head = true;
    for (i32 l = layers - 1; l >= 0; --l) go_to(backward_shares(group_.layers[idx(l)])).backward.push_back(l);
    for (std::size_t turn = 0; turn < turns_.size(); ++turn) add_lengths(turn);
    return std::move(turns_);
  }

 private:
  PlanTurn& go_to(const Shares& shares) {
    const auto count = static_cast<i32>(group_.microbatches.size());
    bool changes = shares_ == nullptr;
    for (i32 m = 0; m < count && !changes; ++m) changes = share_row(shares, m) != share_row(*shares_, m);
    shares_ = &shares;
    if (!changes) return turns_.back();
    PlanTurn& turn = turns_.emplace_back();
    const auto round = static_cast<i32>(round_of(plan_, group_));
    for (i32 m = 0; m < count; m += round) turn.devices.push_back(share_row(shares, m)[0].device);
    return turn;
  }

  void add_lengths(std::size_t turn) {
    const std::vector<double>& lengths = plan_.turn_lengths;
    const std::vector<DeviceId>& devices = group_.devices;
    for (const DeviceId device : turns_[turn].devices) {
      const auto number = std::find(devices.begin(), devices.end(), device) - devices.begin();
      const std::size_t of_device = static_cast<std::size_t>(number) * turns_.size() + turn;
      if (lengths.empty())
        turns_[turn].lengths.push_back(1);
      else
        turns_[turn].lengths.push_back(lengths[of_device < lengths.size() ? of_device : turn]);
    }
  }

  const Plan& plan_;
  const Group& group_;
  const Shares* shares_ = nullptr;
  std::vector<PlanTurn> turns_;
};

/// The turn that is last to compute with weights of a turn.
std::size_t last_use(const std::vector<PlanTurn>& turns, std::size_t turn) {
  std::size_t last = turn;
  for (std::size_t later = turn + 1; later < turns.size(); ++later) {
    for (const i32 layer : turns[turn].forward)
      if (std::ranges::count(turns[later].backward, layer) > 0) last = later;
  }
  return last;
}

std::string layers_text(const char* pass, const std::vector<i32>& layers) {
  if (layers.size() == 1) return fmt::format("{} of layer {}", pass, layers[0]);
  return fmt::format("{} of layers {} to {}", pass, layers.front(), layers.back());
}

}  // namespace

std::vector<PlanTurn> turns_of(const Plan& plan, const Group& group) { return TurnList(plan, group).run(); }

i64 round_of(const Plan& plan, const Group& group) {
  const auto all = static_cast<i64>(group.microbatches.size());
  return plan.window > 0 ? std::min<i64>(plan.window, all) : all;
}

std::vector<std::vector<TurnTime>> turn_times(const Plan& plan, const Group& group,
                                              const std::vector<PlanTurn>& turns, i64 steps) {
  const std::size_t count = group.microbatches.size(), round = idx(round_of(plan, group)),
                    num_rounds = (count + round - 1) / round;
  std::vector<std::vector<TurnTime>> times(turns.size(), std::vector<TurnTime>(count));
  std::map<DeviceId, double> free;   // when a device has ended what it has to do
  std::map<DeviceId, double> began;  // when its last turn did: the weights of the next come then
  std::vector<double> used(turns.size(), 0), published(turns.size(), 0);  // when weights came, are replaced
  for (std::size_t all = 0; all < idx(steps) * num_rounds; ++all) {
    const std::size_t r = all % num_rounds, first = r * round;
    for (std::size_t turn = 0; r == 0 && turn < turns.size(); ++turn)
      published[turn] = used[last_use(turns, turn)];
    for (std::size_t turn = 0; turn < turns.size(); ++turn) {
      const DeviceId device = turns[turn].devices[r];
      double& now = free[device];
      now = std::max(now, published[turn]);
      used[turn] = std::max({used[turn], published[turn], began[device]});
      for (std::size_t m = first; m < std::min(first + round, count); ++m) {
        const double there = turn == 0 ? 0 : times[turn - 1][m].end, begin = std::max(now, there);
        times[turn][m] = {begin, now = begin + turns[turn].lengths[r]};
      }
      began[device] = times[turn][first].begin;
    }
  }
  return times;
}

std::string turn_work(const PlanTurn& turn) {
  std::vector<std::string> parts;
  if (!turn.forward.empty()) parts.push_back(layers_text("forward", turn.forward));
  if (turn.head) parts.push_back("head");
  if (!turn.backward.empty()) parts.push_back(layers_text("backward", turn.backward));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<std::string> turn_faults(const Plan& plan) {
  const auto entries = static_cast<i64>(plan.turn_lengths.size());
  if (entries == 0) return {};
  if (plan.order != OrderPolicy::kRoundRobin)
    return {fmt::format("[turn_lengths] got {} entries, but order {} has no turns, expected none", entries,
                        name_of(plan.order))};
  std::vector<std::string> faults;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const auto turns = static_cast<i64>(turns_of(plan, plan.groups[g]).size()),
               devices = static_cast<i64>(plan.groups[g].devices.size());
    if (entries == turns || entries == turns * devices) continue;
    faults.push_back(fmt::format(
        "[turn_lengths] has {} entries, but rounds of groups[{}] have {} turns on {} devices, expected {}, "
        "or {} where devices differ",
        entries, g, turns, devices, turns, turns * devices));
  }
  return faults;
}

}  // namespace hetermoe
