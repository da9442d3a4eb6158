#include <gtest/gtest.h>

#include "tests/support/random_request.h"
#include "tests/support/sanitized.h"

// More devices, memory or bandwidth hardly ever make the plan slower, over random small clusters.
namespace hetermoe {
namespace {

constexpr double kTolerance = 0.005;  ///< of what counts as slower
/// Of the throughput before; a sanitizer sees a short search, which is less even.
constexpr double kLeast = testing::kSanitized ? 0.9 : 0.99;

double rate_of(const PlanRequest& request) {
  const PlanResult result = find_plan(request);
  return result.feasible() ? result.best().prediction.tokens_per_s : 0;
}

/// One more device of a type, on a node of its own that is like that of the first one.
PlanRequest with_device(PlanRequest request, i32 type) {
  Cluster& cluster = request.cluster;
  Device device = cluster.devices[static_cast<std::size_t>(cluster.devices_of_type(type).front())];
  cluster.nodes.push_back(cluster.nodes[static_cast<std::size_t>(device.node)]);
  device.node = static_cast<NodeId>(cluster.nodes.size()) - 1;
  cluster.devices.push_back(device);
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
  for (u64 seed = 1; seed <= static_cast<u64>(testing::cases(40)); ++seed) {
    PlanRequest request = testing::random_request(seed, {.types = 2, .nodes = 2});
    request.limits.simulation_budget = testing::kSearchBudget;
    const double before = rate_of(request);
    if (before == 0) continue;
    const auto compare = [&](const PlanRequest& more, const std::string& what) {
      const double share = rate_of(more) / before;
      ++cases;
      slower += share < 1 - kTolerance ? 1 : 0;
      EXPECT_GE(share, kLeast) << "seed " << seed << ", more of " << what;
    };
    for (std::size_t t = 0; t < request.cluster.types.size(); ++t)
      compare(with_device(request, static_cast<i32>(t)), request.cluster.types[t].name);
    compare(with_network(request), "network");
    compare(with_memory(request), "memory");
  }
  EXPECT_GT(cases, testing::cases(100));
  EXPECT_LE(slower, 1) << "of " << cases;
  RecordProperty("slower", static_cast<int>(slower));
}

}  // namespace
}  // namespace hetermoe
