#include "hetermoe/balance/balancers.h"
#include "hetermoe/base/integer_split.h"

// Numbers of experts by speed alone. Loads, room and other work are not looked at.
namespace hetermoe {

std::vector<LayerOwners> place_proportional(const BalanceInput& input) {
  std::vector<BalanceDevice> owners;
  std::vector<double> speeds;
  for (const BalanceDevice& device : input.devices) {
    if (!device.owns) continue;
    owners.push_back(device);
    speeds.push_back(device.speed());
  }
  std::vector<LayerOwners> out;
  for (const std::vector<double>& load : input.load)
    out.push_back(owners_in_runs(owners, proportional_split(static_cast<i64>(load.size()), speeds)));
  return out;
}

std::vector<LayerOwners> place_even(const BalanceInput& input) {
  BalanceInput same = input;
  for (BalanceDevice& device : same.devices) device.unit_s = 1;
  return place_proportional(same);
}

}  // namespace hetermoe
