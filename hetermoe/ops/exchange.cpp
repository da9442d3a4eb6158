#include "hetermoe/ops/exchange.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/ops/buffer_sizes.h"

namespace hetermoe {

std::optional<Exchange::Segment> Exchange::segment_between(DeviceId from, DeviceId to) const {
  const DeviceId source = to_owners_ ? from : to, owner = to_owners_ ? to : from;
  if (!is_source(source) || !is_owner(owner)) return {};
  return segment(idx(sources().index_of(source)), owner_index(owner));
}

const std::vector<double>& Exchange::tokens(const ExchangeLoad& load) const {
  return of_next_ ? load.next_tokens : load.tokens;
}

double Exchange::rows_between(const ExchangeLoad& load, std::size_t source, std::size_t owner) const {
  return of_next_ ? load.next_rows_between(source, owner) : load.rows_between(source, owner);
}

std::vector<NextSegment> next_segments(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                                       i32 chunk) {
  std::vector<NextSegment> out;
  if (!placement.joins_at(group, layer + 1, microbatch)) return out;
  const TokenRanges sources = placement.ranges(group, layer, microbatch),
                    receivers = placement.ranges(group, layer + 1, microbatch);
  std::size_t source = 0;
  for (const TokenRange from : sources) {
    const auto [begin, end] = chunk_range(from.tokens(), chunk, placement.plan().chunks);
    std::size_t receiver = 0;
    for (const TokenRange to : receivers) {
      if (shared_tokens(from, to) > 0) {
        const i64 first = std::clamp(to.begin, from.begin + begin, from.begin + end);
        out.push_back({source, receiver, first, std::clamp(to.end, first, from.begin + end)});
      }
      ++receiver;
    }
    ++source;
  }
  return out;
}

bool carries_residual(const Op& move, const Placement& placement) {
  return move.phase != Phase::kRecompute && placement.joins_at(move.group, move.layer, move.microbatch);
}

bool carries_owners(const Op& move, const Placement& placement) {
  return move.phase == Phase::kForward && carries_residual(move, placement) &&
         placement.is_moe(move.layer - 1);
}

bool told_by_move(const Op& move, const Placement& placement, DeviceId receiver) {
  if (!carries_owners(move, placement)) return false;
  Op before = move;
  --before.layer;
  return !placement.is_owner(before, receiver) &&
         placement.has_range(move.group, move.layer, move.microbatch, receiver);
}

void add_next(ExchangeLoad& load, std::size_t receivers, const std::vector<NextSegment>& segments) {
  if (!load.next_tokens.empty()) return;
  const std::size_t owners = load.num_owners();
  load.next_tokens.assign(receivers, 0);
  load.next_rows.assign(load.is_product() ? 0 : receivers * owners, 0);
  for (const NextSegment& segment : segments) {
    const double tokens = real(segment.tokens());
    load.next_tokens[segment.receiver] += tokens;
    if (load.is_product() || tokens == 0) continue;
    for (std::size_t o = 0; o < owners; ++o) {
      load.next_rows[segment.receiver * owners + o] +=
          load.rows_between(segment.source, o) * tokens / load.tokens[segment.source];
    }
  }
}

bool goes_by_node(const Op& op, const Placement& placement) {
  return !placement.plan().row_nodes.empty() && needs_load(op.kind) && !is_compute(op.kind) &&
         NodeRows(placement.plan(), op.group, placement.owners(op)).any();
}

namespace {

constexpr Bytes kPickBytes = 4;  // which row of those of a node an owner needs

/// In two exchanges.
std::vector<PortBytes> bytes_by_node(const WorkModel& m, const Op& op, std::span<const DeviceId> participants,
                                     const ExchangeLoad& load) {
  std::vector<PortBytes> between(participants.size()), inside(participants.size());
  const Exchange exchange(op, m.placement());
  const NodeRows nodes(m.placement().plan(), op.group, exchange.owners());
  const auto bytes_of = [&](double rows, double copies) {
    return message_bytes(op, m.placement().plan(), m.model().hidden, rows, copies);
  };
  const TokenRanges sources = exchange.sources();
  for (std::size_t s = 0; s < sources.size(); ++s) {
    const DeviceId source = sources.device(s);
    for (std::size_t n = 0; n < nodes.num_nodes(); ++n) {
      const std::optional<std::size_t> relay = nodes.relay(source, n);
      double rows = 0, copies = 0;
      for (const std::size_t o : nodes.owners()[n]) {
        const double of_owner = load.rows_between(s, o), its_copies = load.copies_between(s, o);
        rows += of_owner, copies += its_copies;
        m.add(relay ? inside : between, participants, relay ? exchange.owners()[*relay] : source,
              exchange.owners()[o], bytes_of(of_owner, its_copies));
      }
      if (relay)
        m.add(between, participants, source, exchange.owners()[*relay],
              bytes_of(load.rows_to_node(s, n), copies) + (exchange.to_owners() ? rows * kPickBytes : 0));
    }
  }
  if (!exchange.to_owners()) {
    between.swap(inside);
    between = reversed(std::move(between)), inside = reversed(std::move(inside));
  }
  between.insert(between.end(), inside.begin(), inside.end());
  return between;
}

std::vector<PortBytes> pairwise_bytes(const WorkModel& m, const Op& op,
                                      std::span<const DeviceId> participants, const ExchangeLoad& load) {
  std::vector<PortBytes> bytes(participants.size());
  const Exchange exchange(op, m.placement());
  for (std::size_t s = 0; s < exchange.sources().size(); ++s) {
    for (std::size_t o = 0; o < exchange.owners().size(); ++o) {
      const Exchange::Segment segment = exchange.segment(s, o);
      m.add(bytes, participants, segment.from, segment.to,
            message_bytes(op, m.placement().plan(), m.model().hidden, exchange.rows_between(load, s, o),
                          exchange.of_next() ? 0 : load.copies_between(s, o)));
    }
  }
  return bytes;
}

/// From sources to owners. Sums per node replace the matrix, so that a thousand devices cost a thousand
/// steps, not a million.
std::vector<PortBytes> product_bytes(const WorkModel& m, const Op& op, std::span<const DeviceId> participants,
                                     const ExchangeLoad& load) {
  std::vector<PortBytes> bytes(participants.size());
  const Exchange exchange(op, m.placement());
  const TokenRanges sources = exchange.sources();
  const std::vector<double>& tokens = exchange.tokens(load);
  const std::vector<DeviceId>& owners = exchange.owners();
  std::vector<double> node_tokens(m.cluster().nodes.size(), 0);
  std::vector<Bytes> node_bytes(m.cluster().nodes.size(), 0), owner_bytes(owners.size());
  std::vector<double> own_tokens(owners.size(), 0);  // of an owner that is a source, too
  double all_tokens = 0;
  Bytes all_bytes = 0;
  for (std::size_t o = 0; o < owners.size(); ++o) {
    owner_bytes[o] = wire_bytes(op, m.placement().plan(), m.model().hidden, load.rows_per_token[o],
                                load.copies_per_token[o]);
    node_bytes[m.node_of(owners[o])] += owner_bytes[o];
    all_bytes += owner_bytes[o];
  }
  for (std::size_t s = 0; s < sources.size(); ++s) {
    const std::size_t node = m.node_of(sources.device(s));
    node_tokens[node] += tokens[s];
    all_tokens += tokens[s];
  }
  for (std::size_t s = 0; s < sources.size(); ++s) {
    const DeviceId device = sources.device(s);
    const std::size_t at = position(owners, device), node = m.node_of(device);
    const bool owns = at < owners.size() && owners[at] == device;
    if (owns) own_tokens[at] = tokens[s];
    PortBytes& mine = bytes[position(participants, device)];
    mine.local_out += tokens[s] * (node_bytes[node] - (owns ? owner_bytes[at] : 0));
    mine.net_out += tokens[s] * (all_bytes - node_bytes[node]);
  }
  for (std::size_t o = 0; o < owners.size(); ++o) {
    const std::size_t node = m.node_of(owners[o]);
    PortBytes& mine = bytes[position(participants, owners[o])];
    mine.local_in += owner_bytes[o] * (node_tokens[node] - own_tokens[o]);
    mine.net_in += owner_bytes[o] * (all_tokens - node_tokens[node]);
  }
  return bytes;
}

}  // namespace

std::vector<PortBytes> exchange_bytes(const WorkModel& model, const Op& op,
                                      std::span<const PlaceId> participants, const ExchangeLoad* load) {
  if (goes_by_node(op, model.placement())) return bytes_by_node(model, op, participants, *load);
  const bool grouped = has_groups(wire_of(op, model.placement().plan()));
  if (!load->is_product() || grouped) return pairwise_bytes(model, op, participants, *load);
  std::vector<PortBytes> bytes = product_bytes(model, op, participants, *load);
  return goes_to_owners(op) ? bytes : reversed(std::move(bytes));
}

Bytes wire_row(const BufferSizes& sizes, const Op& op) {
  return row_bytes(wire_of(op, sizes.placement().plan()), real(sizes.model().hidden));
}

/// What a device passes on to the other owners of its node, as it comes and as it goes.
Bytes passed_on(BufferSizes& sizes, const Op& op, DeviceId device) {
  if (!goes_by_node(op, sizes.placement())) return 0;
  const Exchange exchange(op, sizes.placement());
  const ExchangeLoad& load = sizes.loads().of(op.group, op.layer, op.microbatch, op.chunk);
  const NodeRows nodes(sizes.placement().plan(), op.group, exchange.owners());
  double rows = 0;
  for (std::size_t s = 0; s < exchange.sources().size(); ++s) {
    for (std::size_t n = 0; n < nodes.num_nodes(); ++n) {
      const std::optional<std::size_t> relay = nodes.relay(exchange.sources().device(s), n);
      if (!relay || exchange.owners()[*relay] != device) continue;
      rows += load.rows_to_node(s, n);
      for (const std::size_t o : nodes.owners()[n]) rows += o == *relay ? 0 : load.rows_between(s, o);
    }
  }
  // Groups are decoded and encoded again.
  const bool again = has_groups(wire_of(op, sizes.placement().plan()));
  return rows * (wire_row(sizes, op) + (again ? sizes.row_bytes_of(4) : 0));
}

/// Of scales that part groups have beyond those of their rows: a group of each message at most.
Bytes part_groups(BufferSizes& sizes, const Op& op) {
  if (!has_groups(wire_of(op, sizes.placement().plan()))) return 0;
  const Exchange exchange(op, sizes.placement());
  return real(exchange.sources().size() + exchange.owners().size()) * sizes.row_bytes_of(4);
}

Bytes exchange_workspace(BufferSizes& sizes, const Op& op, DeviceId device) {
  const Bytes passed = passed_on(sizes, op, device);
  const Bytes wire = wire_row(sizes, op);
  const BufferSizes::Traffic t = sizes.traffic(op, device);
  const double received = t.rows_as_owner - t.rows_kept;
  if (has_scales(wire_of(op, sizes.placement().plan()))) {
    const Bytes in_fp32 = sizes.row_bytes_of(4);  // before they are encoded and after they are decoded
    return passed + (t.rows_as_owner + t.rows_as_source) * (wire + in_fp32) + part_groups(sizes, op);
  }
  const bool converts = wire != sizes.row(device);
  if (goes_to_owners(op))
    return passed + (t.rows_as_source + (t.num_sources > 1 || converts ? received : 0)) * wire;
  return passed + (converts ? (t.rows_as_owner + t.rows_as_source - t.rows_kept) * wire : 0);
}

bool is_in_exchange_rounds(const Op& op, const Placement& placement) {
  if (!placement.is_moe(op.layer)) return false;
  if (op.phase != Phase::kRecompute) return true;
  return placement.recompute(op.group, op.layer) == Recompute::kResend;
}

}  // namespace hetermoe
