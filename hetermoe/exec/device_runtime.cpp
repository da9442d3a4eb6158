#include "hetermoe/exec/device_runtime.h"

#include <algorithm>

#include "hetermoe/nn/embed_head.h"
#include "hetermoe/nn/router.h"
#include "hetermoe/nn/rows.h"

namespace hetermoe {
namespace {

std::size_t at_(i64 i) { return static_cast<std::size_t>(i); }

}  // namespace

DeviceRuntime::DeviceRuntime(const RunContext& context, DeviceState& state)
    : context_(context), p_(context.placement), state_(state), slots_(0, 0, 0) {
  const Plan& plan = p_.plan();
  i64 begin = 0;
  std::size_t num_microbatches = 0;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const Group& group = plan.groups[g];
    group_begin_.push_back(begin);
    microbatch_begin_.emplace_back();
    i64 within = 0;
    for (const i64 sequences : group.microbatches) {
      microbatch_begin_.back().push_back(within);
      within += sequences;
    }
    begin += within;
    if (std::find(group.devices.begin(), group.devices.end(), device()) != group.devices.end()) {
      group_ = static_cast<i32>(g);
      num_microbatches = group.microbatches.size();
    }
  }
  slots_ = Slots(p_.num_layers(), static_cast<i32>(num_microbatches), plan.chunks);
  for (i32 l = 0; l < p_.num_layers(); ++l) {
    OwnerTable table;
    const std::vector<DeviceId>& owners = p_.owners(group_, l);
    for (const auto& of_expert : plan.groups[at_(group_)].layers[at_(l)].experts) {
      std::vector<ExpertShare> shares;
      for (const ExpertOwner& owner : of_expert) {
        const auto at = std::lower_bound(owners.begin(), owners.end(), owner.device) - owners.begin();
        shares.push_back({static_cast<i32>(at), owner.share});
      }
      std::sort(shares.begin(), shares.end(), [](auto& a, auto& b) { return a.destination < b.destination; });
      table.push_back(std::move(shares));
    }
    owner_tables_.push_back(std::move(table));
  }
}

void DeviceRuntime::begin_step(const StepInput& input) {
  input_ = &input;
  result_ = {};
  grad_factor_ = 1;
  const std::size_t num_microbatches = p_.plan().groups[at_(group_)].microbatches.size();
  losses_.assign(num_microbatches, {});
  aux_.assign(at_(p_.num_layers()), std::vector<at::Tensor>(num_microbatches));
  counts_LE_ = at::zeros({p_.num_layers(), context_.model.num_experts}, at::kLong);
  if (p_.options().backward) state_.zero_grads();
}

i32 DeviceRuntime::stage_of(const Op& op) const {
  if (op.kind == OpKind::kEmbed) return -1;
  if (op.kind == OpKind::kHead) return p_.num_layers();
  return op.layer;
}

DeviceRuntime::Range DeviceRuntime::range(i32 group, i32 stage, i32 microbatch) const {
  Range range;
  for (const Share& share : p_.shares(group, stage, microbatch)) {
    if (share.device == device()) {
      range.sequences = share.sequences;
      return range;
    }
    range.begin += share.sequences;
  }
  return {};
}

/// This device's part of a [sequences of the step, seq_len] tensor, flattened to tokens.
at::Tensor DeviceRuntime::rows_of(const at::Tensor& all, const Op& op, i32 stage) const {
  const Range r = range(op.group, stage, op.microbatch);
  const i64 begin =
      group_begin_[at_(op.group)] + microbatch_begin_[at_(op.group)][at_(op.microbatch)] + r.begin;
  return all.narrow(0, begin, r.sequences).reshape({-1}).to(where());
}

bool DeviceRuntime::keeps_activations() const {
  return p_.plan().recompute == Recompute::kOff && p_.options().backward;
}

void DeviceRuntime::compute(const Op& op) {
  const bool backward = op.phase == Phase::kBackward;
  switch (op.kind) {
    case OpKind::kEmbed:
      embed(op);
      break;
    case OpKind::kAttention:
      if (op.phase == Phase::kRecompute)
        attention_recompute(op);
      else if (backward)
        attention_backward_op(op);
      else
        attention_forward_op(op);
      break;
    case OpKind::kExperts:
      if (backward)
        experts_backward_op(op);
      else
        experts_forward_op(op);
      break;
    case OpKind::kMerge:
      slots_.layer(op.layer, op.microbatch).move_out = merged(op, op.layer);
      break;
    case OpKind::kHead:
      head(op);
      break;
    case OpKind::kUpdate:
      update(op);
      break;
    default:
      HM_CHECK(false, "{} is not a compute op", to_string(op));
  }
}

void DeviceRuntime::embed(const Op& op) {
  const at::Tensor tokens = rows_of(input_->tokens, op, -1);
  if (op.phase == Phase::kBackward) {
    embed_backward(state_.embed(), tokens, slots_.layer(-1, op.microbatch).d_hidden);
    return;
  }
  LayerSlot& slot = slots_.layer(0, op.microbatch);
  (p_.moves_into(op.group, 0, op.microbatch) ? slot.move_out : slot.hidden) =
      embed_forward(state_.embed(), tokens);
}

/// Output of layer `layer` - 1: residual stream plus the returned rows, added in device order.
at::Tensor DeviceRuntime::merged(const Op& op, i32 layer) {
  LayerSlot& slot = slots_.layer(layer - 1, op.microbatch);
  if (!p_.is_moe(layer - 1)) return slot.residual;
  at::Tensor y = slot.residual.clone();
  for (ChunkSlot& chunk : slot.chunks) {
    for (std::size_t o = 0; o < chunk.returned.size(); ++o)
      add_rows_(y, chunk.send[o].token_R, chunk.returned[o]);
  }
  return y;
}

at::Tensor DeviceRuntime::take_input(const Op& op, i32 layer) {
  LayerSlot& slot = slots_.layer(layer, op.microbatch);
  if (layer > 0 && !p_.moves_into(op.group, layer, op.microbatch)) slot.hidden = merged(op, layer);
  return slot.hidden;
}

void DeviceRuntime::attention_forward_op(const Op& op) {
  const at::Tensor y = take_input(op, op.layer);
  LayerSlot& slot = slots_.layer(op.layer, op.microbatch);
  AttentionOutput out =
      attention_forward(context_.model, op.layer, state_.attention(op.layer), y, p_.plan().seq_len,
                        keeps_activations() ? KeepGraph::kYes : KeepGraph::kNo);
  slot.residual = out.u_TD;
  slot.graph = std::move(out.graph);
  if (!p_.is_moe(op.layer)) return;
  slot.send = out.x_TD;
  slot.topk = out.topk_TK;
  slot.weights = out.weights_TK;
  route(op, slot);
  count(op, out.counts_BE);
}

/// Tables of what goes to which owner, per chunk. Flat positions and token indices count from the chunk's
/// first token in split_by_owner and are shifted to the whole share here.
void DeviceRuntime::route(const Op& op, LayerSlot& slot) {
  const std::size_t num_owners = p_.owners(op.group, op.layer).size();
  const at::Tensor topk = slot.topk.to(at::kCPU);
  const i64 tokens = topk.size(0), top_k = context_.model.top_k;
  const RowDedup dedup = p_.plan().row_dedup ? RowDedup::kOn : RowDedup::kOff;
  for (i32 c = 0; c < p_.plan().chunks; ++c) {
    const auto [begin, end] = chunk_range(tokens, c, p_.plan().chunks);
    std::vector<SendIndex> send =
        split_by_owner(topk.narrow(0, begin, end - begin), owner_tables_[at_(op.layer)],
                       static_cast<i64>(num_owners), dedup);
    if (begin > 0) {
      for (SendIndex& index : send) {
        index.token_R = index.token_R + begin;
        index.flat_C = index.flat_C + begin * top_k;
      }
    }
    slot.chunks[at_(c)].send = std::move(send);
  }
}

void DeviceRuntime::count(const Op& op, const at::Tensor& counts_BE) {
  const at::Tensor counts = counts_BE.to(at::kCPU);
  counts_LE_.select(0, op.layer).add_(counts.sum(0));
  if (!p_.balance_on()) return;
  at::Tensor& all = slots_.microbatch(op.microbatch).counts;
  const i64 sequences = p_.plan().groups[at_(op.group)].microbatches[at_(op.microbatch)];
  if (!all.defined()) all = at::zeros({sequences, context_.model.num_experts}, at::kLong);
  const Range r = range(op.group, op.layer, op.microbatch);
  all.narrow(0, r.begin, r.sequences).add_(counts);
}

void DeviceRuntime::attention_recompute(const Op& op) {
  LayerSlot& slot = slots_.layer(op.layer, op.microbatch);
  AttentionOutput out = attention_forward(context_.model, op.layer, state_.attention(op.layer), slot.hidden,
                                          p_.plan().seq_len, KeepGraph::kYes, slot.topk);
  slot.graph = std::move(out.graph);
  slot.send = out.x_TD;
}

void DeviceRuntime::attention_backward_op(const Op& op) {
  LayerSlot& slot = slots_.layer(op.layer, op.microbatch);
  AttentionBackwardInput in;
  in.y_TD = slot.hidden;
  in.du_TD = slot.d_hidden;
  in.graph = std::move(slot.graph);
  if (p_.is_moe(op.layer)) {
    in.topk_TK = slot.topk;
    in.dx_TD = at::zeros_like(slot.hidden);
    in.dweights_TK = at::zeros_like(slot.weights);
    for (ChunkSlot& chunk : slot.chunks) {
      for (std::size_t o = 0; o < chunk.d_send.size(); ++o) {
        add_rows_(in.dx_TD, chunk.send[o].token_R, chunk.d_send[o]);
        place_flat_(in.dweights_TK, chunk.send[o].flat_C, chunk.d_send_weights[o]);
      }
    }
    const Range r = range(op.group, op.layer, op.microbatch);
    if (p_.balance_on() && r.sequences > 0) {
      in.balance_AE = slots_.microbatch(op.microbatch).balance.narrow(0, r.begin, r.sequences);
    }
  }
  AttentionGradient gradient =
      attention_backward(context_.model, op.layer, state_.attention(op.layer), in, p_.plan().seq_len);
  aux_[at_(op.layer)][at_(op.microbatch)] = gradient.aux_loss;
  if (!p_.needs_input_gradient(op.layer)) return;
  if (p_.moves_into(op.group, op.layer, op.microbatch))
    slot.d_move = gradient.dy_TD;
  else
    slots_.layer(op.layer - 1, op.microbatch).d_hidden = gradient.dy_TD;
}

void DeviceRuntime::experts_forward_op(const Op& op) {
  ChunkSlot& slot = slots_.chunk(op.layer, op.microbatch, op.chunk);
  const bool save = keeps_activations() || op.phase == Phase::kRecompute;
  if (save) slot.saved = std::make_unique<ExpertsSaved>();
  slot.out = experts_forward(state_.slab(op.layer), slot.rows, slot.groups, slot.weights, slot.saved.get());
}

void DeviceRuntime::experts_backward_op(const Op& op) {
  ChunkSlot& slot = slots_.chunk(op.layer, op.microbatch, op.chunk);
  ExpertsGradient gradient = experts_backward(state_.slab(op.layer), slot.rows, slot.groups, slot.weights,
                                              slot.saved.get(), slot.d_out);
  slot.d_rows = gradient.drows_RD;
  slot.d_weights = to_arrival(slot.groups, gradient.dweights_C);
}

void DeviceRuntime::head(const Op& op) {
  const i32 layers = p_.num_layers();
  const at::Tensor y = take_input(op, layers);
  const at::Tensor targets = rows_of(input_->targets, op, layers);
  if (!p_.options().backward) {
    losses_[at_(op.microbatch)] = head_loss_sum(context_.model, state_.head(), y, targets);
    return;
  }
  HeadOptions options;
  options.loss_scale = input_->loss_scale;
  HeadResult result =
      head_forward_backward(context_.model, state_.head(), y, targets, input_->target_count, options);
  losses_[at_(op.microbatch)] = result.loss;
  if (p_.moves_into(op.group, layers, op.microbatch))
    slots_.layer(layers, op.microbatch).d_move = result.dy_TD;
  else
    slots_.layer(layers - 1, op.microbatch).d_hidden = result.dy_TD;
}

void DeviceRuntime::update(const Op& op) {
  if (!result_.updated) return;  // all devices know the same numbers, so all skip or none
  StateTensors& tensors = state_.tensors(op.state);
  adamw_update(tensors.values, tensors.grads, tensors.moments, input_->adamw, input_->learning_rate,
               grad_factor_);
}

double DeviceRuntime::forward_loss() const {
  double sum = 0;
  for (const at::Tensor& loss : losses_) sum += loss.defined() ? loss.item<double>() : 0;
  return sum;
}

const ExchangeLoad* DeviceRuntime::load_of(const Op& op) {
  if (op.kind != OpKind::kDispatch && op.kind != OpKind::kCombine && op.kind != OpKind::kExperts)
    return nullptr;
  return &slots_.chunk(op.layer, op.microbatch, op.chunk).load;
}

}  // namespace hetermoe
