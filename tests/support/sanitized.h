#pragma once
#include "hetermoe/base/types.h"

namespace hetermoe::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Random cases of a test: a sanitizer, which takes 10 to 30 times as long for each, sees a tenth of them.
inline constexpr i64 cases(i64 all) { return kSanitized ? (all + 9) / 10 : all; }

/// Simulations of a planner's request, likewise; 0 = the default.
inline constexpr i64 kSearchBudget = kSanitized ? 50'000 : 0;

}  // namespace hetermoe::testing
