#include <utility>

#include "hetermoe/comm/codec.h"
#include "hetermoe/exec/ops/exchange_rows.h"
#include "hetermoe/ops/work.h"

namespace hetermoe {
namespace {

using Tensors = std::vector<at::Tensor>;

/// What an owner has for all sources, one after another: rows, and gradients of the weights of their copies.
struct RowsOfOwner {
  at::Tensor rows, weights;
};
RowsOfOwner rows_of_owner(OpContext& d, const Op& op) {
  ChunkSlot& slot = chunk_of(d, op);
  return with_copies(op) ? RowsOfOwner{slot.d_rows, slot.d_weights} : RowsOfOwner{slot.out, {}};
}

/// f(source, its rows as they travel, its weights). Groups of rows are those of a source; else all rows are
/// encoded together.
template <class F>
void for_sources(OpContext& d, const Op& op, const F& f) {
  RowsOfOwner all = rows_of_owner(d, op);
  const bool grouped = has_groups(wire_of(op, d.p.plan()));
  if (!grouped) all.rows = encoded(d, op, all.rows);
  const ExchangeLoad& load = chunk_of(d, op).load;
  const Exchange exchange(op, d.p);
  const std::size_t me = exchange.owner_index(d.device());
  i64 row = 0, copy = 0;
  for (std::size_t s = 0; s < exchange.sources().size(); ++s) {
    const auto num_rows = static_cast<i64>(exchange.rows_between(load, s, me));
    const at::Tensor rows = all.rows.narrow(0, row, num_rows);
    Tensors tensors = {grouped ? encoded(d, op, rows) : rows};
    row += num_rows;
    if (with_copies(op)) {
      const auto num_copies = static_cast<i64>(load.copies_between(s, me));
      tensors.push_back(all.weights.narrow(0, copy, num_copies));
      copy += num_copies;
    }
    f(s, std::move(tensors));
  }
}

MessageShape shape_of(OpContext& d, const Op& op, DeviceId peer, double rows, double copies) {
  MessageShape shape;
  shape.tensors = {encoded_part(wire_of(op, d.p.plan()), static_cast<i64>(rows), d.model.hidden)};
  if (with_copies(op))
    shape.tensors.push_back(
        {accumulate_type(scalar_type(d.p.plan().dtype[idx(peer)])), {static_cast<i64>(copies)}});
  return shape;
}

/// rows: as RoutedCopies::tokens_back(). weights: by owner.
void take_back(OpContext& d, const Op& op, Tensors rows, Tensors weights) {
  ChunkSlot& slot = chunk_of(d, op);
  for (at::Tensor& row : rows) row = decoded(d, op, row);
  if (!with_copies(op)) {
    slot.returned = std::move(rows);
    if (op.phase == Phase::kRecompute) slot.returned.clear();  // resent for its traffic only
    return;
  }
  slot.d_send = std::move(rows), slot.d_send_weights = std::move(weights);
}

}  // namespace

// ---- Straight ----

void pack_to_sources(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  if (!d.sends(op)) return;
  const TokenRanges sources = Exchange(op, d.p).sources();
  for_sources(d, op, [&](std::size_t source, Tensors tensors) {
    out[position(participants, sources.device(source))].tensors = std::move(tensors);
  });
}

MessageShape expected_at_source(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  const Exchange exchange(op, d.p);
  const std::optional<Exchange::Segment> told = exchange.segment_between(peer, d.device());
  if (!told) return {};
  const ExchangeLoad& load = chunk_of(d, op).load;
  const double copies = with_copies(op) ? load.copies_between(told->source, told->owner) : 0;
  return shape_of(d, op, peer, exchange.rows_between(load, told->source, told->owner), copies);
}

void unpack_at_source(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  if (!d.receives(op)) return;
  Tensors rows, weights;
  for (const DeviceId owner : d.p.owners(op)) {
    const Tensors& tensors = in[position(participants, owner)].tensors;
    rows.push_back(tensors[0]);
    if (with_copies(op)) weights.push_back(tensors[1]);
  }
  take_back(d, op, std::move(rows), std::move(weights));
}

// ---- By nodes ----

namespace {

void pack_for_relays(OpContext& d, const Op& op, Devices mates, std::vector<Message>& out) {
  if (!d.sends(op)) return;
  const NodeRows nodes = nodes_of(d, op);
  const std::vector<DeviceId>& owners = d.p.owners(op);
  const std::size_t here = nodes.node_of(position(owners, d.device()));
  const TokenRanges sources = Exchange(op, d.p).sources();
  std::vector<Tensors>& passing = passing_in(d, op);
  passing.assign(sources.size(), {});
  for_sources(d, op, [&](std::size_t source, Tensors tensors) {
    const std::optional<std::size_t> relay = nodes.relay(sources.device(source), here);
    if (!relay) {
      passing[source] = std::move(tensors);
      return;
    }
    Tensors& message = out[position(mates, owners[*relay])].tensors;
    message.insert(message.end(), tensors.begin(), tensors.end());
  });
}

MessageShape expected_at_relay(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  MessageShape shape;
  if (!d.sends(op) || !d.p.is_owner(op, peer)) return shape;
  const ExchangeLoad& load = chunk_of(d, op).load;
  const std::size_t owner = position(d.p.owners(op), peer);
  for (const std::size_t source : passed_by(d, op, nodes_of(d, op), d.device())) {
    const MessageShape each = shape_of(d, op, peer, load.rows_between(source, owner),
                                       with_copies(op) ? load.copies_between(source, owner) : 0);
    shape.tensors.insert(shape.tensors.end(), each.tensors.begin(), each.tensors.end());
  }
  return shape;
}

/// Adds up the rows of each token that came back, owner by owner.
void unpack_at_relay(OpContext& d, const Op& op, Devices mates, std::vector<Message>& in) {
  if (!d.sends(op)) return;
  ChunkSlot& slot = chunk_of(d, op);
  const NodeRows nodes = nodes_of(d, op);
  const std::vector<DeviceId>& owners = d.p.owners(op);
  const std::vector<std::size_t>& here = owners_here(d, op, nodes);
  const std::size_t node = nodes.node_of(position(owners, d.device())), each = with_copies(op) ? 2 : 1;
  const at::ScalarType dtype = accumulate_type(d.state.dtype());
  std::size_t next = 0;
  for (const std::size_t source : passed_by(d, op, nodes, d.device())) {
    const auto num_rows = static_cast<i64>(slot.load.rows_to_node(source, node));
    at::Tensor sum =
        at::zeros({num_rows, d.model.hidden}, at::TensorOptions().dtype(dtype).device(d.where()));
    Tensors weights;
    for (std::size_t i = 0; i < here.size(); ++i) {
      const Tensors& tensors = in[position(mates, owners[here[i]])].tensors;
      sum.index_add_(0, slot.picks[source][i].to(d.where()), decoded(d, op, tensors[next]).to(dtype));
      if (with_copies(op)) weights.push_back(tensors[next + 1].to(dtype));
    }
    passing_in(d, op)[source] = {encoded(d, op, sum)};
    if (with_copies(op)) passing_in(d, op)[source].push_back(at::cat(weights));
    next += each;
  }
}

void pack_from_nodes(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  if (!d.sends(op)) return;
  const TokenRanges sources = Exchange(op, d.p).sources();
  std::vector<Tensors> passing = std::exchange(passing_in(d, op), {});
  for (std::size_t s = 0; s < passing.size(); ++s)
    out[position(participants, sources.device(s))].tensors = std::move(passing[s]);
}

MessageShape expected_from_nodes(OpContext& d, const Op& op, DeviceId peer, const Message& own) {
  if (!d.receives(op) || !d.p.is_owner(op, peer)) return {};
  const NodeRows nodes = nodes_of(d, op);
  const Exchange exchange(op, d.p);
  const std::size_t owner = exchange.owner_index(peer), node = nodes.node_of(owner);
  const std::optional<std::size_t> relay = nodes.relay(d.device(), node);
  if (!relay) return expected_at_source(d, op, peer, own);
  if (*relay != owner) return {};
  const ExchangeLoad& load = chunk_of(d, op).load;
  const auto me = idx(exchange.sources().index_of(d.device()));
  double copies = 0;
  for (const std::size_t o : nodes.owners()[node]) copies += with_copies(op) ? load.copies_between(me, o) : 0;
  return shape_of(d, op, peer, load.rows_to_node(me, node), copies);
}

void unpack_from_nodes(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  if (!d.receives(op)) return;
  const NodeRows nodes = nodes_of(d, op);
  const std::vector<DeviceId>& owners = d.p.owners(op);
  const ExchangeLoad& load = chunk_of(d, op).load;
  const auto me = idx(Exchange(op, d.p).sources().index_of(d.device()));
  Tensors rows, weights(with_copies(op) ? owners.size() : 0);
  for (std::size_t n = 0; n < nodes.num_nodes(); ++n) {
    const std::optional<std::size_t> relay = nodes.relay(d.device(), n);
    i64 copy = 0;
    for (const std::size_t o : nodes.owners()[n]) {
      const Tensors& tensors = in[position(participants, owners[relay.value_or(o)])].tensors;
      if (!relay || o == nodes.owners()[n].front()) rows.push_back(tensors[0]);
      if (!with_copies(op)) continue;
      const auto copies = static_cast<i64>(load.copies_between(me, o));
      weights[o] = relay ? tensors[1].narrow(0, copy, copies) : tensors[1];
      copy += copies;
    }
  }
  take_back(d, op, std::move(rows), std::move(weights));
}

}  // namespace

const TransferOp& to_sources_by_node() {
  static const TransferOp between = {
      .pack = pack_from_nodes, .expected = expected_from_nodes, .unpack = unpack_from_nodes};
  static const TransferOp inside = {.pack = pack_for_relays,
                                    .expected = expected_at_relay,
                                    .unpack = unpack_at_relay,
                                    .next = &between,
                                    .peers = on_node_of};
  return inside;
}

}  // namespace hetermoe
