#include <gtest/gtest.h>

#include <algorithm>

#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/placement/team.h"
#include "hetermoe/planner/planner.h"
#include "hetermoe/planner/strategies/compare.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "tests/support/error_of.h"
#include "tests/support/nodes_of_eight.h"

namespace hetermoe {
namespace {

StrategyRequest request_for(i64 sequences, i64 microbatches, std::vector<i64> team) {
  StrategyRequest request;
  request.seq_len = 16;
  request.sequences = sequences, request.microbatches = microbatches;
  request.team = std::move(team);
  return request;
}

/// [device] "team sequences tokens heads".
std::vector<std::string> parts_of(const ShareRow& row) {
  std::vector<std::string> out;
  for (const Share& share : row)
    out.push_back(fmt::format("{} {} {} {}", share.team, share.sequences, share.tokens, share.heads));
  return out;
}

using Parts = std::vector<std::string>;

TEST(TeamRows, AreSharedByWeights) {
  const ModelConfig model = load_model("llama-3.1-8b");  // 32 query heads, 8 of keys and values
  const Cluster cluster = testing::nodes_of_eight({{"H100", 8}});
  const auto row = [&](const StrategyRequest& request) {
    return find_strategy("sp-ep").make(model, cluster, request).groups[0].layers[0].attention[0];
  };
  StrategyRequest request = request_for(2, 1, {});
  request.attention = {0, 1, 2, 3};
  // As many teams as a microbatch has sequences.
  EXPECT_EQ(parts_of(row(request)), (Parts{"0 1 8 16", "0 1 8 16", "1 1 8 16", "1 1 8 16"}));
  request.team = {1, 3};
  EXPECT_EQ(parts_of(row(request)), (Parts{"0 1 16 32", "1 1 6 12", "1 1 5 12", "1 1 5 8"}));
  request.team = {4};
  request.attention_weights = {3, 3, 1, 1}, request.head_weights = {1, 1, 0, 0};
  EXPECT_EQ(parts_of(row(request)), (Parts{"0 2 12 16", "0 2 12 16", "0 2 4 0", "0 2 4 0"}));
  // More devices than heads of keys and values: query heads one by one.
  request = request_for(1, 1, {8});
  request.attention = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(parts_of(row(request))[7], "0 1 2 4");
  ModelConfig few = model;
  few.num_kv_heads = 2;
  request.head_weights = {5, 5, 5, 5, 3, 3, 3, 3};
  const ShareRow uneven = find_strategy("sp-ep").make(few, cluster, request).groups[0].head[0];
  EXPECT_EQ(parts_of(uneven)[0], "0 1 2 5");
  EXPECT_EQ(parts_of(uneven)[7], "0 1 2 3");
}

TEST(TeamRows, SayWhatDoesNotFit) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = testing::nodes_of_eight({{"H100", 8}});
  const auto refusal = [&](const char* strategy, const StrategyRequest& request) {
    return error_of<ConfigError>([&] { find_strategy(strategy).make(model, cluster, request); });
  };
  EXPECT_EQ(refusal("sp-ep", request_for(1, 1, {3})),
            "[plan.team] got 3, expected a divisor of the 8 devices, or a list that adds up to it");
  EXPECT_EQ(refusal("ep", request_for(1, 1, {4, 3})),
            "[plan.team] got 7 devices in 2 teams, expected 8 in all");
  StrategyRequest request = request_for(1, 1, {8});
  request.head_weights = {1, 2};
  EXPECT_EQ(refusal("sp-ep", request),
            "[plan.head_weights] got 2 entries, expected one per device with attention (8)");
  request.head_weights.assign(8, 0);
  EXPECT_EQ(refusal("sp-ep", request), "[plan.head_weights] got 0 for all devices, expected some above 0");
}

PlanRequest long_request(const Cluster& cluster, i64 sequences) {
  PlanRequest request;
  request.model = load_model("llama-3.1-8b");
  request.cluster = cluster;
  request.seq_len = 131072, request.sequences = sequences;
  request.dtype = Dtype::kBf16;
  return request;
}

/// One sequence of 131,072 tokens on eight cards, none of which holds it: a team of all, several times as
/// fast as a pipeline that the one microbatch crosses.
// Claim (TeamPlans.*): one sequence that no device holds keeps all of them busy; where sequences are many and
// short no team is looked at
TEST(TeamPlans, KeepAllDevicesBusyWithOneSequence) {
  const Cluster cluster = testing::nodes_of_eight({{"H100", 8}});
  const PlanResult result = find_plan(long_request(cluster, 1));
  ASSERT_TRUE(result.feasible()) << result.infeasible;
  const Plan& plan = result.best().plan;
  ASSERT_TRUE(has_teams(plan));
  EXPECT_EQ(num_teams(plan.groups[0].layers[0].attention[0]), 1);
  EXPECT_NE(result.best().name.find("teams of 8"), std::string::npos) << result.best().name;
  EXPECT_EQ(overfilled_device(result.best().memory, cluster), "");
  const auto other = std::find_if(result.tried.begin(), result.tried.end(), [](const Candidate& c) {
    return c.infeasible.empty() && !has_teams(c.plan);
  });
  ASSERT_NE(other, result.tried.end());
  EXPECT_GT(other->prediction.step, 4 * result.best().prediction.step);
  const auto says =
      std::find_if(result.explanation.begin(), result.explanation.end(), [](const std::string& s) {
        return s.find("Teams share each sequence: a device has 12.5 % of the tokens and 4 heads each") == 0;
      });
  EXPECT_NE(says, result.explanation.end());
}

/// Groups of one team in each stage wait for nobody else: of all that wait for their pipelines equally long
/// the fastest are tried, however many devices there are.
TEST(TeamPlans, OfManyDevicesAreTriedInEveryNumberOfGroups) {
  PlanRequest request = long_request(testing::nodes_of_eight({{"H100", 512}}), 8);
  request.model = load_model("deepseek-v2-lite");
  const PlanResult result = find_plan(request);
  ASSERT_TRUE(result.feasible()) << result.infeasible;
  EXPECT_NE(result.best().name.find("8 groups, teams of"), std::string::npos) << result.best().name;
}

/// Where there are sequences enough and they are short, nothing changes.
TEST(TeamPlans, AreNotLookedAtWhereSequencesAreManyAndShort) {
  PlanRequest request = long_request(testing::nodes_of_eight({{"H100", 8}}), 64);
  request.model = load_model("qwen3-30b-a3b");
  request.seq_len = 4096;
  const PlanResult result = find_plan(request);
  ASSERT_TRUE(result.feasible());
  for (const Candidate& candidate : result.tried) EXPECT_FALSE(has_teams(candidate.plan)) << candidate.name;
}

/// Its row in `compare` is tuned, and best is at least as fast.
TEST(TeamPlans, AreComparedAsAnyStrategy) {
  CompareOptions options;
  options.strategies = {"sp-ep", "ep", "best"};
  options.sequences = 4;
  options.dtype = Dtype::kBf16;
  const std::vector<CompareRow> rows =
      compare_strategies(load_model("d1"), load_cluster("o1"), {32768}, options);
  ASSERT_EQ(rows.size(), 3);
  EXPECT_EQ(rows[0].infeasible, "");
  EXPECT_GT(rows[0].tokens_per_s, 0);
  EXPECT_GE(rows[2].tokens_per_s, 0.999 * rows[0].tokens_per_s);
}

}  // namespace
}  // namespace hetermoe
