#pragma once
#include <compare>
#include <string>
#include <vector>

#include "hetermoe/model/model_config.h"

namespace hetermoe {

/// The parts of a model that training places, in the order of a step. kAttention is everything of a layer but
/// its routed experts.
enum class UnitPart : std::uint8_t { kEmbed, kAttention, kExperts, kHead };
template <>
struct EnumNames<UnitPart> {
  static const std::vector<std::string>& names();  // embed attention experts head
};

/// The smallest part of a model that has a place of its own: the embedding, the attention part of a layer,
/// one expert of a layer, the head. With tied embeddings there is no head unit: its tensors belong to the
/// embedding. Units order as in units().
struct Unit {
  i32 layer = -1;  ///< -1 = embedding; num_layers = head
  UnitPart part = UnitPart::kEmbed;
  ExpertId expert = -1;  ///< of part kExperts, else -1
  auto operator<=>(const Unit&) const = default;
};

/// Every unit, in the order embedding, layers (attention part, then experts by number), head.
std::vector<Unit> units(const ModelConfig& model);
/// The unit that a tensor of parameters() belongs to.
Unit unit_of(const ModelConfig& model, const ParamInfo& parameter);
/// Trainable numbers of a unit: no buffers.
i64 num_parameters(const ModelConfig& model, const Unit& unit);

/// "embed", "attention l3", "expert l3 e5", "head".
std::string to_string(const Unit& unit);

}  // namespace hetermoe
