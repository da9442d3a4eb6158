#include <gtest/gtest.h>

#include "tests/support/random_request.h"

// More devices, memory or bandwidth never make the plan slower, over random small clusters.
namespace hetermoe {
namespace {

constexpr double kTolerance = 0.005;

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

TEST(Monotone, MoreIsNeverSlower) {
  for (u64 seed = 1; seed <= 40; ++seed) {
    const PlanRequest request = testing::random_request(seed, {.types = 2, .nodes = 2});
    const double before = rate_of(request);
    if (before == 0) continue;
    for (std::size_t t = 0; t < request.cluster.types.size(); ++t) {
      EXPECT_GE(rate_of(with_device(request, static_cast<i32>(t))), (1 - kTolerance) * before)
          << "seed " << seed << ", one more " << request.cluster.types[t].name;
    }
    EXPECT_GE(rate_of(with_network(request)), (1 - kTolerance) * before) << "seed " << seed << ", network";
    EXPECT_GE(rate_of(with_memory(request)), (1 - kTolerance) * before) << "seed " << seed << ", memory";
  }
}

}  // namespace
}  // namespace hetermoe
