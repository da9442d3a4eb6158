#pragma once
#include "hetermoe/planner/search/evaluator.h"

namespace hetermoe {

/// Tries the fastest plans that have teams with heads in parts (PlanChoices::head_parts), where exchanges of
/// heads have nothing else to hide behind. They take nothing of the budget.
void evaluate_head_parts(Evaluator& evaluator);

}  // namespace hetermoe
