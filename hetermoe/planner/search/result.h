#pragma once
#include <map>
#include <string>
#include <vector>

#include "hetermoe/planner/search/evaluator.h"

namespace hetermoe {

/// Plans that are reported even when they lose, as indices of the evaluator, -1 = none.
struct NamedPlans {
  i64 ep = -1, single = -1;
  std::map<std::string, std::string> unfit;  ///< strategy -> what rules it out
};

/// The evaluated plans that a result shows, confirmed, the fastest first; then those that do not fit.
std::vector<Candidate> reported_candidates(const PlanRequest& request, Evaluator& evaluator,
                                           const NamedPlans& named_plans);

}  // namespace hetermoe
