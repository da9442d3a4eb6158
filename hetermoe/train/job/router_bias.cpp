#include "hetermoe/train/job/router_bias.h"

#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include "hetermoe/device/accelerator.h"
#include "hetermoe/model/family.h"

namespace hetermoe {

void check_router_bias(const TrainOptions& train, const ModelConfig& model) {
  if (train.router_bias_rate == 0 || model.router_bias) return;
  std::vector<std::string> with_bias;
  for (const ModelFamily& family : families()) {
    if (family.router_bias) with_bias.push_back(family.model_type);
  }
  fail<ConfigError>(
      "train.router_bias_rate",
      "got {}, but model {} has no e_score_correction_bias: expected 0, or a model of family {}",
      train.router_bias_rate, model.name, fmt::join(with_bias, ", "));
}

void adjust_router_bias(const std::vector<DeviceState*>& states, const ModelConfig& model,
                        const at::Tensor& counts_LE, double rate) {
  const c10::NoGradGuard no_grad;
  const at::Tensor counts = counts_LE.to(at::kDouble);
  const at::Tensor change_LE = (counts.mean(1, true) - counts).sign().mul_(rate);
  for (DeviceState* state : states) {
    for (i32 l = 0; l < static_cast<i32>(model.num_layers); ++l) {
      if (!model.is_moe(l) || !state->store().has(UnitPart::kAttention, l)) continue;
      StateGroup& group = state->attention(l);
      if (!group.trainable() || !group.buffer.defined()) continue;
      group.buffer.add_(change_LE.select(0, l).view_as(group.buffer).to(group.buffer.options()));
    }
    finish_stream(state->where());
  }
}

}  // namespace hetermoe
