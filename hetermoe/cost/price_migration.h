#pragma once
#include "hetermoe/cost/price.h"
#include "hetermoe/schedule/migration_schedule.h"

namespace hetermoe {

/// The cost of every op of a migration, by the same model as the transfers of a step.
OpCosts price(const Migration& migration, const Cluster& cluster, const CostModel& cost);

}  // namespace hetermoe
