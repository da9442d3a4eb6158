#pragma once
#include "tests/support/tally_plan.h"

namespace hetermoe::testing {

/// Turns guests on, for counts that are told. False where a plan may not have them.
inline bool use_guests(Plan& plan, const ModelConfig& model, i64 slots = 2, i64 depth = 2) {
  if (!use_tally(plan, model)) return false;
  plan.guest_slots = slots;
  plan.guest_depth = depth;
  return true;
}

}  // namespace hetermoe::testing
