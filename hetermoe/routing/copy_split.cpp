#include "hetermoe/routing/copy_split.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {

OwnerTable owner_table(const Placement& placement, i32 group, i32 layer) {
  OwnerTable table;
  if (placement.at_sources(group, layer)) {
    table.assign(placement.plan().groups[idx(group)].layers[idx(layer)].experts.size(), {{0, 1.0}});
    return table;
  }
  const std::vector<DeviceId>& owners = placement.owners(group, layer);
  for (const ExpertOwners& of_expert : placement.plan().groups[idx(group)].layers[idx(layer)].experts) {
    std::vector<ExpertShare> shares;
    for (const ExpertOwner& owner : of_expert)
      shares.push_back({static_cast<i32>(position(owners, owner.device)), owner.share});
    std::sort(shares.begin(), shares.end(), [](auto& a, auto& b) { return a.destination < b.destination; });
    table.push_back(std::move(shares));
  }
  return table;
}

}  // namespace hetermoe
