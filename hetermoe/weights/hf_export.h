#pragma once
#include <functional>
#include <vector>

#include "hetermoe/exec/device_state.h"
#include "hetermoe/weights/hf_weights.h"
#include "hetermoe/weights/hf_writer.h"

// From devices to a Hugging Face folder.
namespace hetermoe {

/// The parameters and buffers that these devices speak for, in the order of parameters(model): from the
/// masters, where there are some, in the dtype that `dtype_of` says. The devices must live until all are
/// made. Throws ConfigError when masters are divided among devices of other processes and their precision is
/// asked for.
/// Adapters are merged into their matrices.
std::vector<OutTensor> tensors_to_save(const std::vector<DeviceState*>& states, const ModelConfig& model,
                                       const std::function<at::ScalarType(const LogicalTensor&)>& dtype_of);

/// The adapters that these devices speak for, under the names of the PEFT library, in fp32.
std::vector<OutTensor> adapters_to_save(const std::vector<DeviceState*>& states);
/// Matrices whose adapters PEFT drops without a word: of shared experts, and of dense MLPs in a model with
/// experts, whose names end like those of experts; of GPT-OSS the experts, too, which are one module there.
std::vector<std::string> dropped_by_peft(const ModelConfig& model, const Lora& lora);
/// PEFT's adapter_config.json.
Json adapter_config(const ModelConfig& model, const Lora& lora, const std::string& base);

/// The dtype that most bytes have. fp32 when there are no tensors.
at::ScalarType main_dtype(const std::vector<OutTensor>& tensors);

/// Throws ConfigError when a job's model computes something else than that of the folder it starts from. The
/// coefficient of the load-balancing loss, the longest sequence and initializer_range may differ.
void check_same_arithmetic(const ModelConfig& model, const HfFolder& folder);

/// config.json of a model that was trained from a folder: all that the folder's says, but what the job
/// changed.
Json config_after(const ModelConfig& model, const HfFolder& folder);

}  // namespace hetermoe
