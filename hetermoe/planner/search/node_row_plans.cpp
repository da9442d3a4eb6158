#include "hetermoe/planner/search/node_row_plans.h"

#include "hetermoe/plan/row_nodes.h"

namespace hetermoe {
namespace {

constexpr i64 kNodeRowPlans = 8;
constexpr double kMaxNodeRowStepRatio = 1.6;  ///< of their steps without it to the best one

}  // namespace

void evaluate_node_rows(Evaluator& evaluator, const Cluster& cluster) {
  if (evaluator.empty()) return;
  const i64 budget = evaluator.budget();
  const Seconds most = kMaxNodeRowStepRatio * evaluator.step_of(evaluator.best());
  i64 left = kNodeRowPlans;
  for (const i64 index : evaluator.by_step()) {
    if (left == 0 || evaluator.step_of(index) > most) break;
    Plan plan = evaluator.plan_of(index);
    if (!may_pass_rows_on(plan, cluster)) continue;
    plan.row_nodes = nodes_of_devices(cluster);
    if (row_node_faults(plan, cluster).empty() && evaluator.evaluate(std::move(plan)) >= 0) --left;
  }
  evaluator.add_budget(budget - evaluator.budget());
}

}  // namespace hetermoe
