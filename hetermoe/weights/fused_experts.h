#pragma once
#include <vector>

#include "hetermoe/weights/safetensors.h"
#include "hetermoe/weights/tensor_map.h"

namespace hetermoe {

/// How transformers wants the experts of a model in files: kPerExpert, or kInterleaved.
ExpertLayout file_layout(const ModelConfig& model);

/// The tensors of all parameters(model), in their order, as files of a layout have them: kPerExpert, kFused
/// or kInterleaved. In memory are at most a fused tensor and that of one expert.
std::vector<OutTensor> in_layout(const ModelConfig& model, ExpertLayout layout,
                                 std::vector<OutTensor> tensors);

}  // namespace hetermoe
