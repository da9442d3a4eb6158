#pragma once
#include "hetermoe/data/sampler.h"
#include "hetermoe/exec/step.h"

namespace hetermoe {

/// Input of a step from a batch. Throws InputError when no token of it has a target.
StepInput input_of(const Batch& batch);

/// Brings the sequences to other places: [places] which of them is at each.
void reorder(StepInput& input, const std::vector<i64>& order);

/// Tells the tokens and targets of steps apart.
u64 hash_of(const StepInput& input);

}  // namespace hetermoe
