#include <gtest/gtest.h>

#include "hetermoe/planner/planner.h"
#include "tests/support/case_count.h"
#include "tests/support/sanitized.h"

// Requests whose plans were far too slow once, each with what its plan has to reach. Before and after:
// docs/results/advice_2026-11-26.md.
namespace hetermoe {
namespace {

/// Nodes of so many devices of a type each.
struct Nodes {
  std::string type;
  i64 nodes = 1, each = 8;
  double network_gbit_s = 3200, local_gb_s = 450;
};

Cluster cluster_of(const std::vector<Nodes>& all) {
  Cluster cluster;
  cluster.name = "by hand";
  for (const Nodes& nodes : all) {
    std::size_t type = 0;
    while (type < cluster.types.size() && cluster.types[type].name != nodes.type) ++type;
    if (type == cluster.types.size()) cluster.types.push_back(catalogue_device(nodes.type, "test"));
    for (i64 n = 0; n < nodes.nodes; ++n) {
      cluster.nodes.push_back({fmt::format("n{}", cluster.nodes.size()), nodes.network_gbit_s / 8 * 1e9, 1e-5,
                               nodes.local_gb_s * 1e9, 5e-6});
      for (i64 d = 0; d < nodes.each; ++d)
        cluster.devices.push_back({static_cast<i32>(type), static_cast<NodeId>(cluster.nodes.size()) - 1, 1});
    }
  }
  return cluster;
}

struct Ask {
  std::string model;
  std::vector<Nodes> nodes;
  i64 seq_len = 4096, sequences = 64;
  Dtype dtype = Dtype::kBf16;
  std::vector<DeviceId> idle = {};
};

double rate_of(const Ask& ask) {
  PlanRequest request;
  request.model = load_model(ask.model);
  request.cluster = cluster_of(ask.nodes);
  request.seq_len = ask.seq_len, request.sequences = ask.sequences;
  request.dtype = ask.dtype;
  request.limits.idle = ask.idle;
  const PlanResult result = find_plan(request);
  EXPECT_TRUE(result.feasible()) << result.infeasible;
  return result.feasible() ? result.best().prediction.tokens_per_s : 0;
}

const std::vector<Nodes> kThreeFiveSeven = {
    {"H100", 1, 3, 400, 20}, {"A100-80", 1, 5, 400, 20}, {"L4", 1, 7, 100, 20}};
const std::vector<Nodes> kFourEight = {{"H100", 1, 4, 400, 450}, {"A100-40", 1, 8, 200, 300}};

TEST(KnownRequests, ReachWhatWasFoundByHand) {
  if (testing::kSanitized) GTEST_SKIP() << "whole searches take long under a sanitizer";
  const std::vector<std::tuple<std::string, Ask, double>> rows = {
      {"8 H100, a model that nearly fills them", {"qwen3-30b-a3b", {{"H100"}}, 2048, 64}, 72'000},
      {"the same, 512 sequences", {"qwen3-30b-a3b", {{"H100"}}, 2048, 512}, 80'000},
      {"8 A100", {"qwen3-30b-a3b", {{"A100-80", 1, 8, 100, 300}}, 2048, 64}, 37'000},
      {"15 devices of 3 types", {"qwen3-30b-a3b", kThreeFiveSeven, 2048, 64, Dtype::kFp16}, 20'600},
      {"4 H100 + 8 A100-40", {"deepseek-v2-lite", kFourEight, 4096, 256}, 135'000},
      {"the same, a larger model", {"qwen3-30b-a3b", kFourEight, 4096, 256}, 63'000},
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [what, ask, least] = rows[i];
    if (i % 2 == 1 && !testing::every_case()) continue;
    EXPECT_GE(rate_of(ask), least) << what;
  }
}

TEST(KnownRequests, NothingIsLostByATypeMore) {
  if (testing::kSanitized) GTEST_SKIP() << "whole searches take long under a sanitizer";
  Ask two{"qwen3-30b-a3b", {{"H100", 1, 8}, {"A100-80", 1, 8, 1600, 300}}, 2048, 128}, three = two, idle;
  three.nodes.push_back({"T4", 1, 8, 100, 10});
  idle = three;
  for (DeviceId d = 16; d < 24; ++d) idle.idle.push_back(d);
  const double before = rate_of(two);
  EXPECT_GE(rate_of(three), 0.99 * before);
  EXPECT_EQ(rate_of(idle), before);
}

TEST(KnownRequests, ASlowNodeIsLeftOutWhicheverItsNumber) {
  if (testing::kSanitized) GTEST_SKIP() << "whole searches take long under a sanitizer";
  const Nodes fast{"H100", 2, 8}, slow{"H100", 1, 8, 10}, slow_inside{"H100", 1, 8, 3200, 5};
  const auto rate = [](const std::vector<Nodes>& nodes) {
    return rate_of({"qwen3-30b-a3b", nodes, 4096, 128});
  };
  const double without = rate({fast});
  EXPECT_GE(rate({slow, fast}), 0.99 * without);
  if (!testing::every_case()) return;
  EXPECT_GE(rate({fast, slow}), 0.99 * without);
  EXPECT_GE(rate({slow_inside, fast}), 0.99 * without);
  EXPECT_GE(rate({fast, slow_inside}), 0.99 * without);
}

TEST(KnownRequests, OneDeviceOrOneSequenceLessIsLittleLess) {
  if (testing::kSanitized || !testing::every_case())
    GTEST_SKIP() << "whole searches take long under a sanitizer";
  const Ask whole{"mixtral-8x7b", {{"H100", 2, 8}}, 2048, 128};
  Ask fewer = whole, less = whole;
  fewer.idle = {15};
  less.sequences = 125;
  const double rate = rate_of(whole);
  EXPECT_GE(rate_of(less), 0.96 * rate);
  EXPECT_GE(rate_of(fewer), 0.75 * rate);
}

}  // namespace
}  // namespace hetermoe
