#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/ops/buffer_sizes.h"

// What attention parts hold, by what their layer keeps for backward.
namespace hetermoe {

ActivationOptions BufferSizes::activations(i32 layer, DeviceId device, KeptActivations keeps) const {
  const bool plain = cluster_.type_of(device).attention_kernel == AttentionKernel::kPlain;
  return {element(device), keeps, plain, placement_.plan().seq_len, of_team(layer, device)};
}

ActivationOptions BufferSizes::activations(i32 layer, const Team& team, DeviceId device) const {
  ActivationOptions out = activations(layer, device, KeptActivations::kAll);
  out.latents = team.latents;
  return out;
}

/// Per token: what an attention part makes besides its saved input.
Bytes BufferSizes::attention_work(i32 layer, DeviceId device) const {
  return attention_work_bytes(model_, layer, activations(layer, device, KeptActivations::kAll));
}

/// Of these what lies in kSavedAttention: all of it where it was recomputed.
Bytes BufferSizes::attention_kept(i32 layer, DeviceId device) const {
  if (!selects(layer, device)) return attention_work(layer, device);
  return attention_kept_bytes(model_, layer, activations(layer, device, KeptActivations::kSelected));
}

Bytes BufferSizes::projection_kept(i32 layer, const Team& team, DeviceId device) const {
  return kept_bytes_of(model_, layer, Activation::In::kProjection, activations(layer, team, device));
}

/// Their share of those of all heads, but for keys and values that several devices need. Latents are kept
/// beside the keys and values made of them.
Bytes BufferSizes::scores_kept(i32 layer, const Team& team, DeviceId device) const {
  const HeadRange heads = team.of(device).heads, keys_for = team.of(device).keys_for;
  const Bytes all = kept_bytes_of(model_, layer, Activation::In::kScores, activations(layer, team, device));
  const double of_queries = real(heads.count) / real(model_.num_heads);
  const double made = team.latents ? 0 : of_queries * real(model_.key_width() + model_.value_width());
  const double came = real(key_values(model_, team, keys_for).width());
  return of_queries * all + (came - made) * element(device);
}

Team BufferSizes::team_of(const BufferKey& key, DeviceId device) const {
  const bool of_part = key.shape() == KeyShape::kOfChunk;
  const Op op{.kind = OpKind::kScores,
              .chunk = static_cast<std::int16_t>(of_part ? key.chunk() : 0),
              .group = static_cast<std::int16_t>(group_of(device)),
              .layer = key.layer(),
              .microbatch = key.microbatch()};
  return of_part ? placement_.part_of_team(op, device) : placement_.team_of(op, device);
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
