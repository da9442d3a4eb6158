#pragma once
#include "hetermoe/planner/search/evaluator.h"

namespace hetermoe {

/// Tries the fastest plans with rows that go once to each node (Plan::row_nodes), where owners share nodes.
/// They take nothing of the budget.
void evaluate_node_rows(Evaluator& evaluator, const Cluster& cluster);

}  // namespace hetermoe
