#include "hetermoe/weights/hf_weights.h"

#include "hetermoe/base/printable.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

/// Each value times the factor of its block.
at::Tensor dequantize(const at::Tensor& values, const at::Tensor& scale, const std::vector<i64>& block) {
  const at::Tensor wide = scale.to(at::kFloat)
                              .repeat_interleave(block[0], 0)
                              .narrow(0, 0, values.size(0))
                              .repeat_interleave(block[1], 1)
                              .narrow(1, 0, values.size(1));
  return values.to(at::kFloat) * wide;
}

std::string layout_text(const TensorMap& map) {
  return map.layout == ExpertLayout::kNone ? "none found" : name_of(map.layout);
}

}  // namespace

HfWeights::HfWeights(const fs::path& folder, const ModelConfig& model)
    : folder_(folder),
      facts_(file_facts(folder_.config())),
      map_(map_tensors(model, folder_.heads(), facts_)) {
  if (!map_.complete()) {
    fail<ConfigError>(folder.string(), "does not hold the weights of {} ({}, experts: {}): {}", model.name,
                      model.model_type, layout_text(map_), faults_of(map_));
  }
  if (model.tie_embeddings) check_tied_head();
}

/// Some programs write both names of tied embeddings. Another head than the embedding would be lost.
void HfWeights::check_tied_head() const {
  for (const std::string& name : map_.ignored) {
    if (name != "lm_head.weight") continue;
    const at::Tensor head = folder_.map(name), embedding = read("model.embed_tokens.weight");
    if (head.scalar_type() == embedding.scalar_type() && at::equal(head, embedding)) return;
    fail<ConfigError>(folder_.file_of(name).string(),
                      "lm_head.weight is not model.embed_tokens.weight, but config.json ties them "
                      "(tie_word_embeddings)");
  }
}

const TensorSource& HfWeights::source(const std::string& parameter) const {
  const auto found = map_.sources.find(parameter);
  HM_CHECK(found != map_.sources.end(), "{} is no parameter of the model", parameter);
  return found->second;
}

at::ScalarType HfWeights::dtype(const std::string& parameter) const {
  const TensorSource& from = source(parameter);
  return from.scale.empty() ? folder_.head(from.tensor).dtype : at::kBFloat16;
}

at::Tensor HfWeights::read(const std::string& parameter) const {
  const TensorSource& from = source(parameter);
  at::Tensor tensor = folder_.map(from.tensor);
  if (!from.scale.empty()) tensor = dequantize(tensor, folder_.map(from.scale), facts_.fp8_block);
  if (from.expert >= 0) {
    tensor = tensor[from.expert];
    if (from.transposed) tensor = tensor.t();
    // Of gate_up_proj one half; of down_proj all.
    const bool half = from.tensor.ends_with("gate_up_proj");
    if (half) tensor = tensor.narrow(0, from.first_row, tensor.size(0) / 2);
  }
  check_finite_values(tensor, folder_.file_of(from.tensor).string(), parameter);
  return tensor;
}

ModelConfig model_of(const HfFolder& folder) {
  ModelConfig model = model_from_hf(folder.config(), (folder.path() / "config.json").string());
  model.name = printable(fs::weakly_canonical(folder.path()).filename().string());
  return model;
}

void check_finite_values(const at::Tensor& tensor, const std::string& where, const std::string& name) {
  // A sum of finite numbers in fp64 is finite, and takes no second tensor.
  if (tensor.numel() == 0 || at::isfinite(at::sum(tensor, at::kDouble)).item<bool>()) return;
  const at::Tensor bad = at::isfinite(tensor).logical_not();
  fail<IoError>(where, "{} has {} values that are NaN or infinite", name, bad.sum().item<i64>());
}

void set_parameter(const LogicalTensor& tensor, const at::Tensor& whole) {
  const at::Tensor value = tensor.value;
  if (tensor.master.defined()) {
    const at::Tensor master = tensor.master;
    master.copy_(kept_of(tensor, whole));
    value.copy_(kept_value_of(tensor, whole).to(master.scalar_type()));
  } else {
    value.copy_(kept_value_of(tensor, whole));
  }
  if (tensor.published.defined()) at::Tensor(tensor.published).copy_(value);
}

void load_weights(const HfWeights& weights, const std::vector<DeviceState*>& states) {
  const std::string where = weights.folder().path().string();
  for (DeviceState* state : states) {
    for (const LogicalTensor& tensor : state->store().tensors()) {
      if (is_adapter(tensor.name)) continue;
      set_parameter(tensor, weights.read(tensor.name));
      if (tensor.value.scalar_type() == at::kHalf) check_finite_values(tensor.value, where, tensor.name);
    }
  }
}

}  // namespace hetermoe
