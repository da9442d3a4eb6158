#include "hetermoe/exec/decided_split.h"

#include <algorithm>

#include "hetermoe/exec/op_context.h"
#include "hetermoe/nn/router.h"

namespace hetermoe {

std::vector<ExpertId> lent_between(const OpContext& d, i32 layer, const DecidedSplit& split, DeviceId from,
                                   DeviceId to) {
  const std::vector<DeviceId>& owners = d.p.owners(d.group, layer);
  std::vector<ExpertId> out;
  for (const Guest& guest : split.load.guests) {
    if (owners[idx(guest.from)] == from && owners[idx(guest.to)] == to)
      out.push_back(static_cast<ExpertId>(guest.expert));
  }
  std::stable_partition(out.begin(), out.end(),
                        [&](ExpertId expert) { return d.p.states().trains(layer, expert); });
  return out;
}

DecidedSplit decide_split(OpContext& d, i32 layer, i32 microbatch, std::vector<SourceCopies> copies) {
  const SplitLayer of_layer =
      split_layer(d.p, d.cluster, d.group, layer, microbatch, copy_split_of(d.p.plan()));
  std::vector<ExchangeSplit> chunks = split_exchange(of_layer, copies);
  DecidedSplit out;
  add_guests(out.load, of_layer, chunks[0].guests);
  if (!out.load.guests.empty()) {
    out.routing.emplace(chunks[0].of_source[0], static_cast<i64>(of_layer.speeds.size()), d.where());
    for (const DeviceId home : d.p.owners(d.group, layer)) {
      for (const ExpertId expert : lent_between(d, layer, out, home, d.device())) out.lent.push_back(expert);
    }
    const std::vector<DeviceId>& owners = d.p.owners(d.group, layer);
    if (std::binary_search(owners.begin(), owners.end(), d.device())) {
      const ExpertSlab& own = d.state.slab(layer);
      out.slot_of = own.slot_of;
      for (std::size_t g = 0; g < out.lent.size(); ++g)
        out.slot_of[idx(out.lent[g])] = own.num_slots() + static_cast<i64>(g);
    }
  }
  const i64 me = d.p.ranges(d.group, layer, microbatch).index_of(d.device());
  for (ExchangeSplit& chunk : chunks)
    if (me >= 0) out.own.push_back(std::move(chunk.of_source[idx(me)]));
  out.copies = std::move(copies);
  return out;
}

namespace {

/// [chunks] of a microbatch, whose sequences begin with number `first` of the step.
std::vector<SourceCopies> copies_of(const OpContext& d, i32 layer, i32 microbatch, i64 first) {
  const Plan& plan = d.p.plan();
  const at::Tensor all_TK = d.input->choices[idx(layer)].reshape({-1, d.model.top_k});
  std::vector<SourceCopies> out(idx(plan.chunks));
  for (const TokenRange source : d.p.ranges(d.group, layer, microbatch)) {
    at::Tensor ids_TK = all_TK.narrow(0, first * plan.seq_len + source.begin, source.tokens());
    if (const i64 capacity = d.expert_capacity(); capacity > 0)
      ids_TK = within_capacity(ids_TK.to(at::kLong), plan.seq_len, capacity).to(at::kInt);
    ids_TK = ids_TK.to(at::kInt).contiguous();
    for (i32 c = 0; c < plan.chunks; ++c) {
      const auto [begin, end] = chunk_range(ids_TK.size(0), c, plan.chunks);
      const std::span<const i32> ids(ids_TK.const_data_ptr<i32>() + begin * d.model.top_k,
                                     idx((end - begin) * d.model.top_k));
      out[idx(c)].push_back(count_copies(ids, d.model.num_experts));
    }
  }
  return out;
}

}  // namespace

std::vector<DecidedSplit> foreseen_splits(OpContext& d) {
  std::vector<DecidedSplit> out;
  if (d.input->choices.empty() || d.p.plan().tally || !divides_copies(d.p.plan())) return out;
  const i32 num_microbatches = d.p.num_microbatches(d.group);
  out.resize(idx(d.p.num_layers() * num_microbatches));
  for (i32 m = 0; m < num_microbatches; ++m) {
    const i64 first = d.first_sequence(m);
    for (i32 l = 0; l < d.p.num_layers(); ++l) {
      if (d.p.divides(d.group, l))
        out[idx(l * num_microbatches + m)] = decide_split(d, l, m, copies_of(d, l, m, first));
    }
  }
  return out;
}

}  // namespace hetermoe
