#include "hetermoe/planner/baselines.h"

#include <gtest/gtest.h>

#include <numeric>

#include "hetermoe/planner/memory_estimate.h"
#include "hetermoe/planner/strategies.h"
#include "hetermoe/sim/memory.h"

namespace hetermoe {
namespace {

class BaselinesTest : public testing::Test {
 protected:
  ModelConfig model_ = load_model("d1");
  Cluster cluster_ = load_cluster("o1");
  Predictor predictor_{model_, cluster_};
  Setting setting_{8192, 48};
};

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
    const auto index = static_cast<i32>(&state - sharded.states().data());
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
