#pragma once
#include "hetermoe/planner/search/evaluator.h"

namespace hetermoe {

/// Tries plans in which teams share sequences, where there are fewer sequences than devices or one takes much
/// of the memory of a device: in groups and in stages of pipelines; on the classes that are best at attention
/// or on more of them, the others without a part or with the experts; with the optimizer, or weights too,
/// divided where the request allows it. They take nothing of the budget.
void evaluate_teams(Evaluator& evaluator);

}  // namespace hetermoe
