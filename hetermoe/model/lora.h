#pragma once
#include <map>
#include <string>
#include <vector>

#include "hetermoe/model/unit.h"

namespace hetermoe {

/// Low-rank adapters (LoRA): a matrix W [out, in] that stays as it is acts as W + scale B A with A [rank, in]
/// and B [out, rank], which are trained. All else of the model is frozen.
struct Lora {
  i64 rank = 0;
  double alpha = 0;
  std::vector<std::string> targets = {};  ///< matrices with adapters, by their names, ascending
  std::map<Unit, i64> numbers = {};       ///< of units with adapters: how many numbers these have

  double scale() const { return alpha / static_cast<double>(rank); }
  bool adapts(const std::string& matrix) const;
  i64 numbers_of(const Unit& unit) const;
};

/// The names of the adapters of a matrix: "x.weight" has "x.lora_A.weight" and "x.lora_B.weight".
std::string lora_a_name(const std::string& matrix);
std::string lora_b_name(const std::string& matrix);
bool is_adapter(const std::string& name);
/// The matrix of an adapter; another name as it is.
std::string matrix_of(const std::string& name);
bool is_lora_a(const std::string& name);

/// A projection of attention, of a dense or shared MLP, or of an expert: not a bias, a router or the gate of
/// a shared expert.
bool can_have_adapter(const ParamInfo& parameter);

/// Adapters of these matrices.
Lora make_lora(const ModelConfig& model, i64 rank, double alpha, std::vector<std::string> targets);

/// Units without adapters, ascending.
std::vector<Unit> units_without(const ModelConfig& model, const Lora& lora);

}  // namespace hetermoe
