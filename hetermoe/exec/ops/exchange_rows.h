#pragma once
#include "hetermoe/exec/ops/op_functions.h"

// Rows of an exchange. To owners of experts: dispatch.F and dispatch.R with routing weights and indices of
// their copies, combine.B. Back to sources: combine.F, and dispatch.B with gradients of routing weights. They
// go straight, or where a token goes once to each node (NodeRows) in two exchanges; then the device that
// passed rows on adds up what comes back for them.
namespace hetermoe {

// ---- To owners: rows_to_owners.cpp ----

/// Cuts the tables of this source by owner, and finds the distinct tokens for each node that has a relay.
void find_node_tokens(OpContext& d, const Op& op, RoutedCopies& routed);
/// How many numbers of rows a source tells beside those for owners: one for each relay.
std::size_t num_node_counts(OpContext& d, const Op& op, DeviceId source);
/// Those of this source, int32.
at::Tensor node_counts(const RoutedCopies& routed);
/// Tells a load what a source told. Throws TransportError where there cannot be so many.
void add_node_rows(OpContext& d, const Op& op, std::size_t source, const i32* told, ExchangeLoad& load);

void pack_to_owners(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out);
MessageShape expected_at_owner(OpContext& d, const Op& op, DeviceId peer, const Message&);
void check_at_owner(OpContext& d, const Op& op, DeviceId peer, const Message& message);
void unpack_at_owner(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in);
/// The two exchanges by nodes.
const TransferOp& to_owners_by_node();

// ---- Back to sources: rows_to_sources.cpp ----

void pack_to_sources(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out);
MessageShape expected_at_source(OpContext& d, const Op& op, DeviceId peer, const Message&);
void unpack_at_source(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in);
const TransferOp& to_sources_by_node();

// ---- For both ----

inline ChunkSlot& chunk_of(OpContext& d, const Op& op) {
  return d.slots.chunk(op.layer, op.microbatch, op.chunk);
}
/// Copies go with the rows, not rows alone.
inline bool with_copies(const Op& op) { return row_of(op.kind).carries_routing_weights; }
/// Between the two exchanges of an op.
inline std::vector<std::vector<at::Tensor>>& passing_in(OpContext& d, const Op& op) {
  return chunk_of(d, op).passing[(with_copies(op) ? 2 : 0) + (goes_to_owners(op) ? 1 : 0)];
}
inline NodeRows nodes_of(const OpContext& d, const Op& op) { return {d.p.plan(), op.group, d.p.owners(op)}; }
/// The owners on this device's node. It is an owner.
inline const std::vector<std::size_t>& owners_here(const OpContext& d, const Op& op, const NodeRows& nodes) {
  return nodes.owners()[nodes.node_of(position(d.p.owners(op), d.device()))];
}
/// Positions of the sources whose rows an owner passes on in its node, in their order.
std::vector<std::size_t> passed_by(const OpContext& d, const Op& op, const NodeRows& nodes, DeviceId owner);
/// The participants on the node of a device.
std::vector<DeviceId> on_node_of(const Cluster& cluster, Devices participants, DeviceId self);

}  // namespace hetermoe
