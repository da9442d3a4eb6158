#include "hetermoe/planner/predict.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/backward_shares.h"
#include "hetermoe/plan/pipeline_tasks.h"
#include "hetermoe/schedule/order_policy.h"
#include "hetermoe/sim/memory.h"

namespace hetermoe {
namespace {

/// Windows that run one after another repeat themselves: from the second on where a window is a single
/// microbatch, else from the third on. In a pipeline they do when all stages are busy: after as many more as
/// there are stages.
constexpr i64 kShortRun = 3;
constexpr std::size_t kLongestPeriod = 16;
constexpr double kSamePeak = 1 + 1e-6;  ///< equal but for rounding

template <class T>
bool repeats_after(const std::vector<T>& values, std::size_t period) {
  for (std::size_t i = period; i < values.size(); ++i) {
    if (!(values[i] == values[i - period])) return false;
  }
  return true;
}

/// After how many microbatches sizes and shares repeat themselves; 0 = they do not.
std::size_t period_of(const Group& group) {
  std::vector<const Shares*> all = {&group.embed};
  const auto add = [&](const Shares& shares) {
    if (shares != *all.back()) all.push_back(&shares);
  };
  for (const LayerPlacement& layer : group.layers) add(layer.attention);
  add(group.head);
  for (std::size_t period = 1; period <= std::min(kLongestPeriod, group.microbatches.size()); ++period) {
    const bool repeats = repeats_after(group.microbatches, period) &&
                         std::all_of(all.begin(), all.end(), [&](const Shares* shares) {
                           return shares->size() == 1 || repeats_after(*shares, period);
                         });
    if (repeats) return period;
  }
  return 0;
}

void keep_first(Shares& shares, std::size_t rows) {
  if (shares.size() > 1) shares.resize(rows);
}

}  // namespace

std::vector<i64> stage_layers(const Group& group) {
  std::vector<i64> layers;
  for (std::size_t l = 0; l < group.layers.size(); ++l) {
    if (l == 0 || group.layers[l].attention != group.layers[l - 1].attention) layers.push_back(0);
    ++layers.back();
  }
  return layers;
}

std::vector<Repeat> repeated_windows(const Plan& plan) {
  std::vector<Repeat> repeats;
  if (has_roaming_layers(plan)) return repeats;
  const bool pipeline = traits_of(plan.order).has_stages;
  if (!pipeline && (!traits_of(plan.order).windows_in_sequence || plan.window < 1)) return repeats;
  bool any = false;
  for (const Group& group : plan.groups) {
    const auto period = static_cast<i64>(period_of(group));
    const i64 run = kShortRun + (pipeline ? 2 * static_cast<i64>(stage_layers(group).size()) : 0);
    Repeat repeat;
    repeat.unit = period > 0 ? std::lcm(period, std::max(i64{1}, i64{plan.window})) : 0;
    // Interleaved, windows go in groups.
    if (const PipelineStages stages = pipeline_stages(group); pipeline && stages.chunks() > 1)
      repeat.unit *= stages.ranks;
    const auto count = static_cast<i64>(group.microbatches.size());
    if (repeat.unit > 0) repeat.times = std::max<i64>(0, count / repeat.unit - run);
    any = any || repeat.times > 0;
    repeats.push_back(repeat);
  }
  if (!any) repeats.clear();
  return repeats;
}

Plan without_repeats(const Plan& plan, const std::vector<Repeat>& repeats, i64 more) {
  Plan out = plan;
  for (std::size_t g = 0; g < repeats.size(); ++g) {
    if (repeats[g].times == 0) continue;
    Group& group = out.groups[g];
    const std::size_t count = group.microbatches.size() - idx((repeats[g].times + more) * repeats[g].unit);
    group.microbatches.resize(count);
    keep_first(group.embed, count);
    keep_first(group.head, count);
    for (LayerPlacement& layer : group.layers) keep_first(layer.attention, count);
  }
  return out;
}

std::optional<Predictor::Run> Predictor::simulate(i64 max_visits, const Plan& plan, bool with_memory) {
  const std::optional<FoldedStep> folded =
      make_folded_step_within(max_visits, plan, model_, cluster_, *cost(plan), *routing_.load, step_);
  if (!folded) return {};
  const OpTimes& times = simulator_.run(folded->schedule, folded->costs);
  work_ += static_cast<i64>(folded->schedule.lanes.size());
  Run run;
  run.step = times.step;
  run.busy = folded->busy_seconds(times);
  run.group_end.assign(plan.groups.size(), 0);
  for (OpId op = 0; op < folded->schedule.num_ops(); ++op) {
    const Op& at = folded->schedule.ops[idx(op)];
    if (at.microbatch < 0) continue;
    Seconds& end = run.group_end[idx(at.group)];
    end = std::max(end, times.end[idx(op)]);
  }
  for (std::size_t g = 0; g < plan.groups.size(); ++g)
    run.group_end[g] = run.group_end[idx(folded->fold.group[g])];
  if (with_memory) run.memory = peaks(*folded, times);
  return run;
}

/// Folded devices as their representatives.
std::vector<Bytes> Predictor::peaks(const FoldedStep& step, const OpTimes& times) const {
  const std::vector<MemoryPeak> all =
      peak_memory(step.schedule, times, *step.placement, model_, cluster_, *routing_.load, routing_.margin);
  std::vector<Bytes> peaks;
  for (const DeviceId device : step.fold.device) peaks.push_back(all[idx(device)].use.total());
  return peaks;
}

/// What was left out of each group takes, window by window, what the last one that was simulated added.
void Predictor::extend(Run& run, const Run& shorter, const Plan& plan, const std::vector<Repeat>& repeated) {
  const Seconds before = *std::max_element(run.group_end.begin(), run.group_end.end());
  for (std::size_t g = 0; g < repeated.size(); ++g) {
    if (repeated[g].times == 0) continue;
    const double more = real(repeated[g].times);
    run.group_end[g] += more * (run.group_end[g] - shorter.group_end[g]);
    for (const DeviceId d : plan.groups[g].devices)
      run.busy[idx(d)] += more * (run.busy[idx(d)] - shorter.busy[idx(d)]);
  }
  run.step += *std::max_element(run.group_end.begin(), run.group_end.end()) - before;
}

std::optional<Prediction> Predictor::predict(i64 max_visits, const Plan& plan, bool with_memory) {
  const std::vector<Repeat> repeated =
      routing_.load->is_uniform() ? repeated_windows(plan) : std::vector<Repeat>();
  std::optional<Run> run = repeated.empty()
                               ? simulate(max_visits, plan, with_memory)
                               : simulate(max_visits, without_repeats(plan, repeated, 0), with_memory);
  if (!run) return {};
  if (!repeated.empty()) {
    const Run shorter = *simulate(max_visits, without_repeats(plan, repeated, 1), with_memory);
    const auto grows = [](Bytes more, Bytes less) { return more > kSamePeak * less; };
    if (std::equal(run->memory.begin(), run->memory.end(), shorter.memory.begin(), std::not_fn(grows)))
      extend(*run, shorter, plan, repeated);
    else if (!(run = simulate(max_visits, plan, with_memory)))
      return {};
  }
  Prediction out = prediction_of(std::move(*run), plan);
  out.from_first_windows = !repeated.empty();
  return out;
}

Prediction Predictor::prediction_of(Run run, const Plan& plan) {
  Prediction out;
  out.step = run.step;
  out.busy = std::move(run.busy);
  out.group_end = std::move(run.group_end);
  out.memory = std::move(run.memory);
  for (double& busy : out.busy) busy /= out.step;
  out.tokens_per_s = real(total_tokens(plan)) / out.step;
  return out;
}

std::optional<Prediction> Predictor::whole_within(i64 max_visits, const Plan& plan) {
  std::optional<Run> run = simulate(max_visits, plan, true);
  if (!run) return {};
  return prediction_of(std::move(*run), plan);
}

Prediction Predictor::predict(const Plan& plan) {
  return *predict_within(std::numeric_limits<i64>::max(), plan);
}

}  // namespace hetermoe
