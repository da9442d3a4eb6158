#pragma once
#include <map>
#include <optional>
#include <vector>

#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// How rows go to owners of experts where a token goes once to each node (Plan::row_nodes): one owner on the
/// node gets it and passes it on to the others there. Rows go straight to owners on the node of their source,
/// and to an owner that is alone on its node. Owners are named by their positions, ascending.
class NodeRows {
 public:
  /// owners: of a layer of a group. The plan must have row_nodes.
  NodeRows(const Plan& plan, i32 group, const std::vector<DeviceId>& owners);

  std::size_t num_nodes() const { return owners_.size(); }
  /// [nodes with owners, ascending] their owners.
  const std::vector<std::vector<std::size_t>>& owners() const { return owners_; }
  /// The node of an owner, as an index of owners().
  std::size_t node_of(std::size_t owner) const { return node_of_owner_[owner]; }
  /// The owner that passes on the rows of a source to the owners of a node. Sources on one node have
  /// different ones, as far as there are enough. None = rows go straight.
  std::optional<std::size_t> relay(DeviceId source, std::size_t node) const;
  /// Some node may have a relay.
  bool any() const;

 private:
  const std::vector<NodeId>& nodes_;  // [device]
  std::map<DeviceId, i32> rank_;      // of a device among those of its group and node
  std::vector<NodeId> numbers_;       // [nodes with owners]
  std::vector<std::vector<std::size_t>> owners_;
  std::vector<std::size_t> node_of_owner_;  // [owners]
};

}  // namespace hetermoe
