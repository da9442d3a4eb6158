#include "hetermoe/model/unit.h"

#include <fmt/format.h>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<UnitPart>::names() {
  static const std::vector<std::string> all = {"embed", "attention", "experts", "head"};
  return all;
}

namespace {

Unit embed_unit() { return {}; }
Unit head_unit(const ModelConfig& model) {
  return {.layer = static_cast<i32>(model.num_layers), .part = UnitPart::kHead};
}

}  // namespace

std::vector<Unit> units(const ModelConfig& model) {
  std::vector<Unit> all = {embed_unit()};
  for (i32 l = 0; l < static_cast<i32>(model.num_layers); ++l) {
    all.push_back({.layer = l, .part = UnitPart::kAttention});
    if (!model.is_moe(l)) continue;
    for (ExpertId e = 0; e < static_cast<ExpertId>(model.num_experts); ++e) {
      all.push_back({.layer = l, .part = UnitPart::kExperts, .expert = e});
    }
  }
  if (!model.tie_embeddings) all.push_back(head_unit(model));
  return all;
}

Unit unit_of(const ModelConfig& model, const ParamInfo& parameter) {
  if (parameter.expert >= 0)
    return {.layer = parameter.layer, .part = UnitPart::kExperts, .expert = parameter.expert};
  if (parameter.layer >= 0) return {.layer = parameter.layer, .part = UnitPart::kAttention};
  const bool of_embedding = model.tie_embeddings || parameter.name == "model.embed_tokens.weight";
  return of_embedding ? embed_unit() : head_unit(model);
}

i64 num_parameters(const ModelConfig& model, const Unit& unit) {
  const i64 embedding = model.vocab * model.hidden;
  switch (unit.part) {
    case UnitPart::kEmbed:
      return embedding + (model.tie_embeddings ? model.hidden : 0);
    case UnitPart::kAttention:
      return layer_weights(model, unit.layer).attention_part() -
             (model.is_moe(unit.layer) && model.router_bias ? model.num_experts : 0);
    case UnitPart::kExperts:
      return expert_weights(model);
    case UnitPart::kHead:
      return embedding + model.hidden;
  }
  HM_CHECK(false, "unit of no part");
}

std::string to_string(const Unit& unit) {
  switch (unit.part) {
    case UnitPart::kEmbed:
      return "embed";
    case UnitPart::kAttention:
      return fmt::format("attention l{}", unit.layer);
    case UnitPart::kExperts:
      return fmt::format("expert l{} e{}", unit.layer, unit.expert);
    case UnitPart::kHead:
      return "head";
  }
  HM_CHECK(false, "unit of no part");
}

}  // namespace hetermoe
