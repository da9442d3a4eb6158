#include "hetermoe/device/host_copy.h"
#include "hetermoe/exec/ops/op_functions.h"
#include "hetermoe/nn/rows.h"

// The attention part of a layer, and the merge of its output where it moves.
namespace hetermoe {
namespace {

/// [owners, 2] rows and copies.
at::Tensor counts_of(const std::vector<SendIndex>& send) {
  at::Tensor counts = at::empty({static_cast<i64>(send.size()), 2}, at::kLong);
  auto numbers = counts.accessor<i64, 2>();
  for (std::size_t o = 0; o < send.size(); ++o) {
    numbers[static_cast<i64>(o)][0] = send[o].num_rows();
    numbers[static_cast<i64>(o)][1] = send[o].num_copies();
  }
  return counts;
}

/// Tables of what goes to which owner, per chunk. Flat positions and token indices count from the chunk's
/// first token in split_by_owner and are shifted to the whole share here.
void route(OpContext& d, const Op& op, LayerSlot& slot) {
  const std::size_t num_owners = d.p.owners(op.group, op.layer).size();
  const at::Tensor topk = to_host(slot.topk, "routing");
  const i64 tokens = topk.size(0), top_k = d.model.top_k;
  const RowDedup dedup = d.p.plan().row_dedup ? RowDedup::kOn : RowDedup::kOff;
  for (i32 c = 0; c < d.p.plan().chunks; ++c) {
    const auto [begin, end] = chunk_range(tokens, c, d.p.plan().chunks);
    std::vector<SendIndex> send =
        split_by_owner(topk.narrow(0, begin, end - begin), d.owner_tables[idx(op.layer)],
                       static_cast<i64>(num_owners), dedup);
    if (begin > 0) {
      for (SendIndex& index : send) {
        index.token_R = index.token_R + begin;
        index.flat_C = index.flat_C + begin * top_k;
      }
    }
    slot.chunks[idx(c)].send_counts = counts_of(send);
    slot.chunks[idx(c)].send = std::move(send);
  }
}

void count(OpContext& d, const Op& op, const at::Tensor& counts_BE) {
  d.counts_LE.select(0, op.layer).add_(counts_BE.sum(0));
  if (!d.p.balance_on()) return;
  at::Tensor& all = d.slots.microbatch(op.microbatch).counts;
  const i64 sequences = d.p.plan().groups[idx(op.group)].microbatches[idx(op.microbatch)];
  if (!all.defined()) all = at::zeros({sequences, d.model.num_experts}, counts_BE.options());
  const OpContext::Range r = d.range(op.group, op.layer, op.microbatch);
  all.narrow(0, r.begin, r.sequences).add_(counts_BE);
}

void forward(OpContext& d, const Op& op) {
  const at::Tensor y = d.take_input(op, op.layer);
  LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  AttentionOutput out =
      attention_forward(d.model, op.layer, d.state.attention(op.layer), y, d.p.plan().seq_len,
                        d.keeps_activations() ? KeepGraph::kYes : KeepGraph::kNo);
  slot.residual = out.u_TD;
  slot.graph = std::move(out.graph);
  if (!d.p.is_moe(op.layer)) return;
  slot.send = out.x_TD;
  slot.topk = out.topk_TK;
  slot.weights = out.weights_TK;
  route(d, op, slot);
  count(d, op, out.counts_BE);
}

void recompute(OpContext& d, const Op& op) {
  LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  AttentionOutput out = attention_forward(d.model, op.layer, d.state.attention(op.layer), slot.hidden,
                                          d.p.plan().seq_len, KeepGraph::kYes, slot.topk);
  slot.graph = std::move(out.graph);
  slot.send = out.x_TD;
}

void backward(OpContext& d, const Op& op) {
  LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  AttentionBackwardInput in;
  in.y_TD = slot.hidden;
  in.du_TD = slot.d_hidden;
  in.graph = std::move(slot.graph);
  if (d.p.is_moe(op.layer)) {
    in.topk_TK = slot.topk;
    in.dx_TD = at::zeros_like(slot.hidden);
    in.dweights_TK = at::zeros_like(slot.weights);
    for (ChunkSlot& chunk : slot.chunks) {
      for (std::size_t o = 0; o < chunk.d_send.size(); ++o) {
        add_rows_(in.dx_TD, chunk.send[o].token_R, chunk.d_send[o]);
        place_flat_(in.dweights_TK, chunk.send[o].flat_C, chunk.d_send_weights[o]);
      }
    }
    const OpContext::Range r = d.range(op.group, op.layer, op.microbatch);
    if (d.p.balance_on() && r.sequences > 0) {
      in.balance_AE = d.slots.microbatch(op.microbatch).balance.narrow(0, r.begin, r.sequences);
    }
  }
  AttentionGradient gradient =
      attention_backward(d.model, op.layer, d.state.attention(op.layer), in, d.p.plan().seq_len);
  d.aux[idx(op.layer)][idx(op.microbatch)] = gradient.aux_loss;
  if (!d.p.needs_input_gradient(op.layer)) return;
  if (d.p.moves_into(op.group, op.layer, op.microbatch))
    slot.d_move = gradient.dy_TD;
  else
    d.slots.layer(op.layer - 1, op.microbatch).d_hidden = gradient.dy_TD;
}

}  // namespace

template <>
void compute_op<ComputeKind::kAttention>(OpContext& d, const Op& op) {
  switch (op.phase) {
    case Phase::kForward:
      return forward(d, op);
    case Phase::kBackward:
      return backward(d, op);
    case Phase::kRecompute:
      return recompute(d, op);
  }
}

template <>
void compute_op<ComputeKind::kMerge>(OpContext& d, const Op& op) {
  d.slots.layer(op.layer, op.microbatch).move_out = d.merged(op, op.layer);
}

}  // namespace hetermoe
