#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/ops/buffer_sizes.h"
#include "hetermoe/ops/layer_op.h"

// The attention part of a layer with its router and what is dense, and the merge of what experts returned.
namespace hetermoe {
namespace {

void attention_forward_accesses(AccessList& list) {
  list.read_params();
  if (list.has_teams()) {
    list.read(Buffer::kHidden);
    list.read(Buffer::kAttended);
  } else {
    list.read_input(list.op.layer);
  }
  list.write(Buffer::kResidual);
  if (list.saves_activations()) list.write(Buffer::kSavedAttention);
  if (!list.is_moe()) return;
  list.write(Buffer::kSend);
  list.write(Buffer::kRouting);
  if (list.p.balance_on()) list.add(Buffer::kCounts, Mode::kAdd);
}

void recompute_accesses(AccessList& list) {
  list.read_params();
  list.read(Buffer::kHidden);
  if (list.has_teams()) list.read(Buffer::kAttended);
  if (list.is_moe()) list.read(Buffer::kRouting);
  list.add(Buffer::kSavedAttention, list.saves_activations() ? Mode::kRead : Mode::kWrite);
  if (resends_rows(list.recompute())) list.write(Buffer::kSend);
}

void attention_backward_accesses(AccessList& list) {
  const i32 layer = list.op.layer;
  list.read_params();
  list.read(Buffer::kHidden);
  list.read(Buffer::kDHidden);
  if (list.finds_activations()) list.read(Buffer::kSavedAttention);
  if (list.is_moe()) {
    list.read(Buffer::kRouting);
    list.add_all_chunks(Buffer::kDSend, Mode::kRead, layer);
    if (list.p.balance_on()) list.read(Buffer::kBalance);
  }
  if (list.has_teams()) {
    list.read(Buffer::kAttended);
    list.write(Buffer::kDAttended);
    list.write(Buffer::kDInput);
  } else {
    list.write_input_gradient(layer);
  }
  if (list.p.leaves_weights(UnitPart::kAttention, layer))
    list.write(Buffer::kLeftAttention);
  else
    list.add_grad(UnitPart::kAttention, layer);
  if (list.is_moe()) list.add_figures();  // the load-balancing loss
}

void attention_accesses(AccessList& list) {
  list.add_saved();
  switch (list.op.phase) {
    case Phase::kForward:
      return attention_forward_accesses(list);
    case Phase::kRecompute:
      return recompute_accesses(list);
    case Phase::kBackward:
      return attention_backward_accesses(list);
    case Phase::kWeights:
      list.read(Buffer::kLeftAttention);
      return list.add_grad(UnitPart::kAttention, list.op.layer);
  }
}

bool attention_occurs_in(const Op& op, const Placement& placement) {
  const Recompute recompute = placement.recompute(op.group, op.layer);
  if (op.phase == Phase::kRecompute)
    return recompute == Recompute::kAhead || (placement.is_moe(op.layer) && resends_rows(recompute));
  return op.phase != Phase::kWeights || placement.plan().weight_gradients == WeightGradients::kAfter;
}

void attention_work(const WorkModel& model, const ExchangeLoad*, ComputeWork& work) {
  const Op& op = work.op;
  work.frozen = model.frozen_part(work.device, {UnitPart::kAttention, op.layer});
  work.of_team = model.placement().has_teams(op.group, op.layer);
  const bool merges =
      looks_back(op) && !work.of_team && model.placement().merges_at(op.group, op.layer, op.microbatch);
  model.add_tokens(work, merges ? std::optional(op.layer) : std::nullopt);
}

/// Forward makes the residual stream and the rows to send, which are buffers, and what it keeps is one, too.
/// Backward may have to make all again. Gradients of the weights of products go straight into their sums; the
/// router's is a product of fp32, whose input is widened.
Bytes attention_workspace(BufferSizes& s, const Op& op, DeviceId device) {
  const Placement& p = s.placement();
  const ModelConfig& model = s.model();
  const double count = s.tokens(op.layer, op.microbatch, device);
  const Bytes work = s.attention_work(op.layer, device), dropped = work - s.attention_kept(op.layer, device);
  if (op.phase == Phase::kWeights)
    return p.is_moe(op.layer) && s.element(device) < 4 ? count * row_bytes(model, 4) : 0;
  if (op.phase != Phase::kBackward) {
    const bool is_buffer = s.keeps(op.layer, device) || op.phase == Phase::kRecompute;
    if (is_buffer) return op.phase == Phase::kForward ? count * std::max(0.0, dropped - s.row(device)) : 0;
    return count * (work - 2 * s.row(device));
  }
  const bool kept = !recomputes_inside(p.recompute(op.group, op.layer), p.is_moe(op.layer));
  const bool of_team = s.of_team(op.layer, device);
  const i32 state = p.states().of(UnitPart::kAttention, op.layer).first;
  // Beside a result stands the product of an adapter.
  const Bytes adapted = s.work().adapter_params(state) > 0 ? s.row(device) : 0;
  const Bytes inside = count * ((kept ? dropped : work) +
                                (of_team ? 0 : attention_gradient_bytes(model, s.element(device))) + adapted);
  // What it leaves is a buffer, and of this the gradients of the output projection's and the router's results
  // are gone without it when most is held.
  if (p.leaves_weights(UnitPart::kAttention, op.layer)) {
    const Bytes stays = s.row(device) + (p.is_moe(op.layer) ? 4.0 * real(model.num_experts) : 0);
    return inside + count * (stays - attention_left_bytes(model, op.layer, s.element(device), of_team));
  }
  // Most is held where the attention kernel hands over its gradients, when these are there: that of the
  // residual stream, and in fp32 those of the router's scores, of its logits and of the weights that it gave.
  // With few tokens at the end, with the gradients of all adapters.
  const i64 of_router = p.is_moe(op.layer) ? 2 * model.num_experts + model.top_k : 0;
  return inside + std::max(s.work().adapter_params(state) * s.element(device),
                           count * (s.row(device) + 4.0 * real(of_router)));
}

void merge_accesses(AccessList& list) {
  list.read_merged_input(list.op.layer);
  list.write(Buffer::kMoveOut);
}

bool merges_in(const Op& op, const Placement& placement) {
  return op.layer > 0 && !placement.merges_at(op.group, op.layer, op.microbatch);
}

void merge_work(const WorkModel& model, const ExchangeLoad*, ComputeWork& work) {
  model.add_tokens(work, work.op.layer);
}

}  // namespace

const OpRow op_rows::attention = {
    .phases = Phases::kAll,
    .queue = QueueRule::always(Queue::kCompute),
    .participants = Participants::kOneDevice,
    .stage = Stage::kLayer,
    .occurs = Occurs::kInMicrobatch,
    .has_layer = true,
    .has_microbatch = true,
    .pricing = Pricing::kAttention,
    .saved = SavedPart::kInputs,
    .looks_back = true,
    .looks_back_in = Phase::kForward,
    .accesses = attention_accesses,
    .occurs_in = attention_occurs_in,
    .has_work = has_work_in_layer<UnitPart::kAttention>,
    .uses = uses_in_layer<UnitPart::kAttention>,
    .grades = grades_in_layer<UnitPart::kAttention>,
    .work = attention_work,
    .workspace = attention_workspace,
};

const OpRow op_rows::merge = {
    .phases = Phases::kForward,
    .queue = QueueRule::always(Queue::kCompute),
    .participants = Participants::kOneDevice,
    .stage = Stage::kLayerBefore,
    .occurs = Occurs::kInMicrobatch,
    .has_layer = true,
    .has_microbatch = true,
    .of_inputs = true,
    .pricing = Pricing::kMerge,
    .looks_back = true,
    .accesses = merge_accesses,
    .occurs_in = merges_in,
    .work = merge_work,
};

}  // namespace hetermoe
