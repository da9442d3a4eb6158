#pragma once
#include <string>

#include "hetermoe/cost/cost_model.h"
#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// A team whose exchanges make it slower at an attention part than its fastest device is alone, in words with
/// both times; empty = no team of the plan is. By the cost model, forward, without what else its links carry.
std::string slow_team_note(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                           const CostModel& cost);

}  // namespace hetermoe
