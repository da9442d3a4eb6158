#pragma once
#include "hetermoe/report/html.h"

// Questions on a strategy that both the data of the page and its parts ask.
namespace hetermoe {

bool has_timeline(const StrategyReport& strategy);
/// Its executed times are those of a processor in the place of GPUs: no prediction is compared with them.
bool is_elsewhere(const StrategyReport& strategy);
/// The time that is given, else that of the timeline; 0 = there is none.
Seconds step_of(Seconds given, const std::optional<Timeline>& timeline);

/// By which times strategies are compared: one kind for all of them.
enum class Basis {
  kExecuted,
  kReplayed,   ///< a run lost its pace or has a processor's times, but each was simulated with what it routed
  kSimulated,  ///< there is nothing better, or nothing was executed
};
Basis basis_of(const std::vector<StrategyReport>& strategies);

}  // namespace hetermoe
