#include "hetermoe/planner/search/same_group.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {

Group with_devices(const Group& group, const std::vector<DeviceId>& counterpart) {
  const auto translate = [&](DeviceId& device) { device = counterpart[idx(device)]; };
  const auto translate_all = [&](Shares& shares) {
    for (ShareRow& row : shares) {
      for (Share& share : row) translate(share.device);
    }
  };
  Group out = group;
  for (DeviceId& device : out.devices) translate(device);
  std::sort(out.devices.begin(), out.devices.end());
  translate_all(out.embed);
  translate_all(out.head);
  for (LayerPlacement& layer : out.layers) {
    translate_all(layer.attention);
    translate_all(layer.attention_backward);
    for (ExpertOwners& owners : layer.experts) {
      for (ExpertOwner& owner : owners) translate(owner.device);
    }
  }
  return out;
}

}  // namespace hetermoe
