#pragma once
#include <optional>
#include <vector>

#include "hetermoe/nn/device_routing.h"

namespace hetermoe {

/// The owners of the experts of one layer of a group, in the forms in which a device uses them.
struct LayerRouting {
  LayerRouting(OwnerTable table, i64 num_owners, c10::Device device);

  OwnerTable owners;
  OwnerBins bins;
  i64 num_owners;
  std::optional<DeviceOwners> on_device;  ///< where kernels of our own make the tables
  at::Tensor slot_of;                     ///< int32 [E] on the device, made by the first who asks
};

/// What a source sends to a node (NodeRows).
struct NodeTokens {
  std::vector<std::size_t> owners;  ///< there
  at::Tensor token_R;              ///< distinct tokens, ascending; undefined where rows go straight to owners
  std::vector<at::Tensor> pick_R;  ///< int32, by owner there: which of these are its rows
};

/// Copies that a source sends to each owner in one chunk.
struct RoutedCopies {
  std::vector<SendIndex> send;  ///< by owner; empty as long as only the device knows where each begins
  DeviceSplit split;            ///< of all owners, then
  at::Tensor begins;            ///< as begins_of(), where the choices are
  std::vector<NodeTokens> of_nodes = {};  ///< ascending, where rows go by nodes

  /// The tokens of what comes back: of each owner, or each node that sends sums.
  std::vector<at::Tensor> tokens_back() const;
};

/// topk_TK: the choices of the chunk, whose first token is number `first_token` of the share; what is made
/// counts tokens and copies from the share's first.
RoutedCopies route_copies(const LayerRouting& routing, const at::Tensor& topk_TK, i64 first_token,
                          RowDedup dedup);
/// When the host knows `begins`: cuts the tables of all owners.
void cut_by_owner(RoutedCopies& routed, const LayerRouting& routing, const std::vector<i64>& begins);

/// Copies of all sources grouped by slot. offsets: [slots + 1] copies of each slot, from what the sources
/// told. Throws TransportError when others came, where the host looks at them.
CopyGroups group_received(LayerRouting& routing, const std::vector<ReceivedIndex>& sources,
                          const std::vector<i64>& slot_of, const std::vector<i64>& offsets);

}  // namespace hetermoe
