#pragma once
#include "hetermoe/exec/device_state.h"
#include "hetermoe/train/job/job.h"

// Balance without a loss (DeepSeek-V3, arXiv 2412.19437): a bias that enters the choice of experts alone
// follows what they got.
namespace hetermoe {

/// Throws ConfigError where train.router_bias_rate needs a bias that the model does not have.
void check_router_bias(const TrainOptions& train, const ModelConfig& model);

/// Moves the bias of every layer with experts by `rate`: up for experts with fewer copies than the mean of
/// the layer, down for those with more. Frozen attention parts keep theirs. counts_LE: copies of the step on
/// all devices, so that all replicas of a bias stay equal to the bit. Between steps.
void adjust_router_bias(const std::vector<DeviceState*>& states, const ModelConfig& model,
                        const at::Tensor& counts_LE, double rate);

}  // namespace hetermoe
