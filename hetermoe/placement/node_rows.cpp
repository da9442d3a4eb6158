#include "hetermoe/placement/node_rows.h"

#include <algorithm>
#include <map>

#include "hetermoe/base/index.h"

namespace hetermoe {

NodeRows::NodeRows(const Plan& plan, i32 group, const std::vector<DeviceId>& owners)
    : nodes_(plan.row_nodes) {
  std::map<NodeId, i32> ranks;
  for (const DeviceId device : plan.groups[idx(group)].devices) rank_[device] = ranks[nodes_[idx(device)]]++;
  std::map<NodeId, std::vector<std::size_t>> on_node;
  for (std::size_t o = 0; o < owners.size(); ++o) on_node[nodes_[idx(owners[o])]].push_back(o);
  node_of_owner_.resize(owners.size());
  for (auto& [node, there] : on_node) {
    for (const std::size_t o : there) node_of_owner_[o] = owners_.size();
    numbers_.push_back(node);
    owners_.push_back(std::move(there));
  }
}

std::optional<std::size_t> NodeRows::relay(DeviceId source, std::size_t node) const {
  const std::vector<std::size_t>& there = owners_[node];
  if (there.size() < 2 || nodes_[idx(source)] == numbers_[node]) return {};
  return there[idx(rank_.at(source)) % there.size()];
}

bool NodeRows::any() const {
  return std::any_of(owners_.begin(), owners_.end(), [](const auto& there) { return there.size() > 1; });
}

}  // namespace hetermoe
