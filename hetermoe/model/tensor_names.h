#pragma once
#include <array>
#include <string>

#include "hetermoe/model/model_config.h"

// Names of tensors of layers as they stand in the files of a family.
namespace hetermoe {

/// Names that differ between families, behind "model.layers.N.". All other names are alike.
struct TensorNames {
  std::string block = "mlp.";  ///< of router, routed and shared experts
  /// Matrices of a routed expert, without ".weight".
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string router = "gate";                                   ///< in the block, without ".weight"
  std::string correction_bias = "gate.e_score_correction_bias";  ///< in the block
  std::string fused_correction_bias = {};  ///< its name where experts are fused; empty = the same
  bool correction_bias_is_row = false;     ///< [1, E] in place of [E]
  std::string shared = "shared_experts.";  ///< in the block
  std::string shared_gate = "shared_expert_gate.weight";  ///< in the block
};

/// "model.layers.N."
std::string layer_prefix(i64 layer);
/// The prefix of router, routed and shared experts of a layer.
std::string block_prefix(const ModelConfig& model, i64 layer);
/// Gate, up and down of a routed expert.
std::array<std::string, 3> expert_matrices(const ModelConfig& model, i64 layer, ExpertId expert);
/// The bias of one of these, or of another matrix.
std::string bias_of(const std::string& matrix);
/// The router's matrix.
std::string router_name(const ModelConfig& model, i64 layer);
std::string correction_bias_name(const ModelConfig& model, i64 layer);
/// [E], or [1, E] where files have a row.
std::vector<i64> correction_bias_shape(const ModelConfig& model);
/// The prefix of the matrices of the shared expert.
std::string shared_prefix(const ModelConfig& model, i64 layer);
/// A matrix with one row: the gate on what the shared expert adds.
std::string shared_gate_name(const ModelConfig& model, i64 layer);

}  // namespace hetermoe
