#pragma once
#include <optional>

#include "hetermoe/model/model_config.h"
#include "hetermoe/plan/plan.h"
#include "hetermoe/planner/search/evaluator.h"
#include "hetermoe/planner/search/pipeline_shapes.h"

namespace hetermoe {

/// Which pipelines are simulated.
struct PipelineWidth {
  i64 all, alike;             ///< at most; of the same classes, stage by stage, in as many groups
  double max_estimate_ratio;  ///< estimate over the best step
};
inline constexpr PipelineWidth kPipelines = {.all = 16, .alike = 3, .max_estimate_ratio = 1.1};
/// Of few devices, where simulations are cheap and stages have short steps that the estimate misjudges.
inline constexpr PipelineWidth kFewDevicesPipelines = {.all = 64, .alike = 6, .max_estimate_ratio = 1.4};

/// Simulates those of a ranking that may win.
void evaluate_ranked(Evaluator& evaluator, const PipelineRanking& ranking, const PipelineWidth& width);

/// The pipeline with each stage's layers in `chunks` runs (plan/pipeline_tasks). Layer for layer a stage's
/// devices do what they did, so that they need what they needed, but for activations of more windows. None
/// where a stage has fewer layers than chunks, or the plan is no pipeline or an interleaved one.
std::optional<Plan> interleaved(const Plan& plan, const ModelConfig& model, i64 chunks);
/// Tries interleaved versions of the best pipelines so far.
void evaluate_interleaved(Evaluator& evaluator, const ModelConfig& model);

/// The pipeline with a layer more on stage `to`, one less on stage `from` beside it, in all groups. None
/// where a group has no such stages, `from` has a single layer, or layers are in several runs.
std::optional<Plan> with_layer_moved(const Plan& plan, const ModelConfig& model, std::size_t from,
                                     std::size_t to);
/// Moves single layers of the best pipelines that differ in stages to the stage before or after, as long as
/// that is faster. A cut of layers by load does not show where the step waits for its first and its last
/// microbatches.
void evaluate_borders(Evaluator& evaluator, const ModelConfig& model);

}  // namespace hetermoe
