#include "hetermoe/weights/hf_weights.h"

#include <algorithm>

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

/// blocks [rows, groups, 16] of two numbers a byte, the first in the low bits: a sign, two bits of exponent,
/// one of mantissa. scales [rows, groups].
at::Tensor dequantize_mxfp4(const at::Tensor& blocks, const at::Tensor& scales) {
  static const at::Tensor kValues = at::tensor(
      {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0}, at::kFloat);
  constexpr i64 kBias = 127;
  const at::Tensor low = blocks.bitwise_and(0x0F), high = blocks.bitwise_right_shift(4);
  const at::Tensor index = at::stack({low, high}, -1).flatten(-2).to(at::kInt);
  const at::Tensor numbers = kValues.index_select(0, index.flatten()).view(index.sizes());
  const at::Tensor factors = at::exp2(scales.to(at::kFloat).sub_(kBias));
  return (numbers * factors.unsqueeze(-1)).flatten(1);
}

std::string layout_text(const TensorMap& map) {
  return map.layout == ExpertLayout::kNone ? "none found" : name_of(map.layout);
}

}  // namespace

void check_no_adapters(const fs::path& folder) {
  std::error_code code;
  if (!fs::exists(folder / "checkpoint.json", code)) return;
  const Json info = read_json(folder / "checkpoint.json");
  if (info.value(Json::json_pointer("/job/train/lora/rank"), i64{0}) == 0) return;
  fail<ConfigError>(
      folder.string(),
      "is a checkpoint with adapters (train.lora), and its weights are those without them: train with "
      "train.save_hf, which writes the merged model, and name that folder");
}

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
  const auto rows_of = [&](const at::Tensor& part) {
    const i64 end = from.first_row + from.num_rows * from.row_step;
    return part.slice(0, from.first_row, std::min(end, part.size(0)), from.row_step);
  };
  if (from.mxfp4) {
    tensor = dequantize_mxfp4(rows_of(tensor[from.expert]), rows_of(folder_.map(from.scale)[from.expert]));
  } else if (from.expert >= 0) {
    tensor = tensor[from.expert];
    tensor = rows_of(from.transposed ? tensor.t() : tensor);
  } else if (!from.scale.empty()) {
    tensor = dequantize(tensor, folder_.map(from.scale), facts_.fp8_block);
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
