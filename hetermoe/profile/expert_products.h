#pragma once
#include "hetermoe/profile/profiler.h"

namespace hetermoe {

/// Times `num_experts` experts of `layer`, with `rows` rows each, forward and backward, both ways, and
/// returns the faster one. kEach where the other cannot be (dtype, widths, a device for which libtorch has
/// none).
ExpertProducts faster_expert_products(const ModelConfig& model, i64 layer, i64 num_experts, i64 rows,
                                      const at::TensorOptions& options, const TimingOptions& timing);

}  // namespace hetermoe
