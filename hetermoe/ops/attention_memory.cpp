#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/ops/buffer_sizes.h"

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

}  // namespace hetermoe
