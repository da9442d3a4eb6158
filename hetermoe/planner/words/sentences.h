#pragma once
#include <string>
#include <vector>

#include "hetermoe/planner/planner.h"

// The sentences of a result. A sentence is printed exactly when its predicate holds; predicates are pure
// functions of a result.
namespace hetermoe {

struct Sentence {
  const char* name;
  bool (*holds)(const PlanResult&);
  std::vector<std::string> (*lines)(const PlanResult&);  ///< to be called when it holds
};
/// In the order in which they are printed. A new sentence is a row.
const std::vector<Sentence>& sentences();

/// A type is busy, and can set the pace, from this share of the step on.
inline constexpr double kBusy = 0.8;
/// A plan below this share of its devices' peak is far from what they can do.
inline constexpr double kFarFromPeak = 0.05;
/// Memory is full when the fullest device of a type has less than this share of its limit left.
inline constexpr double kFull = 0.05;

bool leaves_devices_out(const Candidate& candidate);
/// The used type that is busiest; null = no device is used.
const TypeUse* busiest(const Candidate& candidate);
/// The fastest feasible plan that uses a type besides the newest; null = none was simulated.
const Candidate* best_with_others(const PlanResult& result);
/// The fastest feasible plan of all devices; null = none was simulated.
const Candidate* best_of_all_devices(const PlanResult& result);
/// The fastest feasible plan of the newest type alone; null = none was simulated.
const Candidate* best_newer_only(const PlanResult& result);

/// "12 %".
std::string percent(double share);

}  // namespace hetermoe
