#pragma once
#include <optional>

#include "hetermoe/model/model_config.h"
#include "hetermoe/plan/plan.h"
#include "hetermoe/planner/search/evaluator.h"

namespace hetermoe {

/// The pipeline with each stage's layers in `chunks` runs (plan/pipeline_tasks). Layer for layer a stage's
/// devices do what they did, so that they need what they needed, but for activations of more windows. None
/// where a stage has fewer layers than chunks, or the plan is no pipeline or an interleaved one.
std::optional<Plan> interleaved(const Plan& plan, const ModelConfig& model, i64 chunks);
/// Of the best pipeline so far.
void evaluate_interleaved(Evaluator& evaluator, const ModelConfig& model);

}  // namespace hetermoe
