#include "hetermoe/planner/moves.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

constexpr std::size_t kSmallGroup = 6;  ///< up to so many takers everyone may give to everyone
constexpr std::size_t kMostGivers = 3;  ///< and as many takers, in larger groups
constexpr i64 kAll = std::numeric_limits<i64>::max();

/// Changes one group; false = it does not apply.
using Change = std::function<bool(Group&, DeviceId from, DeviceId to)>;

void join_group(Group& group, DeviceId device) {
  const auto place = std::lower_bound(group.devices.begin(), group.devices.end(), device);
  if (place == group.devices.end() || *place != device) group.devices.insert(place, device);
}

std::optional<Plan> changed(const MoveContext& context, const Move& move, const Change& change) {
  Plan plan = context.plan;
  const std::vector<DeviceId>& devices = context.plan.groups[move.group].devices;
  const auto place = [&](DeviceId device) {
    return idx(std::find(devices.begin(), devices.end(), device) - devices.begin());
  };
  const bool joins = place(move.to) == devices.size();
  if (joins) join_group(plan.groups[move.group], move.to);
  if (!change(plan.groups[move.group], move.from, move.to)) return {};
  for (std::size_t other = 0; other < context.alike.size() && !joins; ++other) {
    if (other == move.group || idx(context.alike[other]) != move.group) continue;
    const std::vector<DeviceId>& theirs = context.plan.groups[other].devices;
    change(plan.groups[other], theirs[place(move.from)], theirs[place(move.to)]);
  }
  return plan;
}

bool move_expert(LayerOwners& experts, DeviceId from, DeviceId to) {
  for (std::size_t e = experts.size(); e-- > 0;) {
    if (experts[e].size() != 1 || experts[e][0].device != from) continue;
    experts[e][0].device = to;
    return true;
  }
  return false;
}

/// No pipeline.
bool has_same_shares(const Group& group) {
  return group.head == group.embed &&
         std::all_of(group.layers.begin(), group.layers.end(),
                     [&](const LayerPlacement& layer) { return layer.attention == group.embed; });
}

/// Of every microbatch, as many as `from` has but no more than `most`.
void give_sequences(Group& group, DeviceId from, DeviceId to, i64 most) {
  Shares shares = group.embed;
  for (ShareRow& row : shares) {
    const i64 given = std::min(most, sequences_of(row, from));
    const auto same = [&](const Share& share) { return share.device == to; };
    if (given > 0 && std::none_of(row.begin(), row.end(), same))
      row.push_back({.device = to, .sequences = 0});
    for (Share& share : row)
      share.sequences += share.device == to ? given : share.device == from ? -given : 0;
    std::erase_if(row, [](const Share& share) { return share.sequences == 0; });
  }
  group.embed = group.head = shares;
  for (LayerPlacement& layer : group.layers) layer.attention = shares;
}

bool has_sequences_everywhere(const Group& group, DeviceId device) {
  return std::all_of(group.embed.begin(), group.embed.end(),
                     [&](const ShareRow& row) { return sequences_of(row, device) > 0; });
}

}  // namespace

std::optional<Plan> retire_device(const MoveContext& context, const Move& move) {
  return changed(context, move, [](Group& group, DeviceId from, DeviceId to) {
    if (!has_same_shares(group)) return false;
    for (LayerPlacement& layer : group.layers) {
      while (move_expert(layer.experts, from, to)) {
      }
    }
    give_sequences(group, from, to, kAll);
    std::erase(group.devices, from);
    return true;
  });
}

std::optional<Plan> give_expert(const MoveContext& context, const Move& move, i64 layer) {
  return changed(context, move, [&](Group& group, DeviceId from, DeviceId to) {
    return move_expert(group.layers[idx(layer)].experts, from, to);
  });
}

std::optional<Plan> give_column(const MoveContext& context, const Move& move) {
  return changed(context, move, [](Group& group, DeviceId from, DeviceId to) {
    bool any = false;
    for (LayerPlacement& layer : group.layers) any = move_expert(layer.experts, from, to) || any;
    return any;
  });
}

std::optional<Plan> swap_layers(const MoveContext& context, const Move& move, i64 layer, i64 other) {
  return changed(context, move, [&](Group& group, DeviceId from, DeviceId to) {
    return move_expert(group.layers[idx(layer)].experts, from, to) &&
           move_expert(group.layers[idx(other)].experts, to, from);
  });
}

std::optional<Plan> give_sequence(const MoveContext& context, const Move& move) {
  const Group& group = context.plan.groups[move.group];
  if (!has_same_shares(group) || !has_sequences_everywhere(group, move.from)) return {};
  return changed(context, move, [](Group& changing, DeviceId from, DeviceId to) {
    give_sequences(changing, from, to, 1);
    return true;
  });
}

std::vector<DeviceId> free_devices(const Plan& plan) {
  std::vector<bool> used(plan.dtype.size(), false);
  for (const Group& group : plan.groups) {
    for (const DeviceId device : group.devices) used[idx(device)] = true;
  }
  std::vector<DeviceId> free;
  for (std::size_t d = 0; d < used.size(); ++d) {
    if (!used[d]) free.push_back(static_cast<DeviceId>(d));
  }
  return free;
}

std::vector<Move> exchanges(const Plan& plan, std::size_t group, const std::vector<double>& busy,
                            const std::vector<DeviceId>& free) {
  std::vector<DeviceId> from = plan.groups[group].devices;
  std::stable_sort(from.begin(), from.end(),
                   [&](DeviceId a, DeviceId b) { return busy[idx(a)] > busy[idx(b)]; });
  std::vector<DeviceId> to(from.rbegin(), from.rend());
  to.insert(to.begin(), free.begin(), free.end());
  if (to.size() > kSmallGroup) {
    from.resize(std::min(from.size(), kMostGivers));
    to.resize(kMostGivers);
  }
  std::vector<Move> moves;
  for (const DeviceId a : from) {
    for (const DeviceId b : to) {
      if (a != b) moves.push_back({.group = group, .from = a, .to = b});
    }
  }
  return moves;
}

}  // namespace hetermoe
