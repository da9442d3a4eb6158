#include <algorithm>

#include "hetermoe/planner/search/evaluator.h"
#include "hetermoe/planner/search/pipeline_shapes.h"
#include "hetermoe/planner/search/search.h"
#include "hetermoe/planner/search/sketches.h"
#include "hetermoe/planner/search/team_plans.h"

namespace hetermoe {
namespace {

constexpr std::size_t kTries = 8;  ///< of the most promising of a kind

/// Simulates them one after another until one has room.
template <class All, class Make>
void try_first(Evaluator& evaluator, const All& all, Make make) {
  for (std::size_t i = 0; i < std::min(all.size(), kTries) && evaluator.empty(); ++i)
    evaluator.evaluate(make(all[i]));
}

}  // namespace

std::optional<Plan> search_any_plan(const PlanRequest& request) {
  Evaluator evaluator(request);
  const Rates& rates = evaluator.rates();
  evaluator.forget_budget();
  try_first(evaluator, rank_pipelines(rates, kNever).shapes,
            [&](const PipelineShape& shape) { return make_pipeline(rates, shape); });
  if (evaluator.empty())
    try_first(evaluator, rank_sketches(rates).sketches,
              [](const RankedSketch& ranked) { return ranked.sketch; });
  if (evaluator.empty()) evaluate_teams(evaluator);
  if (evaluator.empty()) return {};
  return evaluator.plan_of(evaluator.best());
}

}  // namespace hetermoe
