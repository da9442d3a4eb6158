#include "hetermoe/profile/expert_products.h"

#include <c10/util/Exception.h>

#include <limits>

#include "hetermoe/base/index.h"
#include "hetermoe/nn/experts.h"
#include "hetermoe/profile/tasks.h"

namespace hetermoe {
namespace {

/// What a step does: with kept activations, forward and backward.
Seconds seconds_of(const ModelConfig& model, i64 layer, i64 num_experts, i64 rows,
                   const at::TensorOptions& options, const TimingOptions& timing, ExpertProducts products) {
  Seconds sum = 0;
  for (const ProfileTask& each : expert_tasks(model, layer, num_experts, rows, options, products)) {
    const bool counts =
        each.entry.phase == ProfiledPhase::kRecompute || each.entry.phase == ProfiledPhase::kBackward;
    if (counts) sum += measure(each.task, options.device(), timing).median;
  }
  return sum;
}

}  // namespace

ExpertProducts faster_expert_products(const ModelConfig& model, i64 layer, i64 num_experts, i64 rows,
                                      const at::TensorOptions& options, const TimingOptions& timing) {
  const bool possible =
      can_group_products(options.dtype().toScalarType(), num_experts, model.hidden, model.expert_hidden);
  if (!possible) return ExpertProducts::kEach;
  const auto seconds = [&](ExpertProducts products) {
    return seconds_of(model, layer, num_experts, rows, options, timing, products);
  };
  try {
    return seconds(ExpertProducts::kGrouped) < seconds(ExpertProducts::kEach) ? ExpertProducts::kGrouped
                                                                              : ExpertProducts::kEach;
  } catch (const c10::Error&) {  // libtorch has none for this device
    return ExpertProducts::kEach;
  }
}

}  // namespace hetermoe
