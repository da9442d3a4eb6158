#include "hetermoe/weights/hf_export.h"

#include <algorithm>
#include <map>
#include <set>

#include "hetermoe/model/family.h"

namespace hetermoe {
namespace {

/// All parts of one parameter that are in this process.
using Pieces = std::map<std::string, std::vector<LogicalTensor>>;

/// The value says all that the dtype can hold.
bool takes_value(const LogicalTensor& tensor, at::ScalarType dtype) {
  return !tensor.master.defined() || tensor.value.scalar_type() == dtype;
}

i64 count_here(const std::vector<LogicalTensor>& pieces, at::Tensor LogicalTensor::*kept) {
  i64 count = 0;
  for (const LogicalTensor& piece : pieces) count += (piece.*kept).numel();
  return count;
}

void check_pieces(const LogicalTensor& tensor, const std::vector<LogicalTensor>& pieces,
                  at::Tensor LogicalTensor::*kept, at::ScalarType dtype) {
  if (count_here(pieces, kept) == c10::multiply_integers(tensor.shape)) return;
  if (tensor.gathered)
    fail<ConfigError>("train.save_hf",
                      "{} would have to be put together from several processes, which divide the weights "
                      "(plan.shard_weights). Leave it out here, and convert a checkpoint in one process",
                      tensor.name);
  fail<ConfigError>("train.save_dtype",
                    "{} of {} would have to be put together from several processes, which divide the masters "
                    "(plan.shard_optimizer): expected {}, in which devices compute",
                    dtype_text(dtype), tensor.name, dtype_text(tensor.value.scalar_type()));
}

struct AdapterOfMatrix {
  LogicalTensor a, b;
};
using Adapters = std::map<std::string, AdapterOfMatrix>;  // by the name of the matrix

/// The numbers of an adapter: the master where there is a whole one.
const at::Tensor& numbers_of(const LogicalTensor& adapter) {
  return adapter.master.defined() && !adapter.sharded ? adapter.master : adapter.value;
}

OutTensor out_tensor(const LogicalTensor& tensor, const Pieces& pieces, const Adapters& adapters,
                     at::ScalarType dtype) {
  OutTensor out{.head = {tensor.name, dtype, tensor.shape}, .make = {}};
  const bool of_value = takes_value(tensor, dtype);
  at::Tensor LogicalTensor::*const kept = of_value ? &LogicalTensor::value : &LogicalTensor::master;
  if (of_value ? tensor.gathered : tensor.sharded) {
    const std::vector<LogicalTensor>& own = pieces.at(tensor.name);
    check_pieces(tensor, own, kept, dtype);
    out.make = [own, kept, dtype] { return joined(own, kept).to(dtype); };
  } else if (const auto adapter = adapters.find(tensor.name); adapter != adapters.end()) {
    out.make = [tensor, a = adapter->second.a, b = adapter->second.b, dtype] {
      const at::ScalarType wide = tensor.value.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      return merged(tensor.value.to(wide), numbers_of(a).to(tensor.value.device()),
                    numbers_of(b).to(tensor.value.device()), a.lora_scale)
          .to(at::kCPU, dtype);
    };
  } else {
    out.make = [tensor, kept, dtype] { return (tensor.*kept).to(at::kCPU, dtype); };
  }
  return out;
}

}  // namespace

std::vector<OutTensor> tensors_to_save(const std::vector<DeviceState*>& states, const ModelConfig& model,
                                       const std::function<at::ScalarType(const LogicalTensor&)>& dtype_of) {
  Pieces pieces;
  Adapters adapters;  // perhaps on the devices of a host that has the matrices
  std::map<std::string, LogicalTensor> owned;
  for (DeviceState* state : states) {
    for (const LogicalTensor& tensor : state->store().tensors()) {
      if (tensor.sharded) pieces[tensor.name].push_back(tensor);
      if (is_adapter(tensor.name)) {
        AdapterOfMatrix& adapter = adapters[matrix_of(tensor.name)];
        (is_lora_a(tensor.name) ? adapter.a : adapter.b) = tensor;
      } else if (tensor.first_owner) {
        owned.emplace(tensor.name, tensor);
      }
    }
  }
  std::vector<OutTensor> out;
  for (const ParamInfo& parameter : parameters(model)) {
    const auto found = owned.find(parameter.name);
    if (found == owned.end()) continue;
    out.push_back(out_tensor(found->second, pieces, adapters, dtype_of(found->second)));
  }
  HM_CHECK(out.size() == owned.size(), "{} tensors are no parameters of the model",
           owned.size() - out.size());
  return out;
}

std::vector<OutTensor> adapters_to_save(const std::vector<DeviceState*>& states) {
  std::map<std::string, OutTensor> out;
  for (DeviceState* state : states) {
    for (const LogicalTensor& tensor : state->store().tensors()) {
      if (!tensor.first_owner || !is_adapter(tensor.name)) continue;
      const std::string name = "base_model.model." + tensor.name;
      OutTensor made;
      made.head = {name, at::kFloat, tensor.shape};
      made.make = [numbers = numbers_of(tensor)] { return numbers.to(at::kCPU, at::kFloat).contiguous(); };
      out.emplace(name, std::move(made));
    }
  }
  std::vector<OutTensor> ordered;
  for (auto& [name, tensor] : out) ordered.push_back(std::move(tensor));
  return ordered;
}

std::vector<std::string> dropped_by_peft(const ModelConfig& model, const Lora& lora) {
  std::vector<std::string> out;
  for (const std::string& matrix : lora.targets) {
    const bool of_expert = matrix.find(".experts.") != std::string::npos;
    const bool beside = model.num_moe_layers() > 0 && matrix.find(".mlp.") != std::string::npos;
    if (of_expert ? family_of(model).interleaved_experts : beside) out.push_back(matrix);
  }
  return out;
}

Json adapter_config(const ModelConfig& model, const Lora& lora, const std::string& base) {
  // Modules by their whole names: PEFT takes a name that ends so, and layers may differ.
  Json modules = Json::array();
  for (const std::string& matrix : lora.targets)
    modules.push_back(matrix.substr(0, matrix.size() - std::string(".weight").size()));
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base.empty() ? model.name : base},
          {"r", lora.rank},
          {"lora_alpha", lora.alpha},
          {"target_modules", modules},
          {"lora_dropout", 0.0},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"use_rslora", false},
          {"use_dora", false}};
}

at::ScalarType main_dtype(const std::vector<OutTensor>& tensors) {
  std::map<at::ScalarType, i64> bytes = {{at::kFloat, 0}};
  for (const OutTensor& tensor : tensors) bytes[tensor.head.dtype] += tensor.head.bytes();
  return std::max_element(bytes.begin(), bytes.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

void check_same_arithmetic(const ModelConfig& model, const HfFolder& folder) {
  static const std::set<std::string> kFree = {"router_aux_loss_coef", "initializer_range",
                                              "max_position_embeddings"};
  const Json got = to_hf(model), expected = to_hf(model_of(folder));
  for (const Json* from : {&expected, &got}) {
    for (const auto& [key, value] : from->items()) {
      const Json mine = got.value(key, Json()), theirs = expected.value(key, Json());
      if (kFree.count(key) > 0 || mine == theirs) continue;
      fail<ConfigError>(
          "train.init_from",
          "{} is of another model than {}: {} is {}, expected {}. Leave out model, and it is that "
          "of the folder",
          folder.path().string(), model.name, key, theirs.dump(), mine.dump());
    }
  }
}

Json config_after(const ModelConfig& model, const HfFolder& folder) {
  Json config = folder.config();
  const Json now = to_hf(model), before = to_hf(model_of(folder));
  for (const auto& [key, value] : now.items()) {
    if (before.value(key, Json()) != value) config[key] = value;
  }
  return config;
}

}  // namespace hetermoe
