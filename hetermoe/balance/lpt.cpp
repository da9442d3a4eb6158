#include <algorithm>

#include "hetermoe/balance/eplb.h"
#include "hetermoe/base/index.h"

// Longest processing time first (Graham 1969), layer by layer: the heaviest expert goes to the device that
// would finish it earliest. A device gives every layer an equal part of its room.
namespace hetermoe {
namespace {

struct Filling {
  Seconds finish = 0;
  i64 slots = 0;  ///< experts of this layer that it may still take
};

/// Where an expert of this load is finished earliest. Devices without a slot are taken when none has one.
std::size_t earliest(const std::vector<BalanceDevice>& owners, const std::vector<Filling>& fillings,
                     double load) {
  const auto key = [&](std::size_t i) {
    return std::pair{fillings[i].slots <= 0, fillings[i].finish + load * owners[i].unit_s};
  };
  std::size_t best = 0;
  for (std::size_t i = 1; i < owners.size(); ++i) {
    if (key(i) < key(best)) best = i;
  }
  return best;
}

}  // namespace

std::vector<LayerOwners> place_lpt(const BalanceInput& input) {
  std::vector<BalanceDevice> owners = owning_devices(input);
  std::vector<LayerOwners> out;
  for (std::size_t l = 0; l < input.load.size(); ++l) {
    const std::vector<double>& load = input.load[l];
    const auto layers_left = static_cast<i64>(input.load.size() - l);
    std::vector<Filling> fillings;
    for (const BalanceDevice& device : owners) {
      const i64 slots = device.room / layers_left + (device.room % layers_left > 0 ? 1 : 0);
      fillings.push_back({.finish = device.busy / real(input.load.size()), .slots = slots});
    }
    out.emplace_back(load.size());
    for (const std::size_t expert : heaviest_first(load)) {
      const std::size_t i = earliest(owners, fillings, load[expert]);
      out.back()[expert] = {{.device = owners[i].id, .share = 1}};
      fillings[i].finish += load[expert] * owners[i].unit_s;
      --fillings[i].slots;
      if (owners[i].room > 0 && owners[i].room < kUnlimitedRoom) --owners[i].room;
    }
  }
  return out;
}

}  // namespace hetermoe
