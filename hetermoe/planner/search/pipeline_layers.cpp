#include "hetermoe/planner/search/pipeline_layers.h"

#include <algorithm>
#include <map>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/base/integer_split.h"
#include "hetermoe/plan/pipeline_tasks.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {
namespace {

/// [stage] its layers, as they were placed.
std::vector<std::vector<LayerPlacement>> layers_of_stages(const Group& group, const PipelineStages& stages) {
  std::vector<std::vector<LayerPlacement>> layers(idx(stages.size()));
  for (std::size_t s = 0; s < layers.size(); ++s) {
    const std::size_t first = idx(stages.first_layer[s]),
                      last = s + 1 < layers.size() ? idx(stages.first_layer[s + 1]) : group.layers.size();
    layers[s].assign(group.layers.begin() + static_cast<std::ptrdiff_t>(first),
                     group.layers.begin() + static_cast<std::ptrdiff_t>(last));
  }
  return layers;
}

/// Layers without experts are the first of a model, and may come to stand on other stages. False where no
/// layer of the stage says who owns experts.
bool take_owners(LayerPlacement& layer, const std::vector<LayerPlacement>& of_stage, bool is_moe) {
  if (!is_moe) layer.experts.clear();
  if (!is_moe || !layer.experts.empty()) return true;
  const auto other = std::find_if(of_stage.begin(), of_stage.end(),
                                  [](const LayerPlacement& l) { return !l.experts.empty(); });
  if (other == of_stage.end()) return false;
  layer.experts = other->experts;
  layer.experts_home = other->experts_home;
  return true;
}

bool interleave(Group& group, const ModelConfig& model, i64 chunks) {
  const PipelineStages stages = pipeline_stages(group);
  if (stages.chunks() > 1 || stages.size() < 2) return false;
  const std::vector<std::vector<LayerPlacement>> of_stage = layers_of_stages(group, stages);
  std::vector<std::vector<i64>> runs;  // [stage][chunk] layers
  for (const std::vector<LayerPlacement>& layers : of_stage) {
    const auto count = static_cast<i64>(layers.size());
    if (count < chunks) return false;
    runs.push_back(proportional_split(count, std::vector<double>(idx(chunks), 1)));
  }
  std::vector<LayerPlacement> all;
  std::vector<std::size_t> next(of_stage.size(), 0);
  for (std::size_t chunk = 0; chunk < idx(chunks); ++chunk) {
    for (std::size_t s = 0; s < of_stage.size(); ++s) {
      for (i64 i = 0; i < runs[s][chunk]; ++i) {
        LayerPlacement layer = of_stage[s][next[s]++];
        if (!take_owners(layer, of_stage[s], model.is_moe(static_cast<i64>(all.size())))) return false;
        all.push_back(std::move(layer));
      }
    }
  }
  group.layers = std::move(all);
  return true;
}

bool move_layer(Group& group, const ModelConfig& model, std::size_t from, std::size_t to) {
  const PipelineStages stages = pipeline_stages(group);
  if (stages.chunks() > 1 || std::max(from, to) >= idx(stages.size())) return false;
  const std::vector<std::vector<LayerPlacement>> of_stage = layers_of_stages(group, stages);
  if (of_stage[from].size() < 2) return false;
  // The layer of `to` beside the border says who computes and what recomputes.
  const std::size_t border = idx(stages.first_layer[std::max(from, to)]);
  const std::size_t moved = from < to ? border - 1 : border;
  LayerPlacement layer = group.layers[from < to ? border : border - 1];
  if (!take_owners(layer, of_stage[to], model.is_moe(static_cast<i64>(moved)))) return false;
  group.layers[moved] = std::move(layer);
  return true;
}

/// Equal for pipelines of which one comes from the other by moving layers: window, and of each group
/// microbatches and the first device with attention of each stage.
std::vector<i64> pipeline_kind(const Plan& plan) {
  std::vector<i64> kind = {plan.window};
  for (const Group& group : plan.groups) {
    kind.push_back(static_cast<i64>(group.microbatches.size()));
    for (const i32 first : pipeline_stages(group).first_layer)
      kind.push_back(group.layers[idx(first)].attention[0][0].device);
  }
  return kind;
}

constexpr i64 kChunks[] = {2, 3, 4};
constexpr std::size_t kBorderKinds = 8;         ///< the fastest pipeline of each
constexpr i64 kBorderBudget = 8;                ///< such a part of the whole
constexpr double kMaxBorderStepRatio = 1.15;    ///< of their steps to the best one
constexpr std::size_t kPipelineKinds = 3;       ///< of groups and stages, the fastest pipeline of each
constexpr double kMaxPipelineStepRatio = 1.06;  ///< of their steps to that of the fastest pipeline

}  // namespace

std::optional<Plan> interleaved(const Plan& plan, const ModelConfig& model, i64 chunks) {
  if (!traits_of(plan.order).has_stages || chunks < 2) return {};
  Plan out = plan;
  for (Group& group : out.groups)
    if (!interleave(group, model, chunks)) return {};
  return out;
}

namespace {

/// The pipeline before its layers were cut into runs has layers moved over its borders, as long as that makes
/// the one with runs faster.
void move_borders_of_runs(Evaluator& evaluator, const ModelConfig& model, Plan plan, i64 chunks,
                          Seconds step) {
  const std::size_t stages = stage_layers(plan.groups[0]).size();
  bool faster = true;
  while (std::exchange(faster, false)) {
    for (std::size_t left = 0; left + 1 < stages; ++left) {
      for (const bool back : {false, true}) {
        std::optional<Plan> moved =
            with_layer_moved(plan, model, back ? left + 1 : left, back ? left : left + 1);
        const std::optional<Plan> next = moved ? interleaved(*moved, model, chunks) : std::nullopt;
        const i64 index = next ? evaluator.evaluate(*next) : -1;
        if (index < 0 || evaluator.step_of(index) >= step) continue;
        step = evaluator.step_of(index), plan = *std::move(moved), faster = true;
      }
    }
  }
}

void evaluate_interleaved(Evaluator& evaluator, const ModelConfig& model, const Plan& plan) {
  for (const i64 chunks : kChunks) {
    const std::optional<Plan> next = interleaved(plan, model, chunks);
    const i64 index = next ? evaluator.evaluate(*next) : -1;
    if (index >= 0 && evaluator.step_of(index) <= kMaxPipelineStepRatio * evaluator.step_of(evaluator.best()))
      move_borders_of_runs(evaluator, model, plan, chunks, evaluator.step_of(index));
    if (!next || index >= 0) continue;
    // More windows are in flight than there is room for: layers recompute more.
    for (const Recompute recompute : {Recompute::kSelect, Recompute::kAhead, Recompute::kResend}) {
      Plan smaller = *next;
      for (Group& group : smaller.groups)
        for (LayerPlacement& layer : group.layers) layer.recompute = recompute;
      if (evaluator.evaluate(std::move(smaller)) >= 0) break;
    }
  }
}

}  // namespace

void evaluate_interleaved(Evaluator& evaluator, const ModelConfig& model) {
  std::set<std::pair<std::size_t, std::size_t>> kinds;
  Seconds most = 0;
  for (const i64 index : evaluator.by_step()) {
    if (kinds.size() == kPipelineKinds || (most > 0 && evaluator.step_of(index) > most)) return;
    if (!evaluator.is_pipeline(index)) continue;
    if (most == 0) most = kMaxPipelineStepRatio * evaluator.step_of(index);
    const Plan plan = evaluator.plan_of(index);
    if (kinds.insert({plan.groups.size(), stage_layers(plan.groups[0]).size()}).second)
      evaluate_interleaved(evaluator, model, plan);
  }
}

std::optional<Plan> with_layer_moved(const Plan& plan, const ModelConfig& model, std::size_t from,
                                     std::size_t to) {
  if (!traits_of(plan.order).has_stages) return {};
  Plan out = plan;
  for (Group& group : out.groups)
    if (!move_layer(group, model, from, to)) return {};
  return out;
}

namespace {

/// Climbs from one plan.
void move_borders(Evaluator& evaluator, const ModelConfig& model, Plan plan, Seconds step, i64 least_budget) {
  const std::size_t stages = stage_layers(plan.groups[0]).size();
  bool faster = true;
  while (std::exchange(faster, false)) {
    for (std::size_t s = 0; s + 1 < 2 * stages - 1; ++s) {  // each border one way and the other
      const std::size_t left = s / 2, from = s % 2 == 0 ? left : left + 1, to = s % 2 == 0 ? left + 1 : left;
      std::optional<Plan> next = with_layer_moved(plan, model, from, to);
      if (!next || evaluator.budget() <= least_budget) continue;
      const i64 index = evaluator.evaluate(*next);
      if (index < 0 || evaluator.step_of(index) >= step) continue;
      step = evaluator.step_of(index), plan = *std::move(next), faster = true;
    }
  }
}

}  // namespace

void evaluate_ranked(Evaluator& evaluator, const PipelineRanking& ranking, const PipelineWidth& width) {
  i64 left = width.all;
  std::map<std::pair<i64, std::vector<std::size_t>>, i64> alike;
  for (const PipelineShape& shape : ranking.shapes) {
    const bool may_win = evaluator.best() < 0 ||
                         shape.estimate < width.max_estimate_ratio * evaluator.step_of(evaluator.best());
    if (left == 0 || evaluator.budget() <= 0 || !may_win) break;
    std::vector<std::size_t> classes;  // [stage]
    for (const StageDevices& stage : shape.stages) classes.push_back(stage.cls);
    i64& count = alike[{shape.order.groups, classes}];
    if (count >= width.alike) continue;
    if (evaluator.evaluate(make_pipeline(evaluator.rates(), shape)) >= 0) --left, ++count;
  }
}

void evaluate_borders(Evaluator& evaluator, const ModelConfig& model) {
  if (evaluator.empty()) return;
  std::set<std::vector<i64>> kinds;
  const i64 least_budget = std::max<i64>(0, evaluator.budget() - evaluator.whole_budget() / kBorderBudget);
  const Seconds most = kMaxBorderStepRatio * evaluator.step_of(evaluator.best());
  for (const i64 index : evaluator.by_step()) {
    if (kinds.size() == kBorderKinds || evaluator.step_of(index) > most) return;
    if (!evaluator.is_pipeline(index)) continue;
    const Plan plan = evaluator.plan_of(index);
    if (kinds.insert(pipeline_kind(plan)).second)
      move_borders(evaluator, model, plan, evaluator.step_of(index), least_budget);
  }
}

}  // namespace hetermoe
