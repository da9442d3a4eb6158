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

namespace {

std::vector<PortBytes> pairwise_bytes(const WorkModel& m, const Op& op,
                                      std::span<const DeviceId> participants, const ExchangeLoad& load) {
  std::vector<PortBytes> bytes(participants.size());
  const Exchange exchange(op, m.placement());
  for (std::size_t s = 0; s < exchange.sources().size(); ++s) {
    for (std::size_t o = 0; o < exchange.owners().size(); ++o) {
      const Exchange::Segment segment = exchange.segment(s, o);
      m.add(bytes, participants, segment.from, segment.to,
            wire_bytes(op, m.placement().plan(), m.model().hidden, exchange.rows_between(load, s, o),
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
  if (!load->is_product()) return pairwise_bytes(model, op, participants, *load);
  std::vector<PortBytes> bytes = product_bytes(model, op, participants, *load);
  return goes_to_owners(op) ? bytes : reversed(std::move(bytes));
}

Bytes wire_row(const BufferSizes& sizes, const Op& op) {
  return row_bytes(wire_of(op, sizes.placement().plan()), real(sizes.model().hidden));
}

Bytes exchange_workspace(BufferSizes& sizes, const Op& op, DeviceId device) {
  const Bytes wire = wire_row(sizes, op);
  const BufferSizes::Traffic t = sizes.traffic(op, device);
  const double received = t.rows_as_owner - t.rows_kept;
  if (has_scales(wire_of(op, sizes.placement().plan()))) {
    const Bytes in_fp32 = sizes.row_bytes_of(4);  // before they are encoded and after they are decoded
    return (t.rows_as_owner + t.rows_as_source) * (wire + in_fp32);
  }
  const bool converts = wire != sizes.row(device);
  if (goes_to_owners(op)) return (t.rows_as_source + (t.num_sources > 1 || converts ? received : 0)) * wire;
  return converts ? (t.rows_as_owner + t.rows_as_source - t.rows_kept) * wire : 0;
}

bool is_in_exchange_rounds(const Op& op, const Placement& placement) {
  if (!placement.is_moe(op.layer)) return false;
  if (op.phase != Phase::kRecompute) return true;
  return placement.recompute(op.group, op.layer) == Recompute::kResend;
}

}  // namespace hetermoe
