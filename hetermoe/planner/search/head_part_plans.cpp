#include "hetermoe/planner/search/head_part_plans.h"

#include <array>

namespace hetermoe {
namespace {

constexpr i64 kHeadPartPlans = 3;
constexpr double kMaxHeadPartStepRatio = 1.4;  ///< of their steps in one part to the best one
constexpr std::array<i32, 3> kHeadParts = {2, 4, 8};

}  // namespace

void evaluate_head_parts(Evaluator& evaluator) {
  if (evaluator.empty()) return;
  const std::pair<i64, i64> before = evaluator.budgets();
  const Seconds most = kMaxHeadPartStepRatio * evaluator.step_of(evaluator.best());
  i64 left = kHeadPartPlans;
  for (const i64 index : evaluator.by_step()) {
    if (left == 0 || evaluator.step_of(index) > most) break;
    Plan plan = evaluator.plan_of(index);
    if (!has_teams(plan)) continue;
    --left;
    Seconds step = evaluator.step_of(index);
    for (const i32 parts : kHeadParts) {
      plan.head_parts = parts;
      const i64 cut = evaluator.evaluate_settled(plan);
      if (cut < 0 || evaluator.step_of(cut) >= step) break;
      step = evaluator.step_of(cut);
    }
  }
  evaluator.give_back(before);
}

}  // namespace hetermoe
