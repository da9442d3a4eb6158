#include "hetermoe/exec/ops/next_routing.h"

#include "hetermoe/device/host_copy.h"

// T tokens of a share, K choices of a token, R rows of a message, O owners of the layer's experts.
namespace hetermoe {
namespace {

/// Owner of each copy that a device's tables list one after another; its choice is number flat_C.
at::Tensor owners_of_copies(const DeviceSplit& split) {
  const at::Tensor ends = split.copy_begin_D1.slice(0, 1).contiguous();
  const at::Tensor number = at::arange(split.flat_C.numel(), ends.options());
  return at::bucketize(number, ends, /*out_int32=*/true, /*right=*/true);
}

/// owner_TK.view(-1)[flat_C] = the owner, for one chunk.
void set_owners(at::Tensor& owner_TK, const RoutedCopies& routed) {
  at::Tensor flat = owner_TK.view({-1});
  for (std::size_t o = 0; o < routed.send.size(); ++o)
    flat.index_fill_(0, routed.send[o].flat_C.to(flat.device(), at::kLong), static_cast<i64>(o));
  if (!routed.send.empty()) return;
  // Behind the last copy of a device's tables is nothing that counts.
  const at::Tensor owner_C = owners_of_copies(routed.split);
  const at::Tensor counts = owner_C < routed.split.copy_begin_D1.numel() - 1;
  const at::Tensor place_C = at::where(counts, routed.split.flat_C.to(at::kLong), flat.numel());
  at::Tensor with_rest = at::cat({flat, flat.new_zeros({1})});
  with_rest.index_put_({place_C}, owner_C);
  flat.copy_(with_rest.narrow(0, 0, flat.numel()));
}

/// [O] rows of these tokens from each owner.
at::Tensor count_rows(const OpContext& d, const at::Tensor& owner_TK, i64 num_owners) {
  const at::Tensor owners_O = at::arange(num_owners, owner_TK.options());
  const at::Tensor from_TKO = owner_TK.unsqueeze(-1) == owners_O;
  const at::Tensor rows_TO = d.p.plan().row_dedup ? from_TKO.any(1) : from_TKO.sum(1);
  return rows_TO.sum(0).to(at::kInt);
}

/// The rows that an owner returns for these tokens, which are numbers in a share.
at::Tensor tokens_of_rows(const OpContext& d, const at::Tensor& owner_TK, const at::Tensor& token_T,
                          i64 owner) {
  const at::Tensor from_TK = owner_TK == owner;
  const at::Tensor place_R =
      d.p.plan().row_dedup ? from_TK.any(1).nonzero().select(1, 0) : from_TK.nonzero().select(1, 0);
  return token_T.index_select(0, place_R);
}

std::vector<NextSegment> segments_of(const OpContext& d, const Op& op, i32 layer, i32 chunk) {
  return next_segments(d.p, op.group, layer, op.microbatch, chunk);
}

i64 owners_of_layer(const OpContext& d, const Op& op, i32 layer) {
  return static_cast<i64>(d.p.num_owners(op.group, layer));
}

}  // namespace

void tell_next(OpContext& d, const Op& attention, LayerSlot& slot) {
  const TokenRanges sources = d.p.ranges(attention);
  const auto me = idx(sources.index_of(d.device()));
  const i64 begin = sources.of(d.device()).begin, num_owners = owners_of_layer(d, attention, attention.layer);
  slot.owner_TK = at::full(slot.topk.sizes(), -1, slot.topk.options().dtype(at::kInt));
  std::vector<at::Tensor> counts;
  for (i32 c = 0; c < d.p.plan().chunks; ++c) {
    set_owners(slot.owner_TK, slot.chunks[idx(c)].routed);
    for (const NextSegment& segment : segments_of(d, attention, attention.layer, c)) {
      if (segment.source != me) continue;
      counts.push_back(
          count_rows(d, slot.owner_TK.narrow(0, segment.begin - begin, segment.tokens()), num_owners));
    }
  }
  slot.next_CSO = counts.empty() ? at::empty({0}, slot.owner_TK.options()) : at::cat(counts);
}

i64 num_next_counts(const OpContext& d, const Op& op, i32 layer, std::size_t source) {
  i64 segments = 0;
  for (const NextSegment& segment : segments_of(d, op, layer, 0))
    segments += segment.source == source ? 1 : 0;
  return segments * owners_of_layer(d, op, layer);
}

void add_segment(ExchangeLoad& load, const NextSegment& segment, const i32* rows_O) {
  const std::size_t num_owners = load.num_owners();
  load.next_tokens[segment.receiver] += real(segment.tokens());
  for (std::size_t o = 0; o < num_owners; ++o)
    load.next_rows[segment.receiver * num_owners + o] += real(rows_O[o]);
}

void take_next(OpContext& d, const Op& move, LayerSlot& slot) {
  const i32 layer = move.layer - 1;
  const TokenRanges receivers = d.p.ranges(move);
  const auto me = idx(receivers.index_of(d.device()));
  const i64 begin = receivers.of(d.device()).begin;
  const auto dtype = d.routing[idx(layer)].on_device ? at::kInt : at::kLong;
  for (i32 c = 0; c < d.p.plan().chunks; ++c) {
    std::vector<at::Tensor> owners = {slot.owner_TK.narrow(0, 0, 0)};
    std::vector<at::Tensor> tokens = {at::empty({0}, slot.owner_TK.options().dtype(dtype))};
    for (const NextSegment& segment : segments_of(d, move, layer, c)) {
      if (segment.receiver != me) continue;
      owners.push_back(slot.owner_TK.narrow(0, segment.begin - begin, segment.tokens()));
      tokens.push_back(at::arange(segment.begin - begin, segment.end - begin, tokens[0].options()));
    }
    const at::Tensor owner_TK = at::cat(owners), token_T = at::cat(tokens);
    std::vector<SendIndex>& send = slot.chunks[idx(c)].routed.send;
    send.clear();
    for (i64 o = 0; o < owners_of_layer(d, move, layer); ++o)
      send.push_back({tokens_of_rows(d, owner_TK, token_T, o), {}, {}, {}});
  }
}

void take_next_counts(OpContext& d, const Op& move, LayerSlot& slot, const std::vector<at::Tensor>& told) {
  const i32 layer = move.layer - 1;
  const auto num_owners = idx(owners_of_layer(d, move, layer));
  const TokenRanges sources = d.p.ranges(move.group, layer, move.microbatch);
  std::vector<at::Tensor> counts;
  for (const at::Tensor& of_source : told) counts.push_back(of_source.view({-1}));
  const at::Tensor all = told_to_host(d, counts, "rows of segments");
  std::vector<const i32*> next = {all.const_data_ptr<i32>()};  // [source] in what it told
  for (const at::Tensor& of_source : counts) next.push_back(next.back() + of_source.numel());
  for (i32 c = 0; c < d.p.plan().chunks; ++c) {
    ExchangeLoad& load = slot.chunks[idx(c)].load;
    load = {};
    load.tokens.assign(sources.size(), 0);
    load.rows_per_token.assign(num_owners, 0);
    load.rows.assign(sources.size() * num_owners, 0);  // that sources send is not known here
    load.next_tokens.assign(d.p.ranges(move).size(), 0);
    load.next_rows.assign(load.next_tokens.size() * num_owners, 0);
    for (const NextSegment& segment : segments_of(d, move, layer, c)) {
      add_segment(load, segment, next[segment.source]);
      next[segment.source] += num_owners;
    }
  }
}

}  // namespace hetermoe
