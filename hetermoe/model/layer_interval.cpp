#include "hetermoe/model/layer_interval.h"

namespace hetermoe {
namespace {

bool says(const LayerInterval& layers, const ModelConfig& model) {
  for (i64 l = 0; l < model.num_layers; ++l) {
    const bool inside = l >= layers.first && l <= layers.last && (l + 1) % layers.step == 0;
    if (inside != model.is_moe(l)) return false;
  }
  return true;
}

}  // namespace

std::optional<LayerInterval> moe_interval(const ModelConfig& model) {
  if (model.num_moe_layers() == 0) return std::nullopt;
  LayerInterval layers;
  while (!model.is_moe(layers.first)) ++layers.first;
  layers.last = model.num_layers - 1;
  while (!model.is_moe(layers.last)) --layers.last;
  for (; layers.step <= model.num_layers; ++layers.step) {
    if (says(layers, model)) return layers;
  }
  return std::nullopt;
}

}  // namespace hetermoe
