#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/cost/roofline.h"
#include "hetermoe/plan/migration.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/planner/planner.h"
#include "hetermoe/planner/request_check.h"
#include "hetermoe/planner/search/advice.h"
#include "hetermoe/planner/search/search.h"
#include "hetermoe/planner/words/ways_out.h"
#include "hetermoe/schedule/builder.h"
#include "hetermoe/sim/memory.h"
#include "tests/support/nodes_of_eight.h"
#include "tests/support/processor_time.h"
#include "tests/support/random_request.h"

// What the search finds and what it says of its bounds.
namespace hetermoe {
namespace {

PlanRequest request_of(const Cluster& cluster, i64 sequences) {
  PlanRequest request;
  request.model = load_model("qwen3-30b-a3b");
  request.cluster = cluster;
  request.seq_len = 4096;
  request.sequences = sequences;
  return request;
}

double rate_of(const PlanRequest& request) {
  const PlanResult result = find_plan(request);
  return result.feasible() ? result.best().prediction.tokens_per_s : 0;
}

bool mentions(const std::vector<std::string>& lines, const std::string& words) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(words) != line.npos; });
}

TEST(Search, LargerBatchesAreNoSlower) {
  double before = 0;
  for (const i64 sequences : {128, 256, 512, 1024, 2048}) {
    const double rate = rate_of(request_of(load_cluster("h100-v100"), sequences));
    EXPECT_GT(rate, 0.98 * before) << sequences << " sequences";
    before = rate;
  }
}

/// What older devices bring is told against the plan that is found without them.
TEST(Search, TheNewerDevicesAloneAreSearchedAsACluster) {
  for (const std::string& name : {std::string("o1"), std::string("h100-v100")}) {
    PlanRequest request = request_of(load_cluster(name), 96);
    if (name == "o1") request.model = load_model("d2");
    request.limits.weigh_newer = true;
    const PlanResult all = find_plan(request);
    const i32 newest = request.cluster.devices[0].type;
    for (DeviceId d = 0; d < request.cluster.num_devices(); ++d)
      if (request.cluster.devices[static_cast<std::size_t>(d)].type != newest)
        request.limits.idle.push_back(d);
    const PlanResult newer = find_plan(request);
    ASSERT_TRUE(all.feasible());
    const auto told = std::ranges::find_if(all.tried, [](const Candidate& c) { return c.newer_only; });
    EXPECT_EQ(told != all.tried.end(), newer.feasible()) << name;
    EXPECT_EQ(all.newer_unfit.empty(), newer.feasible()) << name;
    if (told == all.tried.end() || !newer.feasible()) continue;
    EXPECT_LE(told->prediction.step, 1.001 * newer.best().prediction.step) << name;
  }
}

/// Plans of a few sequences more, which are tried with these taken out, keep the bound of the request.
TEST(Search, ABoundOnMicrobatchesHolds) {
  PlanRequest request = request_of(load_cluster("o1"), 258);
  request.model = load_model("d1");
  request.limits.max_microbatches = 1;
  const PlanResult result = find_plan(request);
  ASSERT_TRUE(result.feasible());
  for (const Candidate& candidate : result.tried)
    for (const Group& group : candidate.plan.groups)
      EXPECT_EQ(group.microbatches.size(), 1U) << candidate.name;
}

TEST(Search, OnlyABoundThatTheUserSetsBindsOnMicrobatchesAndSaysSo) {
  PlanRequest request = request_of(load_cluster("h100-v100"), 512);
  EXPECT_FALSE(mentions(find_plan(request).bounds, "microbatches"));
  request.limits.max_microbatches = 16;
  const PlanResult bounded = find_plan(request);
  EXPECT_TRUE(mentions(bounded.bounds, "more than 16 microbatches"));
  EXPECT_TRUE(mentions(bounded.explanation, "more than 16 microbatches"));
  EXPECT_EQ(to_json(bounded)["bounds"].size(), bounded.bounds.size());
}

TEST(Search, NewerDevicesAloneAreFasterThanAPlanThatTheBatchForcesOnAll) {
  const double both = rate_of(request_of(testing::nodes_of_eight({{"H100", 16}, {"V100", 16}}), 1024));
  const double alone = rate_of(request_of(testing::nodes_of_eight({{"H100", 16}}), 1024));
  EXPECT_GE(both, 0.995 * alone);
}

TEST(Search, SeveralGroupsPerType) {
  const double both = rate_of(request_of(testing::nodes_of_eight({{"H100", 16}, {"A100-80", 16}}), 512));
  const double newer = rate_of(request_of(testing::nodes_of_eight({{"H100", 16}}), 512));
  EXPECT_GE(both, 0.995 * newer);
}

TEST(Search, LeavesOutWhatDoesNotDivide) {
  const double eight = rate_of(request_of(testing::nodes_of_eight({{"H100", 8}}), 256));
  for (const i32 devices : {9, 11, 15}) {
    EXPECT_GE(rate_of(request_of(testing::nodes_of_eight({{"H100", devices}}), 256)), 0.995 * eight)
        << devices << " devices";
  }
}

/// 30.5 billion parameters of 18 bytes each, of which those of attention are on every device: 8 cards of 80
/// GiB cannot hold that but for a sharded optimizer.
TEST(Search, ShardsTheOptimizerWhereNothingFitsOtherwise) {
  const PlanRequest request = request_of(testing::nodes_of_eight({{"H100", 8}}), 64);
  const PlanResult result = find_plan(request);
  ASSERT_TRUE(result.feasible()) << result.infeasible;
  EXPECT_TRUE(result.best().plan.shard_optimizer);
  EXPECT_TRUE(mentions(result.explanation, "without it the plan does not fit"));
  Plan whole = result.best().plan;
  whole.shard_optimizer = false;
  EXPECT_NE(overfilled_device(estimate_memory(whole, request.model), request.cluster), "");
  const auto is_ep = [](const Candidate& c) { return c.name.starts_with("ep on") && c.infeasible.empty(); };
  EXPECT_TRUE(std::any_of(result.tried.begin(), result.tried.end(), is_ep)) << "plain expert parallelism";
}

/// 236 billion parameters, of which 13 billion are on every device with attention: stages have some layers of
/// them.
TEST(Search, StagesOfGroupsHoldWhatNoGroupCan) {
  PlanRequest request = request_of(testing::nodes_of_eight({{"H100", 128}}), 256);
  request.model = load_model("deepseek-v2");
  const PlanResult result = find_plan(request);
  ASSERT_TRUE(result.feasible()) << result.infeasible;
  const Plan& plan = result.best().plan;
  EXPECT_EQ(plan.order, OrderPolicy::kOneFOneB);
  EXPECT_EQ(validate(plan, request.model, request.cluster), std::vector<std::string>{});
  EXPECT_FALSE(result.best().extrapolated);
  // Weights and gradients of 2 and 4 bytes, masters and moments of 12, which replicas share.
  std::vector<Bytes> tally(request.cluster.devices.size(), 0);
  const Holders held = holders(plan, request.model);
  const std::vector<Unit> all = units(request.model);
  for (std::size_t u = 0; u < all.size(); ++u) {
    const Bytes each = 6 + 12 / static_cast<double>(plan.shard_optimizer ? held[u].size() : 1);
    EXPECT_FALSE(held[u].empty()) << to_string(all[u]);
    for (const DeviceId d : held[u])
      tally[static_cast<std::size_t>(d)] += each * static_cast<double>(num_parameters(request.model, all[u]));
  }
  for (std::size_t d = 0; d < tally.size(); ++d) {
    EXPECT_LE(tally[d], result.best().memory[d]) << d;
    EXPECT_LE(result.best().memory[d], usable_memory(request.cluster.types[0])) << d;
  }
}

/// 56 cards of 80 GiB have room for all states once, but not for all but experts of every group beside a
/// sharded optimizer.
TEST(Search, GathersWeightsWhereNothingFitsOtherwise) {
  PlanRequest request = request_of(testing::nodes_of_eight({{"H100", 56}}), 256);
  request.model = load_model("deepseek-v2");
  const PlanResult result = find_plan(request);
  ASSERT_TRUE(result.feasible()) << result.infeasible;
  EXPECT_TRUE(mentions(result.explanation, "gathered for each use. Without that no plan fits"));
  EXPECT_TRUE(mentions(result.explanation, "Gathering costs"));
  const Plan& plan = result.best().plan;
  EXPECT_TRUE(shards_weights(plan));
  EXPECT_EQ(validate(plan, request.model, request.cluster), std::vector<std::string>{});
  // What a device holds by the simulator, tensor by tensor, is within the bound.
  const Placement placement(plan, request.model, {});
  const Schedule schedule = build_schedule(placement);
  const ExpectedRouting routing(request.model);
  const RooflineCost cost(request.model, request.cluster, plan);
  const OpTimes times = simulate(schedule, placement, request.model, request.cluster, cost, routing);
  const std::vector<MemoryPeak> peaks =
      peak_memory(schedule, times, placement, request.model, request.cluster, routing);
  for (std::size_t d = 0; d < peaks.size(); ++d)
    EXPECT_LE(peaks[d].use.total(), result.best().memory[d]) << d;
  request.limits.shard_optimizer = false;
  EXPECT_FALSE(find_plan(request).feasible());
}

Cluster own_cluster(const std::string& nodes) {
  return parse_cluster(Json::parse(fmt::format(R"({{"name": "own", "nodes": {}}})", nodes)), "own ");
}

/// Turns over two devices with a host have no order for so few sequences; other plans have.
TEST(Search, SkipsPlansWhoseOrderCannotBe) {
  PlanRequest request =
      request_of(own_cluster(R"([{"devices": ["RTX4090", "RTX3090"], "host": {"memory_gib": 128}}])"), 1);
  request.model = load_model("olmoe-1b-7b");
  request.seq_len = 2048;
  request.limits.simulation_budget = 10'000;
  for (request.sequences = 1; request.sequences <= 3; ++request.sequences)
    EXPECT_TRUE(find_plan(request).feasible()) << request.sequences;
}

TEST(Search, GradientsAreKeptAsAskedFor) {
  PlanRequest request = request_of(load_cluster("o1"), 48);
  request.model = load_model("d1");
  request.limits.simulation_budget = 10'000;
  const PlanResult wide = find_plan(request);
  request.grad_dtype = Dtype::kFp16;
  const PlanResult narrow = find_plan(request);
  EXPECT_FALSE(wide.best().plan.grad_dtype.has_value());
  EXPECT_EQ(narrow.best().plan.grad_dtype, Dtype::kFp16);
  EXPECT_EQ(state_bytes_of(request).gradients, 2);
  EXPECT_LT(narrow.best().prediction.step, wide.best().prediction.step);
}

/// 4.3 billion parameters of 18 bytes are 72 GiB, of 8 bytes 32 GiB; two cards have 44.6 GiB usable.
TEST(Advice, NamesWhatMakesRoomAndOnlyThat) {
  PlanRequest request =
      request_of(own_cluster(R"([{"count": 2, "devices": ["RTX3090"], "network_gbit_s": 50}])"), 16);
  request.model = load_model("w2");
  request.seq_len = 2048;
  request.dtype = Dtype::kBf16;
  ASSERT_FALSE(find_plan(request).feasible());
  const std::string ways = fmt::format("{}", fmt::join(ways_out(request).value(), "\n"));
  for (const char* way : {"--dtype bf16 --master none --moments-dtype bf16", "main memory a node",
                          "--lora-rank 16", "times as many devices"})
    EXPECT_NE(ways.find(way), std::string::npos) << way << " in " << ways;
  EXPECT_EQ(ways.find("sequences of"), std::string::npos) << ways;
  EXPECT_EQ(ways.find("--grad-dtype"), std::string::npos) << ways;
  const std::size_t at = ways.find(" GiB of main memory");
  ASSERT_NE(at, std::string::npos) << ways;
  const std::size_t begin = ways.rfind('\n', at) + 1;
  for (Node& node : request.cluster.nodes) {
    node.host.emplace();
    node.host->memory_gib = std::stod(ways.substr(begin, at - begin));
  }
  EXPECT_TRUE(find_plan(request).feasible()) << ways;
}

/// 671 billion parameters on 18 cards: nothing alone is enough, and no node has 6 TiB.
TEST(Advice, NamesPairsWhereNothingAloneMakesRoomAndTakesSeconds) {
  PlanRequest request =
      request_of(own_cluster(R"([{"devices": ["A100-80 x8"], "network_gbit_s": 100, "local_gb_s": 300},
                      {"devices": ["RTX4090 x8"], "network_gbit_s": 100, "local_gb_s": 20},
                      {"devices": ["L40S x2"], "network_gbit_s": 100, "local_gb_s": 20}])"),
                 256);
  request.model = load_model("deepseek-v3");
  request.dtype = Dtype::kBf16;
  const double before = testing::processor_time();
  const std::vector<std::string> ways = ways_out(request).value();
  EXPECT_LT(testing::processor_time() - before, 30) << fmt::format("{}", fmt::join(ways, "\n"));
  ASSERT_FALSE(ways.empty());
  for (const std::string& way : ways) EXPECT_NE(way.find(" and "), std::string::npos) << way;
}

TEST(Advice, SaysThatNoTeamHasRoomForASequence) {
  PlanRequest request = request_of(testing::nodes_of_eight({{"T4", 16}}), 8);
  request.model = load_model("llama-3.1-8b");
  request.seq_len = 131072;
  const PlanResult result = find_plan(request);
  ASSERT_FALSE(result.feasible());
  EXPECT_NE(result.advice.find("No team of the devices that are there has room"), std::string::npos)
      << result.advice;
}

TEST(Advice, SaysWhichPartDoesNotFit) {
  constexpr Bytes kGiB = 1024.0 * 1024 * 1024;
  Shortfall s{.replicated = 90 * kGiB,
              .sequence = 95 * kGiB,
              .experts = 500 * kGiB,
              .largest = 80 * kGiB,
              .total = 800 * kGiB};
  EXPECT_NE(advice(s).find("90.0 GiB"), std::string::npos);
  EXPECT_NE(advice(s).find("more devices do not help"), std::string::npos);
  s.replicated = 40 * kGiB;
  EXPECT_NE(advice(s).find("shorter sequences"), std::string::npos);
  EXPECT_NE(advice(s).find("more devices do not help"), std::string::npos);
  s.sequence = 60 * kGiB;
  s.total = 400 * kGiB;
  EXPECT_NE(advice(s).find("500.0 GiB"), std::string::npos);
  EXPECT_NE(advice(s).find("more or larger devices"), std::string::npos);
}

TEST(Advice, SaysHowMuchMemoryIsMissing) {
  PlanRequest request = request_of(testing::nodes_of_eight({{"T4", 64}}), 64);
  request.model = load_model("deepseek-v3");
  const PlanResult states = find_plan(request);
  ASSERT_FALSE(states.feasible());
  EXPECT_NE(states.advice.find("11249.0 GiB, and all devices have"), std::string::npos) << states.advice;
  EXPECT_NE(states.advice.find("are missing"), std::string::npos) << states.advice;
}

/// 236 billion states of 18 bytes are 3.9 TiB: 56 cards of 80 GiB would hold them, but not the microbatches.
TEST(Advice, NamesTheNearestPipeline) {
  PlanRequest request = request_of(testing::nodes_of_eight({{"H100", 56}}), 256);
  request.model = load_model("deepseek-v2");
  const PlanResult result = search_plans(checked(request));  // with nothing gathered
  ASSERT_FALSE(result.feasible());
  const std::optional<PipelineMiss> miss = shortfall(Rates(request)).pipeline;
  ASSERT_TRUE(miss.has_value());
  const std::string lacks = fmt::format("pipeline of {} stages", miss->stages);
  EXPECT_NE(result.advice.find(lacks), std::string::npos) << result.advice;
  EXPECT_NE(result.advice.find(fmt::format("{:.1f} GiB too much", (miss->need - miss->usable) / kGiB)),
            std::string::npos)
      << result.advice;
}

/// 16 stages of 4 devices have 69.9 GiB of states beside 10 GiB of activations, had each 3.75 layers: it
/// takes stages of 3 and 4 layers, and rows that are sent again instead of kept.
TEST(Search, UnequalStagesFitWhereEqualOnesDoNot) {
  PlanRequest request = request_of(testing::nodes_of_eight({{"H100", 64}}), 1024);
  request.model = load_model("deepseek-v2");
  request.dtype = Dtype::kBf16;
  const PlanResult result = find_plan(request);
  ASSERT_TRUE(result.feasible()) << result.advice;
  EXPECT_EQ(overfilled_device(result.best().memory, request.cluster), "");
  EXPECT_GE(stage_layers(result.best().plan.groups[0]).size(), 12U);
  EXPECT_TRUE(mentions(result.explanation, "Stages of the pipeline, in order: "));
}

TEST(Search, PipelinesWinWhereGroupsAcrossNodesWait) {
  // A group of whole layers of mixtral-8x7b needs two nodes of L4, whose network is slow.
  PlanRequest request = request_of(testing::nodes_of_eight({{"L4", 128}}), 1024);
  request.model = load_model("mixtral-8x7b");
  const PlanResult result = find_plan(request);
  ASSERT_TRUE(result.feasible()) << result.infeasible;
  EXPECT_EQ(result.best().plan.order, OrderPolicy::kOneFOneB) << result.best().name;
}

}  // namespace
}  // namespace hetermoe
