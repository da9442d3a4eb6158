#pragma once
#include <vector>

#include "hetermoe/placement/routing_load.h"
#include "hetermoe/routing/exact_split.h"

namespace hetermoe {

/// Where guests may go: copies of experts on further devices for one exchange.
struct GuestRoom {
  i64 slots = 0;              ///< for guests on each device
  std::vector<NodeId> nodes;  ///< [devices]; a guest is on the node of one of the expert's hosts
  /// [devices] copies that the device would compute in the time that one guest costs there; empty = 0
  std::vector<i64> cost = {};
};

/// The hosts of a split, guests behind those that were there.
struct GuestSplit {
  Hosts hosts;
  std::vector<Guest> guests;  ///< by expert; none without copies
  WholeSplit split;           ///< over `hosts`
};

/// Copies, hosts and speeds as for whole_split(). Guests are taken one by one by what they relieve the latest
/// device of its node of, then copies are divided exactly. Never slower than whole_split() on the hosts
/// given, the cost of guests included. Not always the best: guests once chosen stay.
GuestSplit split_with_guests(const std::vector<i64>& copies, const Hosts& hosts,
                             const std::vector<i64>& speeds, const GuestRoom& room);

}  // namespace hetermoe
