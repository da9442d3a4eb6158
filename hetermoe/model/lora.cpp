#include "hetermoe/model/lora.h"

#include <algorithm>

namespace hetermoe {
namespace {

constexpr std::string_view kWeight = ".weight", kA = ".lora_A.weight", kB = ".lora_B.weight";

std::string with_ending(const std::string& matrix, std::string_view ending) {
  HM_CHECK(matrix.ends_with(kWeight), "{} is no matrix", matrix);
  return matrix.substr(0, matrix.size() - kWeight.size()).append(ending);
}

}  // namespace

bool Lora::adapts(const std::string& matrix) const {
  return std::binary_search(targets.begin(), targets.end(), matrix);
}

i64 Lora::numbers_of(const Unit& unit) const {
  const auto found = numbers.find(unit);
  return found == numbers.end() ? 0 : found->second;
}

std::string lora_a_name(const std::string& matrix) { return with_ending(matrix, kA); }
std::string lora_b_name(const std::string& matrix) { return with_ending(matrix, kB); }
bool is_lora_a(const std::string& name) { return name.ends_with(kA); }
bool is_adapter(const std::string& name) { return is_lora_a(name) || name.ends_with(kB); }

std::string matrix_of(const std::string& name) {
  if (!is_adapter(name)) return name;
  return name.substr(0, name.size() - kA.size()).append(kWeight);
}

bool can_have_adapter(const ParamInfo& parameter) {
  // Of the router, or of a shared expert.
  const bool is_gate = parameter.name.ends_with("gate.weight") || parameter.name.ends_with("router.weight");
  return parameter.layer >= 0 && parameter.shape.size() == 2 && !is_gate && !parameter.buffer;
}

Lora make_lora(const ModelConfig& model, i64 rank, double alpha, std::vector<std::string> targets) {
  std::sort(targets.begin(), targets.end());
  Lora lora{.rank = rank, .alpha = alpha, .targets = std::move(targets)};
  for (const ParamInfo& parameter : parameters(model)) {
    if (!lora.adapts(parameter.name)) continue;
    HM_CHECK(can_have_adapter(parameter), "{} can have no adapter", parameter.name);
    lora.numbers[unit_of(model, parameter)] += rank * (parameter.shape[0] + parameter.shape[1]);
  }
  return lora;
}

std::vector<Unit> units_without(const ModelConfig& model, const Lora& lora) {
  std::vector<Unit> out;
  for (const Unit& unit : units(model)) {
    if (lora.numbers_of(unit) == 0) out.push_back(unit);
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace hetermoe
