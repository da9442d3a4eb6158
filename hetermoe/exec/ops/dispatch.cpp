#include <algorithm>
#include <numeric>

#include "hetermoe/device/host_copy.h"
#include "hetermoe/exec/ops/exchange_rows.h"
#include "hetermoe/exec/ops/next_routing.h"
#include "hetermoe/ops/work.h"

// dispatch: rows to the owners of experts; backward, their gradients back.
namespace hetermoe {
namespace {

/// Sizes: where the rows for each owner and the copies of each of its experts begin goes from the sources to
/// all participants, who then know the whole exchange; and the rows of each segment, where results go to the
/// next layer.
void pack_sizes(OpContext& d, const Op& op, Devices, std::vector<Message>& out) {
  if (!d.sends(op)) return;
  // With tally only now is it known which copies go where.
  if (d.p.tallies(op.group, op.layer)) route_chunk(d, op, d.slots.layer(op.layer, op.microbatch), op.chunk);
  RoutedCopies& routed = d.slots.chunk(op.layer, op.microbatch, op.chunk).routed;
  find_node_tokens(d, op, routed);
  at::Tensor begins = routed.begins;
  if (!routed.of_nodes.empty()) begins = at::cat({begins, node_counts(routed).to(begins.device())});
  if (d.p.joins_at(op.group, op.layer + 1, op.microbatch)) {
    const i64 numbers = num_next_counts(d, op, op.layer, idx(d.p.ranges(op).index_of(d.device())));
    const at::Tensor& next = d.slots.layer(op.layer, op.microbatch).next_CSO;
    begins = at::cat({begins, next.narrow(0, numbers * op.chunk, numbers).to(begins.device())});
  }
  for (Message& message : out) message.tensors.push_back(begins);
}

i64 num_begins(const LayerRouting& routing) {
  return routing.num_owners + 1 + static_cast<i64>(routing.bins.experts.size()) + 1;
}

MessageShape expected_sizes(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  if (!Exchange(op, d.p).sends(peer)) return {};
  const LayerRouting& routing = d.routing_of(op);
  const i64 numbers = num_begins(routing) +
                      num_next_counts(d, op, op.layer, idx(d.p.ranges(op).index_of(peer))) +
                      static_cast<i64>(num_node_counts(d, op, peer));
  return {.numbers = 0, .values = 0, .tensors = {{at::kInt, {numbers}}}};
}

/// What a source told: its rows for an owner, and its copies for it.
struct Sizes {
  std::vector<i64> begins;
  const LayerRouting& routing;

  i64 copies_before(i64 bin) const { return begins[idx(routing.num_owners + 1 + bin)]; }
  i64 rows(std::size_t owner) const { return begins[owner + 1] - begins[owner]; }
  i64 copies(std::size_t owner) const {
    return copies_before(routing.bins.begin[owner + 1]) - copies_before(routing.bins.begin[owner]);
  }
  i64 all_copies() const { return begins.back(); }
  /// [experts] over all owners.
  std::vector<i64> of_experts(i64 num_experts) const {
    std::vector<i64> out(idx(num_experts), 0);
    for (std::size_t bin = 0; bin < routing.bins.experts.size(); ++bin) {
      const auto b = static_cast<i64>(bin);
      out[idx(routing.bins.experts[bin])] += copies_before(b + 1) - copies_before(b);
    }
    return out;
  }
};

/// Of a source with so many tokens.
void check_sizes(OpContext& d, const Op& op, DeviceId source, i64 tokens, const Sizes& sizes) {
  const std::string where = d.name_of_peer(source);
  const std::size_t first_copies = idx(sizes.routing.num_owners) + 1;
  for (std::size_t i = 0; i < sizes.begins.size(); ++i) {
    const bool first = i == 0 || i == first_copies;
    const i64 got = sizes.begins[i], least = first ? 0 : sizes.begins[i - 1];
    if (got < least || (first && got != 0)) {
      fail<TransportError>(where, "begin {} of rows and copies: got {}, expected {}{}", i, got, least,
                           first ? "" : " or more");
    }
  }
  const std::vector<DeviceId>& owners = d.p.owners(op);
  for (std::size_t o = 0; o < owners.size(); ++o) {
    if (sizes.rows(o) > sizes.copies(o)) {
      fail<TransportError>(where, "rows for device {}: got {}, expected 0 to {}, its copies", owners[o],
                           sizes.rows(o), sizes.copies(o));
    }
  }
  check_copies(d, source, "copies for all devices", sizes.all_copies(), tokens);
  check_decided(d, op, source, sizes.of_experts(d.model.num_experts));
}

/// Copies of each slot of an owner, from all sources.
std::vector<i64> offsets_of_slots(const std::vector<i64>& slot_of, std::size_t owner,
                                  const std::vector<Sizes>& all) {
  const OwnerBins& here = all[0].routing.bins;
  std::vector<i64> offsets(idx(here.begin[owner + 1] - here.begin[owner]) + 1, 0);
  for (const Sizes& sizes : all) {
    const OwnerBins& bins = sizes.routing.bins;
    for (i64 bin = bins.begin[owner]; bin < bins.begin[owner + 1]; ++bin) {
      const i64 slot = slot_of[idx(bins.experts[idx(bin)])];
      offsets[idx(slot) + 1] += sizes.copies_before(bin + 1) - sizes.copies_before(bin);
    }
  }
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  return offsets;
}

/// Of all owners, from what the sources told.
std::vector<double> copies_of_guests(const ExchangeLoad& load, const std::vector<Sizes>& all) {
  std::vector<double> out(load.guests.empty() ? 0 : load.num_owners(), 0);
  const OwnerBins& bins = all[0].routing.bins;
  for (const Guest& guest : load.guests) {
    const auto begin = bins.experts.begin() + bins.begin[idx(guest.to)];
    const auto found =
        std::lower_bound(begin, bins.experts.begin() + bins.begin[idx(guest.to) + 1], guest.expert);
    const i64 bin = found - bins.experts.begin();
    for (const Sizes& sizes : all)
      out[idx(guest.to)] += real(sizes.copies_before(bin + 1) - sizes.copies_before(bin));
  }
  return out;
}

/// What a source tells of its segments. They are parts of its rows.
void add_next_rows(OpContext& d, const Op& op, DeviceId source, const i32* told, const Sizes& sizes,
                   ExchangeLoad& load) {
  const auto me = idx(d.p.ranges(op).index_of(source));
  const std::size_t num_owners = load.num_owners();
  std::vector<i64> sum(num_owners, 0);
  for (const NextSegment& segment : next_segments(d.p, op.group, op.layer, op.microbatch, op.chunk)) {
    if (segment.source != me) continue;
    add_segment(load, segment, told);
    for (std::size_t o = 0; o < num_owners; ++o) sum[o] += *told++;
  }
  for (std::size_t o = 0; o < num_owners; ++o) {
    if (sum[o] == sizes.rows(o)) continue;
    fail<TransportError>(d.name_of_peer(source),
                         "rows of segments from device {}: got {}, expected {}, its rows", d.p.owners(op)[o],
                         sum[o], sizes.rows(o));
  }
}

/// The one moment at which the host has to know what the router chose.
void unpack_sizes(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  const LayerRouting& routing = d.routing_of(op);
  const Exchange exchange(op, d.p);
  std::vector<at::Tensor> told;
  for (const TokenRange source : exchange.sources())
    told.push_back(in[position(participants, source.device)].tensors[0]);
  const at::Tensor on_host = told_to_host(d, told, "sizes of dispatch");
  const i32* next = on_host.const_data_ptr<i32>();
  const auto num_owners = idx(routing.num_owners);
  std::vector<Sizes> all;
  slot.load = {};
  if (d.p.lends(op.group, op.layer) && d.decided(op) != nullptr) slot.load = d.decided(op)->load;
  slot.load.rows_per_token.assign(num_owners, 0);
  slot.load.copies_per_token.assign(num_owners, 0);
  const bool joins = d.p.joins_at(op.group, op.layer + 1, op.microbatch);
  if (joins) {
    slot.load.next_tokens.assign(d.p.ranges(op.group, op.layer + 1, op.microbatch).size(), 0);
    slot.load.next_rows.assign(slot.load.next_tokens.size() * num_owners, 0);
  }
  for (const TokenRange source : exchange.sources()) {
    const auto [begin, end] = chunk_range(source.tokens(), op.chunk, d.p.plan().chunks);
    const i64 begins = num_begins(routing);
    all.push_back({{next, next + begins}, routing});
    check_sizes(d, op, source.device, end - begin, all.back());
    if (joins) add_next_rows(d, op, source.device, next + begins, all.back(), slot.load);
    const i32* told_nodes = next + begins;  // of plans that join nothing
    next += told[all.size() - 1].numel();
    slot.load.tokens.push_back(real(end - begin));
    for (std::size_t o = 0; o < num_owners; ++o) {
      slot.load.rows.push_back(real(all.back().rows(o)));
      slot.load.copies.push_back(real(all.back().copies(o)));
    }
    add_node_rows(d, op, all.size() - 1, told_nodes, slot.load);
    if (source.device == d.device()) cut_by_owner(slot.routed, routing, all.back().begins);
  }
  slot.load.guest_copies = copies_of_guests(slot.load, all);
  if (exchange.receives(d.device()))
    slot.offsets = offsets_of_slots(slots_here(d, op), exchange.owner_index(d.device()), all);
}

void pack_rows(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  op.phase == Phase::kBackward ? pack_to_sources(d, op, participants, out)
                               : pack_to_owners(d, op, participants, out);
}

void unpack_rows(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  op.phase == Phase::kBackward ? unpack_at_source(d, op, participants, in)
                               : unpack_at_owner(d, op, participants, in);
}

MessageShape expected_rows(OpContext& d, const Op& op, DeviceId peer, const Message& own) {
  return op.phase == Phase::kBackward ? expected_at_source(d, op, peer, own)
                                      : expected_at_owner(d, op, peer, own);
}

void check_rows(OpContext& d, const Op& op, DeviceId peer, const Message& message) {
  if (op.phase != Phase::kBackward) check_at_owner(d, op, peer, message);
}

}  // namespace

ExecOp exec_ops::dispatch() {
  static const TransferOp rows = {
      .pack = pack_rows, .expected = expected_rows, .check_content = check_rows, .unpack = unpack_rows};
  static const TransferOp sizes = {
      .pack = pack_sizes, .expected = expected_sizes, .unpack = unpack_sizes, .next = &rows};
  static const TransferOp sizes_by_node = {
      .pack = pack_sizes, .expected = expected_sizes, .unpack = unpack_sizes, .next = &to_owners_by_node()};
  TransferOp all = rows;
  all.sizes = &sizes, all.sizes_by_node = &sizes_by_node;
  all.to_owners_by_node = &to_owners_by_node(), all.to_sources_by_node = &to_sources_by_node();
  return all;
}

}  // namespace hetermoe
