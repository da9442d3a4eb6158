#pragma once
#include <optional>
#include <vector>

#include "hetermoe/ops/load_table.h"

// Devices that do the same at the same time need to be simulated once. All is exact: a fold holds when the
// cost model tells devices apart by type, speed, dtype and work alone, as all of ours do.
namespace hetermoe {

/// The devices and groups that stand for others.
struct Fold {
  std::vector<DeviceId> device;  ///< [num_devices] representative; a device that stands for itself is listed
  std::vector<i32> group;        ///< [num_groups] likewise: all devices of the others are folded

  std::vector<bool> listed() const;  ///< [num_devices] for build_schedule()
  i64 num_listed() const;
};

/// kDevices: devices of one group, and of one team, that have the same type, speed, shares, experts and
/// states; every transfer stays one transfer. kTeams: also teams of a group with equal members. kGroups: also
/// groups that are arranged alike, each device of one with its counterpart of the other. Transfers of folded
/// teams and groups, and reduces between counterparts, stand for several that run at the same time. Whether
/// their ports agree only their prices tell: price_folded().
enum class FoldScope { kDevices, kTeams, kGroups };

/// [num_groups] the first group whose placement is the same but for the numbers of its devices, which are of
/// the same types in the same order.
std::vector<i32> alike_groups(const Plan& plan, const Cluster& cluster);

/// A fold that folds nothing when there is nothing to fold, when the routing is not uniform, the order is
/// explicit or the plan uses hosts. Empty when groups cannot be folded (kGroups), or there are no teams that
/// can (kTeams).
std::optional<Fold> find_fold(const Placement& placement, const ModelConfig& model, const Cluster& cluster,
                              LoadTable& loads, FoldScope scope);

/// States whose reduces run at the same time as that of `state`, which is among them: those of the other
/// devices of a class of its own. Only `state` itself when its devices are all of their classes.
std::vector<i32> folded_states(const Placement& placement, const Fold& fold, i32 state);

}  // namespace hetermoe
