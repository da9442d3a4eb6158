#include "hetermoe/planner/predict.h"

#include <algorithm>
#include <limits>

#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {
namespace {

/// Microbatches that run one after another repeat themselves from the second on.
constexpr std::size_t kShortRun = 3;

/// All microbatches have the same size and shares.
bool has_equal_microbatches(const Group& group) {
  const std::vector<i64>& sizes = group.microbatches;
  return group.embed.size() == 1 && group.head.size() == 1 &&
         std::all_of(sizes.begin(), sizes.end(), [&](i64 size) { return size == sizes[0]; }) &&
         std::all_of(group.layers.begin(), group.layers.end(),
                     [](const LayerPlacement& layer) { return layer.attention.size() == 1; });
}

bool repeats(const Plan& plan) {
  if (!traits_of(plan.order).has_window || plan.window != 1) return false;
  const std::size_t count = plan.groups[0].microbatches.size();
  return count > kShortRun && std::all_of(plan.groups.begin(), plan.groups.end(), [&](const Group& group) {
           return group.microbatches.size() == count && has_equal_microbatches(group);
         });
}

Plan with_microbatches(const Plan& plan, std::size_t count) {
  Plan out = plan;
  for (Group& group : out.groups) group.microbatches.resize(count);
  return out;
}

double tokens_of(const Plan& plan) { return static_cast<double>(total_sequences(plan) * plan.seq_len); }

}  // namespace

std::optional<Prediction> Predictor::simulate(i64 max_visits, const Plan& plan) {
  const std::optional<FoldedStep> folded =
      make_folded_step_within(max_visits, plan, model_, cluster_, *cost(plan), ExpectedRouting(model_));
  if (!folded) return {};
  const OpTimes& times = simulator_.run(folded->schedule, folded->costs);
  work_ += static_cast<i64>(folded->schedule.lanes.size());
  Prediction out;
  out.step = times.step;
  out.busy = folded->busy_seconds(times);
  return out;
}

std::optional<Prediction> Predictor::predict_within(i64 max_visits, const Plan& plan) {
  std::optional<Prediction> out;
  if (repeats(plan)) {
    out = simulate(max_visits, with_microbatches(plan, kShortRun));
    if (!out) return {};
    const Prediction shorter = *simulate(max_visits, with_microbatches(plan, kShortRun - 1));
    const auto more = static_cast<double>(plan.groups[0].microbatches.size() - kShortRun);
    out->step += more * (out->step - shorter.step);
    for (std::size_t d = 0; d < out->busy.size(); ++d)
      out->busy[d] += more * (out->busy[d] - shorter.busy[d]);
  } else {
    out = simulate(max_visits, plan);
    if (!out) return {};
  }
  for (double& busy : out->busy) busy /= out->step;
  out->tokens_per_s = tokens_of(plan) / out->step;
  return out;
}

Prediction Predictor::predict(const Plan& plan) {
  return *predict_within(std::numeric_limits<i64>::max(), plan);
}

}  // namespace hetermoe
