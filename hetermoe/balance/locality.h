#pragma once
#include <string>
#include <vector>

#include "hetermoe/balance/balancers.h"

// Experts go where the sequences that use them are, so that fewer copies change device groups: nodes, or
// whatever shares fast links.
namespace hetermoe {

/// "node", "device" or lists of devices, as [[0,1],[2,3]], of the devices given. Throws ConfigError when
/// lists overlap, are empty or leave a device out.
std::vector<std::vector<DeviceId>> device_groups(const std::string& text, const Cluster& cluster,
                                                 const std::vector<DeviceId>& devices);

/// Throws ConfigError for a cap that nothing can keep; 0 = none.
void check_load_cap(const std::string& where, double cap);

/// [groups][experts] copies that sequences of each group send.
using Usage = std::vector<std::vector<double>>;

/// Copies whose expert is in another group than their sequence. group: [experts].
double copies_outside(const Usage& usage, const std::vector<i32>& group);

/// Which group has which expert; room: [groups] experts, together at least all. Greedy: experts that prefer a
/// group most come first, each to the group with room that uses it most.
std::vector<i32> place_greedy(const Usage& usage, const std::vector<i64>& room);
/// The least copies_outside() there is: a transportation problem, by shortest augmenting paths.
std::vector<i32> place_exact(const Usage& usage, const std::vector<i64>& room);

/// By load alone: the heaviest expert first, to the group with room that ends it earliest.
std::vector<i32> place_by_load(const Usage& usage, const std::vector<i64>& room,
                               const std::vector<double>& speeds);

/// Largest over mean of the groups' load per speed. load: [experts].
double group_ratio(const std::vector<double>& load, const std::vector<double>& speeds,
                   const std::vector<i32>& group);

struct CappedPlacement {
  std::vector<i32> group;
  double ratio = 0;    ///< group_ratio()
  bool capped = true;  ///< false: not even experts dealt out by load alone keep the cap
};
/// Few copies outside while group_ratio() is at most cap (at least 1). Not always the least.
CappedPlacement place_capped(const Usage& usage, const std::vector<i64>& room,
                             const std::vector<double>& speeds, double cap);

/// Experts of each group: in proportion to speed, together num_experts.
std::vector<i64> group_room(i64 num_experts, const std::vector<double>& speeds);

}  // namespace hetermoe
