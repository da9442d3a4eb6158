#include <gtest/gtest.h>

#include "tests/support/case_count.h"
#include "tests/support/more_requests.h"
#include "tests/support/sanitized.h"

// More devices, memory or bandwidth hardly ever make the plan slower, over random small clusters.
namespace hetermoe {
namespace {

constexpr double kTolerance = 0.005;  ///< of what counts as slower
/// Of the throughput before; a sanitizer sees a short search, which is less even.
constexpr double kLeast = testing::kSanitized ? 0.9 : 0.99;

/// One more device of a type, on a node of its own that is like that of the first one.
PlanRequest with_device(PlanRequest request, i32 type) {
  testing::add_device(request.cluster, type);
  return request;
}

PlanRequest with_network(PlanRequest request) {
  for (Node& node : request.cluster.nodes) node.network *= 1.5;
  return request;
}

PlanRequest with_memory(PlanRequest request) {
  for (DeviceType& type : request.cluster.types) type.memory_gib *= 1.25;
  return request;
}

/// Plans are searched, not proved: with more to choose from the search may take another way. What holds is
/// how often and how far.
TEST(Monotone, MoreIsSeldomSlowerAndNeverByMuch) {
  i64 cases = 0, slower = 0;
  for (u64 seed = 1; seed <= static_cast<u64>(testing::cases(testing::case_count(20, 40))); ++seed) {
    PlanRequest request = testing::random_request(seed, {.types = 2, .nodes = 2});
    request.limits.simulation_budget = testing::kSearchBudget;
    const double before = testing::rate_of(request);
    if (before == 0) continue;
    const auto compare = [&](const PlanRequest& more, const std::string& what) {
      const double share = testing::rate_of(more) / before;
      ++cases;
      slower += share < 1 - kTolerance ? 1 : 0;
      EXPECT_GE(share, kLeast) << "seed " << seed << ", more of " << what;
    };
    for (std::size_t t = 0; t < request.cluster.types.size(); ++t)
      compare(with_device(request, static_cast<i32>(t)), request.cluster.types[t].name);
    compare(with_network(request), "network");
    compare(with_memory(request), "memory");
  }
  EXPECT_GT(cases, testing::cases(testing::case_count(50, 100)));
  EXPECT_LE(slower, 1) << "of " << cases;
  RecordProperty("slower", static_cast<int>(slower));
}

/// Once lost by more devices: a set of types, a device less of a node, an expert on a device of another type.
TEST(Monotone, PlansOfPartsAreFoundInTheWhole) {
  const std::vector<std::pair<u64, std::string>> cases = {{1, "a device more of H100"},
                                                          {5, "a device more on the first node"},
                                                          {16, "another type"},
                                                          {23, "another type"},
                                                          {1000, "a device more of A40"}};
  for (const auto& [seed, what] : cases) {
    PlanRequest request = testing::uneven_request(seed);
    request.limits.simulation_budget = testing::kSearchBudget;
    for (const testing::More& more : testing::more_requests(request)) {
      if (more.what != what) continue;
      EXPECT_GE(testing::rate_of(more.request) / testing::rate_of(request), kLeast)
          << seed << " with " << what;
    }
  }
}

}  // namespace
}  // namespace hetermoe
