#include <gtest/gtest.h>

#include "tests/support/more_requests.h"
#include "tests/support/sanitized.h"

// More devices, memory, bandwidth or types hardly ever make the plan slower. bench/monotone_bench.cpp looks at
// many more requests and prints how often and how far they do.
namespace hetermoe {
namespace {

/// Of the throughput before; a sanitizer sees a short search, which is less even.
constexpr double kLeast = testing::kSanitized ? 0.9 : 0.99;

/// Plans are searched, not proved: with more to choose from the search may take another way.
TEST(Monotone, MoreIsNotSlowerByMuch) {
  i64 cases = 0;
  for (u64 seed = 1; seed <= static_cast<u64>(testing::cases(8)); ++seed) {
    PlanRequest request = testing::uneven_request(seed);
    if (testing::kSanitized) request.limits.simulation_budget = testing::kSearchBudget;
    const double before = testing::rate_of(request);
    if (before == 0) continue;
    for (const testing::More& more : testing::more_requests(request)) {
      ++cases;
      EXPECT_GE(testing::rate_of(more.request), kLeast * before) << "seed " << seed << ", " << more.what;
    }
  }
  EXPECT_GT(cases, testing::cases(40));
}

}  // namespace
}  // namespace hetermoe
