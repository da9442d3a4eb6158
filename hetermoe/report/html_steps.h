#pragma once
#include "hetermoe/report/html.h"

// What the data of the page and its parts both ask of a strategy.
namespace hetermoe {

bool has_timeline(const StrategyReport& strategy);
/// Its executed times are those of a processor in the place of GPUs: no prediction is compared with them.
bool is_elsewhere(const StrategyReport& strategy);
/// The time that is given, else that of the timeline; 0 = there is none.
Seconds step_of(Seconds given, const std::optional<Timeline>& timeline);

}  // namespace hetermoe
