#include "hetermoe/device/host_copy.h"
#include "hetermoe/exec/ops/next_routing.h"
#include "hetermoe/exec/ops/op_functions.h"
#include "hetermoe/nn/rows.h"

// The attention part of a layer, and the merge of its output where it moves.
namespace hetermoe {

at::Tensor taken_choices(const OpContext& d, const LayerSlot& slot) {
  const i64 capacity = d.expert_capacity();
  return capacity == 0 ? slot.topk : within_capacity(slot.topk, d.p.plan().seq_len, capacity);
}

void route_chunk(OpContext& d, const Op& op, LayerSlot& slot, i32 chunk) {
  const LayerRouting& usual = d.routing[idx(op.layer)];
  const DecidedSplit* decided = d.decided(op);
  std::optional<LayerRouting> divided;  // all owners are in it, so bins are as everywhere
  if (decided != nullptr) divided.emplace(decided->own[idx(chunk)], usual.num_owners, d.where());
  const LayerRouting& routing = divided ? *divided : usual;
  const RowDedup dedup = d.p.plan().row_dedup ? RowDedup::kOn : RowDedup::kOff;
  const auto [begin, end] = chunk_range(slot.topk.size(0), chunk, d.p.plan().chunks);
  slot.chunks[idx(chunk)].routed =
      route_copies(routing, taken_choices(d, slot).narrow(0, begin, end - begin), begin, dedup);
}

void give_input_gradient(OpContext& d, const Op& op, const at::Tensor& gradient_TD) {
  if (!d.p.states().needs_input_gradient(op.layer)) return;
  set_input_gradient(d, op, op.layer, gradient_TD);
}

void set_input_gradient(OpContext& d, const Op& op, i32 stage, const at::Tensor& gradient_TD) {
  const bool moves = d.p.moves_into(op.group, stage, op.microbatch, Phase::kBackward);
  if (moves && !d.p.joins_at(op.group, stage, op.microbatch))
    d.slots.layer(stage, op.microbatch).d_move = gradient_TD;
  else
    d.slots.layer(stage - 1, op.microbatch).d_hidden = gradient_TD;
}

void route(OpContext& d, const Op& op, LayerSlot& slot) {
  for (i32 c = 0; c < d.p.plan().chunks; ++c) route_chunk(d, op, slot, c);
}

namespace {

void count(OpContext& d, const Op& op, const at::Tensor& counts_BE) {
  d.counts_LE.select(0, op.layer).add_(counts_BE.sum(0));
  if (const i64 capacity = d.expert_capacity(); capacity > 0)
    d.dropped_L.select(0, op.layer).add_((counts_BE - capacity).clamp_min(0).sum());
  if (!d.p.balance_on()) return;
  at::Tensor& all = d.slots.microbatch(op.microbatch).counts;
  const i64 sequences = d.p.plan().groups[idx(op.group)].microbatches[idx(op.microbatch)];
  if (!all.defined())
    all = at::zeros({sequences, d.p.balance_parts(), d.model.num_experts}, counts_BE.options());
  const OpContext::Sequences own = d.sequences(op, op.layer);
  all.select(1, d.p.balance_part(op.layer)).narrow(0, own.begin, own.count).add_(counts_BE);
}

KeepGraph graph_for_backward(const OpContext& d, const Op& op) {
  return d.p.recompute(op.group, op.layer) == Recompute::kSelect ? KeepGraph::kSelected : KeepGraph::kYes;
}

/// Of this device's tokens.
RouterJitter jitter(const OpContext& d, const Op& op) {
  if (!d.p.is_moe(op.layer)) return {};
  return router_jitter(d.input->router, op.layer, d.first_sequence(op, op.layer),
                       d.sequences(op, op.layer).first, d.p.plan().seq_len);
}

/// With the choices of routing replay of this device's tokens.
RouterTask router_task(const OpContext& d, const Op& op) {
  RouterTask task{.jitter = jitter(d, op), .z_loss = d.input->router.z_loss > 0};
  if (d.input->choices.empty() || !d.p.is_moe(op.layer)) return task;
  const at::Tensor ids = d.rows_of(d.input->choices[idx(op.layer)], op, op.layer);
  task.has_gaps = ids.lt(0).any().item<bool>();
  task.topk_TK = to_device(ids.view({-1, d.model.top_k}), d.where()).to(at::kLong);
  return task;
}

}  // namespace

std::vector<i64> document_lengths(const OpContext& d, i32 microbatch, i64 begin, i64 count) {
  std::vector<i64> lengths;
  if (!d.input->starts.defined()) return lengths;
  const at::Tensor starts = d.rows_of(d.input->starts, microbatch, begin, count).contiguous();
  const i64* start = starts.const_data_ptr<i64>();
  for (i64 t = 0; t < starts.numel(); ++t) {
    if (start[t] != 0 || t % d.p.plan().seq_len == 0)
      lengths.push_back(1);
    else
      ++lengths.back();
  }
  return lengths;
}

Sequences sequences_of(const OpContext& d, const Op& op, const std::vector<i64>& documents) {
  Sequences sequences(d.p.plan().seq_len, documents);
  sequences.first = d.sequences(op, op.layer).first;
  return sequences;
}

namespace {

/// Those of this device's tokens; in a team documents matter to the attention kernel alone.
std::vector<i64> document_lengths(const OpContext& d, const Op& op) {
  if (d.p.has_teams(op.group, op.layer)) return {};
  const TokenRange own = d.p.ranges(op).of(d.device());
  return document_lengths(d, op.microbatch, own.begin, own.tokens());
}

void run_forward(OpContext& d, const Op& op) {
  LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  const bool of_team = d.p.has_teams(op.group, op.layer);
  const at::Tensor y = of_team ? slot.hidden : d.take_input(op, op.layer);
  const std::vector<i64> documents = document_lengths(d, op);
  AttentionOutput out =
      attention_forward(d.model, op.layer, d.state.attention(op.layer), y, sequences_of(d, op, documents),
                        d.keeps_activations(op) ? graph_for_backward(d, op) : KeepGraph::kNo,
                        router_task(d, op), slot.attended);
  slot.residual = out.u_TD;
  slot.graph = std::move(out.graph);
  if (!d.p.is_moe(op.layer)) return;
  slot.send = out.x_TD;
  slot.topk = out.topk_TK;
  slot.weights = out.weights_TK;
  if (!d.p.tallies(op.group, op.layer)) route(d, op, slot);
  if (d.p.joins_at(op.group, op.layer + 1, op.microbatch)) tell_next(d, op, slot);
  count(d, op, out.counts_BE);
  const TokenRange own = d.p.ranges(op).of(d.device());
  if (d.input->routes != nullptr && own.tokens() > 0)
    d.input->routes->take(op.layer, d.first_token(op.microbatch) + own.begin, slot.topk, slot.weights);
}

void recompute_attention(OpContext& d, const Op& op) {
  LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  if (d.keeps_activations(op)) {
    slot.send = slot.graph == nullptr ? at::empty_like(slot.hidden)
                                      : rows_of_experts(d.model, d.state.attention(op.layer), *slot.graph);
    return;
  }
  const std::vector<i64> documents = document_lengths(d, op);
  RouterTask task = router_task(d, op);
  task.topk_TK = slot.topk, task.has_gaps = false;
  AttentionOutput out =
      attention_forward(d.model, op.layer, d.state.attention(op.layer), slot.hidden,
                        sequences_of(d, op, documents), graph_for_backward(d, op), task, slot.attended);
  slot.graph = std::move(out.graph);
  if (d.p.recompute(op.group, op.layer) == Recompute::kResend) slot.send = out.x_TD;
}

void run_backward(OpContext& d, const Op& op) {
  LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  AttentionBackwardInput in;
  in.y_TD = slot.hidden;
  in.du_TD = slot.d_hidden;
  in.graph = std::move(slot.graph);
  in.context_TA = slot.attended;
  in.leaves_weights = d.p.leaves_weights(UnitPart::kAttention, op.layer);
  if (d.p.is_moe(op.layer)) {
    in.topk_TK = slot.topk;
    // Each copy has one owner, who sends its gradient. Copies that were dropped have none.
    in.dweights_TK = d.expert_capacity() > 0 ? at::zeros_like(slot.weights) : at::empty_like(slot.weights);
    in.jitter = jitter(d, op);
    in.z_factor = d.input->router.z_loss * d.input->loss_scale / real(total_tokens(d.p.plan()));
    std::vector<MergePart> parts;
    for (ChunkSlot& chunk : slot.chunks) {
      const std::vector<at::Tensor> tokens = chunk.routed.tokens_back();
      for (std::size_t i = 0; i < chunk.d_send.size(); ++i) parts.push_back({tokens[i], chunk.d_send[i]});
      for (std::size_t o = 0; o < chunk.d_send_weights.size(); ++o)
        place_flat_(in.dweights_TK, chunk.routed.send[o].flat_C, chunk.d_send_weights[o]);
    }
    in.dx_TD = sum_parts(slot.hidden, parts);
    const OpContext::Sequences own = d.sequences(op, op.layer);
    if (d.p.balance_on() && own.count > 0) {
      in.balance_AE = d.slots.microbatch(op.microbatch)
                          .balance.select(1, d.p.balance_part(op.layer))
                          .narrow(0, own.begin, own.count);
    }
  }
  const std::vector<i64> documents = document_lengths(d, op);
  AttentionGradient gradient =
      attention_backward(d.model, op.layer, d.state.attention(op.layer), in, sequences_of(d, op, documents));
  slot.left = std::move(gradient.left);
  // Only these figures are in the access table: norm does not wait for a dense layer.
  if (d.p.is_moe(op.layer)) d.aux[idx(op.layer)][idx(op.microbatch)] = gradient.aux_loss;
  if (d.p.has_teams(op.group, op.layer))
    slot.d_attended = gradient.dcontext_TA, slot.d_input = gradient.dy_TD;
  else
    give_input_gradient(d, op, gradient.dy_TD);
}

void weight_gradients(OpContext& d, const Op& op) {
  const std::shared_ptr<AttentionLeft>& left = d.slots.layer(op.layer, op.microbatch).left;
  if (left != nullptr) attention_weight_gradients(d.state.attention(op.layer), *left);
}

}  // namespace

namespace {

void run_attention(OpContext& d, const Op& op) {
  switch (op.phase) {
    case Phase::kForward:
      return run_forward(d, op);
    case Phase::kBackward:
      return run_backward(d, op);
    case Phase::kRecompute:
      return recompute_attention(d, op);
    case Phase::kWeights:
      return weight_gradients(d, op);
  }
}

}  // namespace

ExecOp exec_ops::attention() { return run_attention; }

namespace {

void run_merge(OpContext& d, const Op& op) {
  d.slots.layer(op.layer, op.microbatch).move_out = d.merged(op, op.layer);
}

}  // namespace

ExecOp exec_ops::merge() { return run_merge; }

}  // namespace hetermoe
