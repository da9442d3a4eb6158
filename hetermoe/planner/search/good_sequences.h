#pragma once
#include <optional>

#include "hetermoe/planner/planner.h"

namespace hetermoe {

/// A plan with every hole filled: all microbatches of groups that are alike are as large as their largest one
/// (or, downwards, as their smallest), and devices whose shares differ by one sequence have equal ones.
/// Nothing where the plan is so already.
std::optional<Plan> evened(const Plan& plan, const Cluster& cluster, bool upwards);

/// A number of sequences that divides well and is at most 2 % above; `sequences` itself where that does.
i64 rounded_up(i64 sequences);

/// The plan without so many of its sequences, which its last microbatches lose. Nothing where it has too few.
std::optional<Plan> with_fewer(const Plan& plan, i64 sequences);

/// The prediction of a variant of the best plan, from as many layers. Nothing when it takes more op-device
/// visits.
std::optional<Prediction> predict_like(const PlanRequest& request, const Candidate& best, Plan plan,
                                       i64 max_visits);

/// The number of sequences near that of the best plan which the same arrangement runs at least 2 % faster for
/// each; nothing where there is none. Simulates two plans at most, none that takes more than `max_visits`
/// op-device visits.
std::optional<GoodSequences> good_sequences(const PlanRequest& request, const Candidate& best,
                                            i64 max_visits);

}  // namespace hetermoe
