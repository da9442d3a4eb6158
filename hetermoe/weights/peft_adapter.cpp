#include "hetermoe/weights/peft_adapter.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "hetermoe/base/json.h"
#include "hetermoe/model/lora.h"
#include "hetermoe/weights/hf_weights.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kTensors = "adapter_model.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";

fs::path tensors_of(const fs::path& folder) {
  std::error_code code;
  if (!fs::exists(folder / kConfig, code) || !fs::exists(folder / kTensors, code))
    fail<ConfigError>(folder.string(), "is no folder of adapters: expected {} and {}, as PEFT writes them",
                      kConfig, kTensors);
  return folder / kTensors;
}

/// Kinds of LoRA that act otherwise than W + alpha / rank B A.
void check_kind(const Json& config, const fs::path& path) {
  const auto expect = [&](const char* key, const Json& expected) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null() || *found == expected) return;
    fail<ConfigError>(path.string(), "{}: got {}, expected {}: other adapters are not built", key,
                      found->dump(), expected.dump());
  };
  expect("peft_type", "LORA");
  expect("bias", "none");
  for (const char* key : {"use_dora", "use_rslora", "fan_in_fan_out", "lora_bias"}) expect(key, false);
  for (const char* key : {"rank_pattern", "alpha_pattern"}) expect(key, Json::object());
}

/// The matrix of a tensor in the file; "" = it is no adapter of a matrix.
std::string matrix_in_file(const std::string& name) {
  const bool ours = name.starts_with(kPrefix) && is_adapter(name);
  return ours ? matrix_of(name.substr(kPrefix.size())) : "";
}

}  // namespace

PeftAdapter::PeftAdapter(const fs::path& folder) : file_(tensors_of(folder)) {
  const fs::path path = folder / kConfig;
  const Json config = read_json(path);
  if (!config.is_object()) fail<ConfigError>(path.string(), "is no JSON object, expected settings of PEFT");
  check_kind(config, path);
  const auto number = [&](const char* key, auto& out) {
    const auto found = config.find(key);
    if (found == config.end()) fail<ConfigError>(path.string(), "{}: missing, expected a number", key);
    read_value(*found, out, fmt::format("{} {}", path.string(), key), above(0));
  };
  number("r", rank_);
  number("lora_alpha", alpha_);
  for (const std::string& name : file_.names()) {
    const std::string matrix = matrix_in_file(name);
    if (matrix.empty())
      fail<ConfigError>((folder / kTensors).string(),
                        "{} is no adapter of one matrix: expected {}NAME.lora_A.weight and .lora_B.weight",
                        name, kPrefix);
    targets_.push_back(matrix);
  }
  std::sort(targets_.begin(), targets_.end());
  targets_.erase(std::unique(targets_.begin(), targets_.end()), targets_.end());
}

void PeftAdapter::load(const std::vector<DeviceState*>& states) const {
  for (DeviceState* state : states) {
    for (const LogicalTensor& tensor : state->store().tensors()) {
      if (!is_adapter(tensor.name)) continue;
      const std::string name = std::string(kPrefix) + tensor.name;
      if (!file_.has(name)) fail<ConfigError>(file_.path().string(), "{}: missing", name);
      const at::Tensor value = file_.read(name);
      if (value.sizes().vec() != tensor.shape)
        fail<ConfigError>(file_.path().string(), "{} is not of this model: got shape [{}], expected [{}]",
                          name, fmt::join(value.sizes(), ", "), fmt::join(tensor.shape, ", "));
      check_finite_values(value, file_.path().string(), name);
      set_parameter(tensor, value);
    }
  }
}

}  // namespace hetermoe
