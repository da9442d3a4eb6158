#include "hetermoe/planner/strategies/baselines.h"

#include <gtest/gtest.h>

#include <numeric>

#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/sim/memory.h"

namespace hetermoe {
namespace {

class BaselinesTest : public ::testing::Test {
 protected:
  ModelConfig model_ = load_model("d1");
  Cluster cluster_ = load_cluster("o1");
  Predictor predictor_{model_, cluster_};
  Setting setting_{.seq_len = 8192, .sequences = 48, .published = true};
};

Cluster cluster_of(const std::string& nodes) {
  return parse_cluster(
      Json::parse(fmt::format(R"({{"name": "own", "network_gbit_s": 50, "nodes": {}}})", nodes)), "own ");
}
/// A node for each A40 and V100.
Cluster two_and_two() {
  return cluster_of(
      R"([{"name": "a", "count": 2, "devices": ["A40"]}, {"name": "v", "count": 2, "devices": ["V100"]}])");
}

TEST(MicrobatchCounts, GiveEveryDeviceTheSameWholeNumberOfSequences) {
  EXPECT_EQ(microbatch_counts(48, 12), (std::vector<i64>{4, 2, 1}));
  EXPECT_EQ(microbatch_counts(36, 6), (std::vector<i64>{6, 3, 2, 1}));
  EXPECT_EQ(microbatch_counts(5, 12), (std::vector<i64>{1}));
}

TEST_F(BaselinesTest, EveryTunedPlanIsValidAndFits) {
  const std::vector<Tuned> all = {tune_ep(predictor_, setting_), tune_dist_ep(predictor_, setting_),
                                  tune_zebra(predictor_, setting_, true), tune_pp(predictor_, setting_)};
  for (const Tuned& tuned : all) {
    EXPECT_EQ(tuned.infeasible, "");
    EXPECT_EQ(validate(tuned.plan, model_, cluster_), std::vector<std::string>{});
    EXPECT_EQ(overfilled_device(estimate_memory(tuned.plan, model_), cluster_), "");
    EXPECT_EQ(total_sequences(tuned.plan), setting_.sequences);
  }
}

/// 12 devices hold the replicated parts: each keeps a twelfth of their masters and moments, 12 bytes of each
/// parameter, and updates as much.
TEST_F(BaselinesTest, AShardedOptimizerIsDividedOverReplicas) {
  Plan plan = tune_ep(predictor_, setting_).plan;
  ASSERT_TRUE(plan.shard_optimizer);
  Plan whole = plan;
  whole.shard_optimizer = false;
  const ParamCounts counts = count_parameters(model_);
  i64 replicated = counts.embedding + counts.head;
  for (const i64 part : counts.attention_part) replicated += part;
  const Bytes saved = 12.0 * static_cast<double>(replicated) * 11 / 12;
  const std::vector<Bytes> with = estimate_memory(plan, model_), without = estimate_memory(whole, model_);
  for (DeviceId d = 0; d < cluster_.num_devices(); ++d)
    EXPECT_NEAR(without[static_cast<std::size_t>(d)] - with[static_cast<std::size_t>(d)], saved, 1);

  const Placement sharded(plan, model_, {}), replicas(whole, model_, {});
  const ExpectedRouting routing(model_);
  EXPECT_NEAR(BufferSizes(replicas, model_, cluster_, routing).state(0).optimizer -
                  BufferSizes(sharded, model_, cluster_, routing).state(0).optimizer,
              saved, 1);
  for (const State& state : sharded.states()) {
    const auto index = static_cast<i32>(&state - sharded.states().all().data());
    const Op update = {.kind = OpKind::kUpdate, .state = index};
    const double parts = state.devices.size() > 1 ? 12 : 1;
    EXPECT_DOUBLE_EQ(WorkModel(sharded, model_, cluster_).compute_work(update, 0, nullptr).params * parts,
                     WorkModel(replicas, model_, cluster_).compute_work(update, 0, nullptr).params);
  }
}

TEST_F(BaselinesTest, EpSpreadsEverythingEquallyAndSendsAgainForRecomputation) {
  const Plan plan = tune_ep(predictor_, setting_).plan;
  EXPECT_EQ(plan.recompute, Recompute::kResend);
  EXPECT_EQ(plan.window, 1);
  for (const Share& share : plan.groups[0].layers[0].attention[0]) {
    EXPECT_EQ(share.sequences, plan.groups[0].layers[0].attention[0][0].sequences);
  }
}

TEST_F(BaselinesTest, EpOnSomeDevicesLeavesTheOthersIdle) {
  const Roles roles = default_roles(cluster_);
  const Tuned half = tune_ep(predictor_, setting_, roles.attention);
  for (const DeviceId d : roles.experts) EXPECT_EQ(half.prediction.busy[static_cast<std::size_t>(d)], 0);
  EXPECT_GT(half.prediction.tokens_per_s, 0);
}

TEST_F(BaselinesTest, PipelinesMixBothTypesAndSplitUnevenly) {
  const Tuned pp = tune_pp(predictor_, setting_);
  ASSERT_EQ(pp.plan.groups.size(), 6u);
  for (const Group& group : pp.plan.groups) {
    ASSERT_EQ(group.devices.size(), 2u);
    EXPECT_NE(cluster_.type_of(group.devices[0]).name, cluster_.type_of(group.devices[1]).name);
  }
  // Of the 2.1 B expert parameters a V100 cannot hold half: 16 bytes each are 17 GB.
  std::vector<i64> layers(12, 0);
  for (const LayerPlacement& layer : pp.plan.groups[0].layers) {
    ++layers[static_cast<std::size_t>(layer.attention[0][0].device)];
  }
  const i64 on_older = std::accumulate(layers.begin() + 6, layers.end(), i64{0});
  EXPECT_GE(on_older, 1);
  EXPECT_LT(on_older, 4);
}

TEST_F(BaselinesTest, ZebraWithAsymEaIsNeverSlowerThanWithout) {
  for (const i64 seq_len : {4096, 16384}) {
    setting_.seq_len = seq_len;
    EXPECT_LE(tune_zebra(predictor_, setting_, true).prediction.step,
              tune_zebra(predictor_, setting_, false).prediction.step);
  }
}

/// A V100 has room for neither its half of the experts nor their rows: the published rule forces some out.
TEST(AsymEaMemory, ForcesExpertsOutOfDevicesThatAreTooSmall) {
  const ModelConfig model = load_model("w1");
  const Cluster cluster = two_and_two();
  Predictor predictor(model, cluster);
  const Setting setting{.seq_len = 16384, .sequences = 32, .published = true};
  EXPECT_NE(tune_zebra(predictor, setting, false).infeasible.find("V100"), std::string::npos);
  const Tuned zebra = tune_zebra(predictor, setting, true);
  ASSERT_EQ(zebra.infeasible, "");
  for (const i64 moved : zebra.experts_moved) EXPECT_GE(moved, 2) << "of 6 on each V100";
  const std::optional<Prediction> judged =
      predictor.judge_within(std::numeric_limits<i64>::max(), zebra.plan);
  EXPECT_EQ(overfilled_device(judged->memory, cluster), "");
  EXPECT_LT(zebra.prediction.step, 10.5);
}

TEST_F(BaselinesTest, DenseLayersGiveNoExperts) {
  setting_.seq_len = 4096;
  const std::vector<i64> all = tune_zebra(predictor_, setting_, true).experts_moved;
  model_.dense_layer[0] = true;
  model_.dense_hidden = 3584;
  const Tuned zebra = tune_zebra(predictor_, setting_, true);
  EXPECT_EQ(zebra.experts_moved.size(), all.size());
  EXPECT_EQ(zebra.experts_moved[0], 0);
  EXPECT_GT(std::accumulate(zebra.experts_moved.begin(), zebra.experts_moved.end(), i64{0}), 0);
  EXPECT_EQ(validate(zebra.plan, model_, cluster_), std::vector<std::string>{});
}

/// 96 sequences of 32K tokens are 17 GB of rows on each V100.
TEST_F(BaselinesTest, ZebraHasFewerMicrobatchesInFlightWhereAllHaveNoRoom) {
  setting_.seq_len = 32768, setting_.sequences = 96;
  EXPECT_NE(tune_zebra(predictor_, setting_, false).infeasible, "");
  setting_.published = false;
  const Tuned zebra = tune_zebra(predictor_, setting_, false);
  ASSERT_EQ(zebra.infeasible, "");
  EXPECT_GT(zebra.plan.window, 1);
  EXPECT_LT(zebra.plan.window, static_cast<i64>(zebra.plan.groups[0].microbatches.size()));
}

/// 8 stages have 37 million cuts and orders: none is walked.
TEST(Pipelines, OfOddNumbersOfDevicesAreCutExactly) {
  const Cluster cluster =
      cluster_of(R"([{"name": "h", "devices": ["H100 x5"]}, {"name": "a", "devices": ["A100-40 x3"]}])");
  const ModelConfig model = load_model("deepseek-v2-lite");
  Predictor predictor(model, cluster);
  const Tuned pp = tune_pp(predictor, {.seq_len = 4096, .sequences = 312, .dtype = Dtype::kBf16});
  ASSERT_EQ(pp.infeasible, "");
  EXPECT_EQ(validate(pp.plan, model, cluster), std::vector<std::string>{});
  EXPECT_EQ(overfilled_device(estimate_memory(pp.plan, model), cluster), "");
}

/// Half of equal devices do not count as older ones: four copies of the model have no room, one has.
TEST(Pipelines, AreAsManyAsHaveRoom) {
  const Cluster cluster = cluster_of(R"([{"name": "h", "devices": ["H100 x8"]}])");
  const ModelConfig model = load_model("qwen3-30b-a3b");
  Predictor predictor(model, cluster);
  const Tuned pp = tune_pp(predictor, {.seq_len = 2048, .sequences = 64, .dtype = Dtype::kBf16});
  ASSERT_EQ(pp.infeasible, "");
  EXPECT_EQ(pp.plan.groups.size(), 1u);
  EXPECT_EQ(stage_layers(pp.plan.groups[0]).size(), 8u);
}

TEST_F(BaselinesTest, WhatDoesNotFitIsReportedWithTheDevice) {
  setting_.sequences = 4800;  // 39 million tokens in flight
  EXPECT_NE(tune_zebra(predictor_, setting_, true).infeasible.find("V100"), std::string::npos);
}

TEST_F(BaselinesTest, ShortRunOfEqualMicrobatchesPredictsTheLongOne) {
  StrategyRequest request;
  request.seq_len = 4096;
  request.sequences = 120;
  request.microbatches = 10;
  Plan plan = find_strategy("ep").make(model_, cluster_, request);
  apply(setting_, plan);
  plan.recompute = Recompute::kResend;
  plan.chunks = 2;
  const Seconds quick = predictor_.predict(plan).step;
  // The same shares spelled once per microbatch are simulated in full.
  const auto spell = [](Shares& shares) { shares.assign(10, shares[0]); };
  spell(plan.groups[0].embed);
  spell(plan.groups[0].head);
  for (LayerPlacement& layer : plan.groups[0].layers) spell(layer.attention);
  EXPECT_NEAR(predictor_.predict(plan).step, quick, 1e-9 * quick);
}

}  // namespace
}  // namespace hetermoe
