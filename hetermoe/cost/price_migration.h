#pragma once
#include "hetermoe/cost/price.h"
#include "hetermoe/schedule/migration_schedule.h"

namespace hetermoe {

/// What every op of a migration costs, by the same model as the transfers of a step.
OpCosts price(const Migration& migration, const Cluster& cluster, const CostModel& cost);

}  // namespace hetermoe
