#pragma once
#include <string>
#include <vector>

#include "hetermoe/plan/plan.h"

// Layers whose backward pass is on other devices than their forward pass. All other code gets the shares of
// backward from these functions.
namespace hetermoe {

/// Shares for backward, recomputation and gradients of weights of a layer.
inline const Shares& backward_shares(const LayerPlacement& layer) {
  return layer.attention_backward.empty() ? layer.attention : layer.attention_backward;
}
/// Shares for the gradient of the embedding: the backward shares of layer 0 if it has some.
inline const Shares& backward_embed_shares(const Group& group) {
  const bool own = !group.layers.empty() && !group.layers[0].attention_backward.empty();
  return own ? group.layers[0].attention_backward : group.embed;
}

/// Whether the devices of the layer depend on microbatch and phase.
bool roams(const LayerPlacement& layer);
/// Some layer of the group has backward shares of its own.
bool has_backward_shares(const Group& group);
bool has_roaming_layers(const Plan& plan);

/// Faults of backward shares and of experts at their sources of a layer, in words. The shares themselves add
/// up and name devices of the group.
std::vector<std::string> backward_faults(const Plan& plan, std::size_t group, std::size_t layer, bool is_moe);

}  // namespace hetermoe
