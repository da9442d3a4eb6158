#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/sim/memory.h"

// What attention parts hold, by what their layer keeps for backward.
namespace hetermoe {

/// Per token: what an attention part makes besides its saved input.
Bytes BufferSizes::attention_work(i32 layer, DeviceId device) const {
  const bool plain = cluster_.type_of(device).attention_kernel == AttentionKernel::kPlain;
  return attention_work_bytes(model_, layer,
                              {element(device), KeptActivations::kAll, plain, placement_.plan().seq_len});
}

/// Of these what lies in kSavedAttention: all of it where it was recomputed.
Bytes BufferSizes::attention_kept(i32 layer, DeviceId device) const {
  if (!selects(layer, device)) return attention_work(layer, device);
  const bool plain = cluster_.type_of(device).attention_kernel == AttentionKernel::kPlain;
  return attention_kept_bytes(
      model_, layer, {element(device), KeptActivations::kSelected, plain, placement_.plan().seq_len});
}

/// An MLP of its own makes the layer's residual stream one row more.
bool BufferSizes::has_mlp(i32 layer) const {
  return !placement_.is_moe(layer) || model_.num_shared_experts > 0;
}

/// An MLP makes the residual stream a row of its own, which lies there unless stand-ins took its place.
Bytes BufferSizes::attention_saved(i32 layer, DeviceId device) const {
  const bool has_residual = has_mlp(layer) && !selects(layer, device);
  return attention_kept(layer, device) + (has_residual ? row(device) : 0);
}

bool BufferSizes::saves_residual(i32 layer, DeviceId device) const {
  return keeps(layer, device) && !(selects(layer, device) && has_mlp(layer));
}
bool BufferSizes::saves_send(i32 layer, DeviceId device) const {
  return keeps(layer, device) && !selects(layer, device);
}

/// Forward keeps the activations of the layer.
bool BufferSizes::keeps(i32 layer, DeviceId device) const {
  return placement_.options().backward &&
         keeps_activations(placement_.recompute(group_of_[idx(device)], layer));
}

bool BufferSizes::selects(i32 layer, DeviceId device) const {
  return placement_.recompute(group_of_[idx(device)], layer) == Recompute::kSelect;
}

/// Forward makes the residual stream and the rows to send, which are buffers, and what it keeps is one, too.
/// Backward may have to make all again, and autograd hands the gradients of the weights over whole.
Bytes BufferSizes::attention_workspace(const Op& op, DeviceId device) const {
  const double count = tokens(op.layer, op.microbatch, device);
  const Bytes work = attention_work(op.layer, device), dropped = work - attention_kept(op.layer, device);
  if (op.phase == Phase::kWeights)
    return count > 0 ? attention_largest_product(model_, op.layer) * element(device) : 0;
  if (op.phase != Phase::kBackward) {
    const bool is_buffer = keeps(op.layer, device) || op.phase == Phase::kRecompute;
    if (is_buffer) return op.phase == Phase::kForward ? count * std::max(0.0, dropped - row(device)) : 0;
    return count * (work - 2 * row(device));
  }
  const bool kept = !recomputes_inside(placement_.recompute(op.group, op.layer), placement_.is_moe(op.layer));
  const i32 state = placement_.states_of(UnitPart::kAttention, op.layer).first;
  // Beside a result stands the product of an adapter.
  const Bytes adapted = work_.adapter_params(state) > 0 ? row(device) : 0;
  const Bytes inside =
      count * ((kept ? dropped : work) + attention_gradient_bytes(model_, element(device)) + adapted);
  // What it leaves is a buffer, and of this the gradients of the output projection's and the router's results
  // are gone without it when most is held.
  if (placement_.leaves_weights(op.kind, op.layer)) {
    const Bytes stays = row(device) + (placement_.is_moe(op.layer) ? 4.0 * real(model_.num_experts) : 0);
    return inside + count * (stays - attention_left_bytes(model_, op.layer, element(device)));
  }
  if (!placement_.trains(state)) return inside + count * row(device);
  // Most is held where the attention kernel hands over its gradients, when those of the residual stream and
  // of the weights that came after it are there, or with few tokens at the end, with those of all weights.
  const i64 after =
      (model_.output_width() + (placement_.is_moe(op.layer) ? model_.num_experts : 0)) * model_.hidden;
  const Bytes all = work_.trained_params(state) * element(device);
  return inside + std::max(all, std::min(all, real(after) * element(device)) + count * row(device));
}

}  // namespace hetermoe
