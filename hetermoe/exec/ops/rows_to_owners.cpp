#include "hetermoe/exec/ops/exchange_rows.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/comm/codec.h"
#include "hetermoe/device/host_copy.h"
#include "hetermoe/nn/rows.h"
#include "hetermoe/ops/work.h"

namespace hetermoe {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Those of all tokens of this source.
const at::Tensor& rows_of_source(OpContext& d, const Op& op) {
  const LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  return with_copies(op) ? slot.send : slot.d_hidden;
}

/// Goes with the rows for an owner: weight, row and expert of each copy.
Tensors copies_for(OpContext& d, const Op& op, std::size_t owner) {
  if (!with_copies(op)) return {};
  const LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  const SendIndex& send = slot.chunks[idx(op.chunk)].routed.send[owner];
  const at::Tensor weights = slot.weights.reshape({-1});
  return {weights.index_select(0, send.flat_C.to(weights.device())), send.row_C.to(at::kInt),
          send.expert_C.to(at::kInt)};
}

/// What is expected of these, of a source and an owner by their positions.
void expect_copies(OpContext& d, const Op& op, std::size_t source, std::size_t owner, MessageShape& shape) {
  if (!with_copies(op)) return;
  const auto copies = static_cast<i64>(chunk_of(d, op).load.copies_between(source, owner));
  const DeviceId device = Exchange(op, d.p).sources().device(source);
  const at::ScalarType theirs = scalar_type(d.p.plan().dtype[idx(device)]);
  shape.tensors.insert(shape.tensors.end(),
                       {{accumulate_type(theirs), {copies}}, {at::kInt, {copies}}, {at::kInt, {copies}}});
}

MessageShape::Part expected_rows(OpContext& d, const Op& op, double rows) {
  return encoded_part(wire_of(op, d.p.plan()), static_cast<i64>(rows), d.model.hidden);
}

/// Rows and experts of the copies, where the host reads them: kernels of our own are not told what to read by
/// another host. tensors: rows, weights, row and expert of each copy.
void check_indices(OpContext& d, const Op& op, DeviceId source, const Tensors& tensors) {
  if (!with_copies(op) || d.routing[idx(op.layer)].on_device) return;
  const std::vector<i64>& slot_of = slots_here(d, op);
  const i64 sent = num_rows(tensors[0], wire_of(op, d.p.plan()));
  const at::Tensor rows = to_host(tensors[2], "indices").contiguous(),
                   experts = to_host(tensors[3], "indices").contiguous();
  for (i64 c = 0; c < rows.numel(); ++c) {
    const i64 row = rows.const_data_ptr<i32>()[c], expert = experts.const_data_ptr<i32>()[c];
    if (row < 0 || row >= sent) {
      fail<TransportError>(d.name_of_peer(source), "row of copy {}: got {}, expected 0 to {}", c, row,
                           sent - 1);
    }
    if (expert < 0 || expert >= static_cast<i64>(slot_of.size()) || slot_of[idx(expert)] < 0)
      fail<TransportError>(d.name_of_peer(source), "expert of copy {}: got {}, which is not here", c, expert);
  }
}

/// What an owner has got of all sources, in their order.
void take(OpContext& d, const Op& op, const std::vector<Tensors>& of_sources) {
  ChunkSlot& slot = chunk_of(d, op);
  const auto joined = [](const Tensors& parts) { return parts.size() == 1 ? parts[0] : at::cat(parts); };
  Tensors rows;
  for (const Tensors& tensors : of_sources) rows.push_back(decoded(d, op, tensors[0]).to(d.state.dtype()));
  if (!with_copies(op)) {
    slot.d_out = joined(rows);
    return;
  }
  const bool on_device = d.routing[idx(op.layer)].on_device.has_value();
  const auto index_here = [&](const at::Tensor& index) {
    return on_device ? index : to_host(index, "indices").to(at::kLong);
  };
  Tensors weights;
  std::vector<ReceivedIndex> indices;
  for (std::size_t s = 0; s < of_sources.size(); ++s) {
    weights.push_back(of_sources[s][1].to(accumulate_type(d.state.dtype())));
    indices.push_back({rows[s].size(0), index_here(of_sources[s][2]), index_here(of_sources[s][3])});
  }
  slot.rows = joined(rows);
  slot.groups = group_received(d.routing_of(op), indices, slots_here(d, op), slot.offsets);
  slot.weights = to_grouped(slot.groups, at::cat(weights));
}

void append(Tensors& to, const Tensors& more) { to.insert(to.end(), more.begin(), more.end()); }

}  // namespace

// ---- Straight ----

void pack_to_owners(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  if (!d.sends(op)) return;
  const std::vector<SendIndex>& send = chunk_of(d, op).routed.send;
  const std::vector<DeviceId>& owners = d.p.owners(op);
  for (std::size_t o = 0; o < owners.size(); ++o) {
    Tensors& tensors = out[position(participants, owners[o])].tensors;
    tensors.push_back(encoded(d, op, gather_rows(rows_of_source(d, op), send[o].token_R)));
    append(tensors, copies_for(d, op, o));
  }
}

MessageShape expected_at_owner(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  const Exchange exchange(op, d.p);
  const std::optional<Exchange::Segment> told = exchange.segment_between(peer, d.device());
  if (!told) return {};
  MessageShape shape;
  shape.tensors = {
      expected_rows(d, op, exchange.rows_between(chunk_of(d, op).load, told->source, told->owner))};
  if (with_copies(op)) expect_copies(d, op, told->source, told->owner, shape);
  return shape;
}

void check_at_owner(OpContext& d, const Op& op, DeviceId peer, const Message& message) {
  if (!message.tensors.empty()) check_indices(d, op, peer, message.tensors);
}

void unpack_at_owner(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  if (!d.receives(op)) return;
  std::vector<Tensors> of_sources;
  for (const TokenRange source : Exchange(op, d.p).sources())
    of_sources.push_back(in[position(participants, source.device)].tensors);
  take(d, op, of_sources);
}

// ---- By nodes ----

namespace {

/// How rows of a source come to this device.
enum class Way { kNone, kStraight, kToPassOn };
Way way_from(const OpContext& d, const Op& op, const NodeRows& nodes, DeviceId source) {
  const std::vector<DeviceId>& owners = d.p.owners(op);
  const std::size_t me = position(owners, d.device());
  if (me == owners.size() || owners[me] != d.device()) return Way::kNone;
  const std::optional<std::size_t> relay = nodes.relay(source, nodes.node_of(me));
  return !relay ? Way::kStraight : *relay == me ? Way::kToPassOn : Way::kNone;
}

/// Of the tensors that are to be passed on: rows, then for each owner of the node which of them are its rows,
/// and its copies. In groups the rows get the scales of other groups: they are rounded once more.
Tensors for_owner(OpContext& d, const Op& op, const Tensors& passing, std::size_t owner_on_node) {
  const std::size_t each = with_copies(op) ? 4 : 1, first = 1 + owner_on_node * each;
  const at::Tensor pick = passing[first].to(passing[0].device());
  const bool grouped = has_groups(wire_of(op, d.p.plan()));
  Tensors out = {grouped ? encoded(d, op, decoded(d, op, passing[0]).index_select(0, pick))
                         : passing[0].index_select(0, pick)};
  for (std::size_t t = 1; t < each; ++t) out.push_back(passing[first + t]);
  return out;
}

/// Where the host reads them; a GPU checks them as it gathers rows.
void check_picks(OpContext& d, const Op& op, DeviceId source, const NodeRows& nodes, const Tensors& tensors) {
  if (d.routing[idx(op.layer)].on_device) return;
  const std::size_t each = with_copies(op) ? 4 : 1;
  const i64 sent = num_rows(tensors[0], wire_of(op, d.p.plan()));
  for (std::size_t i = 0; i < owners_here(d, op, nodes).size(); ++i) {
    const at::Tensor pick = to_host(tensors[1 + i * each], "picks").contiguous();
    for (i64 r = 0; r < pick.numel(); ++r) {
      const i32 got = pick.const_data_ptr<i32>()[r];
      if (got >= 0 && got < sent) continue;
      fail<TransportError>(d.name_of_peer(source), "pick of row {}: got {}, expected 0 to {}", r, got,
                           sent - 1);
    }
  }
}

void pack_to_nodes(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  if (!d.sends(op)) return;
  const NodeRows nodes = nodes_of(d, op);
  RoutedCopies& routed = chunk_of(d, op).routed;
  if (routed.of_nodes.empty()) find_node_tokens(d, op, routed);
  const std::vector<DeviceId>& owners = d.p.owners(op);
  const at::Tensor& rows = rows_of_source(d, op);
  for (std::size_t n = 0; n < nodes.num_nodes(); ++n) {
    const std::optional<std::size_t> relay = nodes.relay(d.device(), n);
    const NodeTokens& tokens = routed.of_nodes[n];
    if (relay) {
      Tensors& tensors = out[position(participants, owners[*relay])].tensors;
      tensors.push_back(encoded(d, op, gather_rows(rows, tokens.token_R)));
      for (std::size_t i = 0; i < tokens.pick_R.size(); ++i) {
        tensors.push_back(tokens.pick_R[i]);
        append(tensors, copies_for(d, op, nodes.owners()[n][i]));
      }
      continue;
    }
    for (const std::size_t o : nodes.owners()[n]) {
      Tensors& tensors = out[position(participants, owners[o])].tensors;
      tensors.push_back(encoded(d, op, gather_rows(rows, routed.send[o].token_R)));
      append(tensors, copies_for(d, op, o));
    }
  }
}

MessageShape expected_at_node(OpContext& d, const Op& op, DeviceId peer, const Message& own) {
  const Exchange exchange(op, d.p);
  if (!exchange.sends(peer)) return {};
  const NodeRows nodes = nodes_of(d, op);
  const Way way = way_from(d, op, nodes, peer);
  if (way == Way::kStraight) return expected_at_owner(d, op, peer, own);
  if (way == Way::kNone) return {};
  const ExchangeLoad& load = chunk_of(d, op).load;
  const auto source = idx(exchange.sources().index_of(peer));
  MessageShape shape;
  shape.tensors = {
      expected_rows(d, op, load.rows_to_node(source, nodes.node_of(exchange.owner_index(d.device()))))};
  for (const std::size_t o : owners_here(d, op, nodes)) {
    shape.tensors.push_back({at::kInt, {static_cast<i64>(load.rows_between(source, o))}});
    expect_copies(d, op, source, o, shape);
  }
  return shape;
}

void check_at_node(OpContext& d, const Op& op, DeviceId peer, const Message& message) {
  if (message.tensors.empty()) return;
  const NodeRows nodes = nodes_of(d, op);
  if (way_from(d, op, nodes, peer) == Way::kToPassOn)
    check_picks(d, op, peer, nodes, message.tensors);
  else
    check_indices(d, op, peer, message.tensors);
}

void unpack_at_node(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  if (!d.receives(op)) return;
  const NodeRows nodes = nodes_of(d, op);
  std::vector<Tensors>& passing = passing_in(d, op);
  passing.clear();
  for (const TokenRange source : Exchange(op, d.p).sources())
    passing.push_back(std::move(in[position(participants, source.device)].tensors));
  if (!with_copies(op)) return;
  std::vector<Tensors>& picks = chunk_of(d, op).picks;
  picks.assign(passing.size(), {});
  for (const std::size_t s : passed_by(d, op, nodes, d.device()))
    for (std::size_t t = 1; t < passing[s].size(); t += 4) picks[s].push_back(passing[s][t]);
}

void pack_in_node(OpContext& d, const Op& op, Devices mates, std::vector<Message>& out) {
  if (!d.receives(op)) return;
  const NodeRows nodes = nodes_of(d, op);
  const std::vector<std::size_t>& here = owners_here(d, op, nodes);
  const TokenRanges sources = Exchange(op, d.p).sources();
  for (std::size_t s = 0; s < sources.size(); ++s) {
    if (way_from(d, op, nodes, sources.device(s)) != Way::kToPassOn) continue;
    for (std::size_t i = 0; i < here.size(); ++i)
      append(out[position(mates, d.p.owners(op)[here[i]])].tensors,
             for_owner(d, op, passing_in(d, op)[s], i));
  }
}

MessageShape expected_in_node(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  if (!d.receives(op)) return {};
  const NodeRows nodes = nodes_of(d, op);
  const ExchangeLoad& load = chunk_of(d, op).load;
  const std::size_t me = position(d.p.owners(op), d.device());
  MessageShape shape;
  for (const std::size_t source : passed_by(d, op, nodes, peer)) {
    shape.tensors.push_back(expected_rows(d, op, load.rows_between(source, me)));
    expect_copies(d, op, source, me, shape);
  }
  return shape;
}

void unpack_in_node(OpContext& d, const Op& op, Devices mates, std::vector<Message>& in) {
  if (!d.receives(op)) return;
  const NodeRows nodes = nodes_of(d, op);
  std::vector<Tensors> of_sources = std::exchange(passing_in(d, op), {});
  const std::size_t each = with_copies(op) ? 4 : 1;
  for (std::size_t i = 0; i < mates.size(); ++i) {
    std::size_t next = 0;
    for (const std::size_t source : passed_by(d, op, nodes, mates[i])) {
      const auto begin = in[i].tensors.begin() + static_cast<std::ptrdiff_t>(next);
      of_sources[source].assign(begin, begin + static_cast<std::ptrdiff_t>(each));
      check_indices(d, op, mates[i], of_sources[source]);
      next += each;
    }
  }
  take(d, op, of_sources);
}

}  // namespace

std::vector<std::size_t> passed_by(const OpContext& d, const Op& op, const NodeRows& nodes, DeviceId owner) {
  const Exchange exchange(op, d.p);
  std::vector<std::size_t> out;
  if (!exchange.is_owner(owner)) return out;
  const TokenRanges sources = exchange.sources();
  const std::size_t me = exchange.owner_index(owner);
  for (std::size_t s = 0; s < sources.size(); ++s) {
    if (nodes.relay(sources.device(s), nodes.node_of(me)) == me) out.push_back(s);
  }
  return out;
}

std::vector<DeviceId> on_node_of(const Cluster& cluster, Devices participants, DeviceId self) {
  std::vector<DeviceId> out;
  for (const DeviceId device : participants)
    if (cluster.node_of(device) == cluster.node_of(self)) out.push_back(device);
  return out;
}

const TransferOp& to_owners_by_node() {
  static const TransferOp inside = {
      .pack = pack_in_node, .expected = expected_in_node, .unpack = unpack_in_node, .peers = on_node_of};
  static const TransferOp all = {.pack = pack_to_nodes,
                                 .expected = expected_at_node,
                                 .check_content = check_at_node,
                                 .unpack = unpack_at_node,
                                 .next = &inside};
  return all;
}

void find_node_tokens(OpContext& d, const Op& op, RoutedCopies& routed) {
  if (!goes_by_node(op, d.p)) return;
  if (routed.send.empty()) {
    const at::Tensor on_host = to_host(routed.begins, "rows by owner").to(at::kLong).contiguous();
    const i64* begins = on_host.const_data_ptr<i64>();
    cut_by_owner(routed, d.routing_of(op), {begins, begins + on_host.numel()});
  }
  const NodeRows nodes = nodes_of(d, op);
  routed.of_nodes.assign(nodes.num_nodes(), {});
  for (std::size_t n = 0; n < nodes.num_nodes(); ++n) {
    routed.of_nodes[n].owners = nodes.owners()[n];
    if (!nodes.relay(d.device(), n)) continue;
    Tensors of_owners;
    std::vector<i64> sizes;
    for (const std::size_t o : nodes.owners()[n]) {
      of_owners.push_back(routed.send[o].token_R);
      sizes.push_back(routed.send[o].num_rows());
    }
    const auto [tokens, picks, counts] =
        at::_unique2(at::cat(of_owners), /*sorted=*/true, /*return_inverse=*/true);
    routed.of_nodes[n].token_R = tokens;
    routed.of_nodes[n].pick_R = picks.to(at::kInt).split_with_sizes(sizes);
  }
}

std::size_t num_node_counts(OpContext& d, const Op& op, DeviceId source) {
  if (!goes_by_node(op, d.p)) return 0;
  const NodeRows nodes = nodes_of(d, op);
  std::size_t count = 0;
  for (std::size_t n = 0; n < nodes.num_nodes(); ++n) count += nodes.relay(source, n) ? 1 : 0;
  return count;
}

at::Tensor node_counts(const RoutedCopies& routed) {
  std::vector<i64> counts;
  for (const NodeTokens& tokens : routed.of_nodes)
    if (tokens.token_R.defined()) counts.push_back(tokens.token_R.size(0));
  return int32_tensor(counts);
}

void add_node_rows(OpContext& d, const Op& op, std::size_t source, const i32* told, ExchangeLoad& load) {
  if (!goes_by_node(op, d.p)) return;
  const NodeRows nodes = nodes_of(d, op);
  const DeviceId device = Exchange(op, d.p).sources().device(source);
  for (std::size_t n = 0; n < nodes.num_nodes(); ++n) {
    double most = 0, least = 0;
    for (const std::size_t o : nodes.owners()[n]) {
      most += load.rows_between(source, o);
      least = std::max(least, load.rows_between(source, o));
    }
    const double rows = nodes.relay(device, n) ? real(*told++) : most;
    if (rows < least || rows > most) {
      fail<TransportError>(d.name_of_peer(device),
                           "rows for a node: got {}, expected {} to {}, those for its devices", rows, least,
                           most);
    }
    load.node_rows.push_back(rows);
  }
}

}  // namespace hetermoe
