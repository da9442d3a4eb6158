#include "hetermoe/model/tensor_names.h"

#include <fmt/format.h>

#include "hetermoe/model/family.h"

namespace hetermoe {

std::string layer_prefix(i64 layer) { return fmt::format("model.layers.{}.", layer); }

std::string block_prefix(const ModelConfig& model, i64 layer) {
  return layer_prefix(layer) + family_of(model).names.block;
}

std::array<std::string, 3> expert_matrices(const ModelConfig& model, i64 layer, ExpertId expert) {
  const TensorNames& names = family_of(model).names;
  const std::string prefix = fmt::format("{}experts.{}.", block_prefix(model, layer), expert);
  return {prefix + names.gate + ".weight", prefix + names.up + ".weight", prefix + names.down + ".weight"};
}

std::string bias_of(const std::string& matrix) {
  return matrix.substr(0, matrix.size() - std::string("weight").size()) + "bias";
}

std::string router_name(const ModelConfig& model, i64 layer) {
  return block_prefix(model, layer) + family_of(model).names.router + ".weight";
}

std::string correction_bias_name(const ModelConfig& model, i64 layer) {
  return block_prefix(model, layer) + family_of(model).names.correction_bias;
}

std::vector<i64> correction_bias_shape(const ModelConfig& model) {
  if (family_of(model).names.correction_bias_is_row) return {1, model.num_experts};
  return {model.num_experts};
}

std::string shared_prefix(const ModelConfig& model, i64 layer) {
  return block_prefix(model, layer) + family_of(model).names.shared;
}

std::string shared_gate_name(const ModelConfig& model, i64 layer) {
  return block_prefix(model, layer) + family_of(model).names.shared_gate;
}

}  // namespace hetermoe
