#include "hetermoe/planner/search/node_row_plans.h"

#include <map>

#include "hetermoe/plan/row_nodes.h"

namespace hetermoe {
namespace {

constexpr i64 kNodeRowPlans = 12;
constexpr i64 kNodeRowVariants = 2;           ///< of them on the same devices with as many microbatches
constexpr double kMaxNodeRowStepRatio = 1.6;  ///< of their steps without it to the best one

/// Plans that differ in owners of experts and in recomputation have the same.
std::vector<i64> arrangement_of(const Plan& plan) {
  std::vector<i64> kind;
  for (const Group& group : plan.groups) {
    kind.push_back(static_cast<i64>(group.microbatches.size()));
    kind.insert(kind.end(), group.devices.begin(), group.devices.end());
  }
  return kind;
}

}  // namespace

void evaluate_node_rows(Evaluator& evaluator, const Cluster& cluster) {
  if (evaluator.empty()) return;
  const i64 budget = evaluator.budget();
  const Seconds most = kMaxNodeRowStepRatio * evaluator.step_of(evaluator.best());
  i64 left = kNodeRowPlans;
  std::map<std::vector<i64>, i64> kinds;
  for (const i64 index : evaluator.by_step()) {
    if (left == 0 || evaluator.step_of(index) > most) break;
    Plan straight = evaluator.plan_of(index);
    i64& count = kinds[arrangement_of(straight)];
    if (count >= kNodeRowVariants) continue;
    std::optional<Plan> plan = with_row_nodes(std::move(straight), cluster);
    if (plan && evaluator.evaluate(std::move(*plan)) >= 0) --left, ++count;
  }
  evaluator.add_budget(budget - evaluator.budget());
}

}  // namespace hetermoe
