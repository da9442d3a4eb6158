#include <gtest/gtest.h>

#include <ostream>

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
  std::vector<Nodes> nodes;  ///< none = the cluster o1
  i64 seq_len = 4096, sequences = 64;
  Dtype dtype = Dtype::kBf16;
  std::vector<DeviceId> idle = {};
};

double rate_of(const Ask& ask) {
  PlanRequest request;
  request.model = load_model(ask.model);
  request.cluster = ask.nodes.empty() ? load_cluster("o1") : cluster_of(ask.nodes);
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

const Nodes kSlow = {"H100", 1, 8, 10}, kA100 = {"A100-80", 1, 8, 100, 300};

/// A row of the table that bench/advice.py prints.
struct AdviceRow {
  std::string what;
  Ask ask;
  double tokens_per_s;  ///< of the table in docs/results/advice_2026-11-26.md
  bool quick = false;   ///< planned in about 2 s of CPU time
};

std::vector<AdviceRow> advice_rows() {
  const std::string qwen = "qwen3-30b-a3b", mixtral = "mixtral-8x7b";
  const Dtype fp16 = Dtype::kFp16, bf16 = Dtype::kBf16;
  return {
      {"H100x8", {qwen, {{"H100"}}, 2048, 64}, 88'949, true},
      {"H100x8MoreSequences", {qwen, {{"H100"}}, 2048, 512}, 91'956, true},
      {"A100x8", {qwen, {kA100}, 2048, 64}, 39'395, true},
      {"ThreeTypes", {qwen, kThreeFiveSeven, 2048, 64, fp16}, 34'440, true},
      {"H100x4A100x8", {qwen, kFourEight, 4096, 256}, 65'172, true},
      {"H100x4A100x8Smaller", {"deepseek-v2-lite", kFourEight, 4096, 256}, 135'471, true},
      {"A40x6V100x6", {"d1", {}, 8192, 48, fp16}, 260'259, true},
      {"A40x6V100x6Short", {"d1", {}, 4096, 96, fp16}, 299'762, true},
      {"ThreeTypesOf32",
       {mixtral, {{"H100", 4}, {"A100-80", 4, 8, 1600, 300}, {"T4", 4, 8, 100, 10}}, 4096, 1024, fp16},
       269'146},
      {"SlowNodeFirst", {qwen, {kSlow, {"H100", 3}}, 4096, 384}, 283'070},
      {"SlowNodeLast", {qwen, {{"H100", 3}, kSlow}, 4096, 384}, 283'070},
      {"ThreeGoodNodes", {qwen, {{"H100", 3}}, 4096, 384}, 283'070, true},
      {"H100x64", {mixtral, {{"H100", 8}}, 4096, 1024}, 403'781},
      {"H100x64OneIdle", {mixtral, {{"H100", 8}}, 4096, 1024, bf16, {63}}, 342'540},
      {"H100x63", {qwen, {{"H100", 7}, {"H100", 1, 7}}, 4096, 1024}, 639'637},
      {"H100x64OddNumber", {mixtral, {{"H100", 8}}, 2048, 509}, 385'398},
      {"H100x64EvenNumber", {mixtral, {{"H100", 8}}, 2048, 512}, 385'454},
      {"H100x128A100x128", {qwen, {{"H100", 16}, {"A100-80", 16, 8, 1600, 300}}, 4096, 2048}, 2'037'827},
      {"H100x2048", {qwen, {{"H100", 256}}, 2048, 4096}, 11'076'570},
      {"H100x2048Dense", {"llama-3.1-8b", {{"H100", 256}}, 2048, 4096}, 9'005'308},
      {"H100x10000", {qwen, {{"H100", 1250}}, 2048, 4096}, 14'397'968},
      {"H100x10000FewerSequences", {qwen, {{"H100", 1250}}, 2048, 4000}, 14'108'118},
  };
}

void PrintTo(const AdviceRow& row, std::ostream* out) { *out << row.what; }

class AdviceTable : public ::testing::TestWithParam<AdviceRow> {};

TEST_P(AdviceTable, RowIsReached) {
  if (testing::kSanitized) GTEST_SKIP() << "whole searches take long under a sanitizer";
  const AdviceRow& row = GetParam();
  if (!row.quick && !testing::every_case()) GTEST_SKIP() << "more than 2 s of CPU time";
  EXPECT_GE(rate_of(row.ask), 0.98 * row.tokens_per_s);
}
INSTANTIATE_TEST_SUITE_P(Rows, AdviceTable, ::testing::ValuesIn(advice_rows()),
                         [](const auto& info) { return info.param.what; });

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
