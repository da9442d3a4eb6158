#include "hetermoe/train/checkpoint/loss_scale.h"

#include "tests/support/rig.h"
#include "tests/train/tiny_run.h"

namespace hetermoe {
namespace {

TEST(LossScale, IsOneWhereNothingComputesInFp16) {
  LossScale scale(0, false);
  EXPECT_EQ(scale.value(), 1);
  EXPECT_FALSE(scale.lower_after(true));
  EXPECT_EQ(scale.value(), 1);
}

TEST(LossScale, HalvesOnOverflowAndDoublesAfterManyGoodSteps) {
  LossScale scale(0, true);
  EXPECT_EQ(scale.value(), LossScale::kFirst);
  EXPECT_TRUE(scale.lower_after(true));
  EXPECT_EQ(scale.value(), LossScale::kFirst / 2);
  for (i64 step = 0; step + 1 < LossScale::kGrowAfter; ++step) EXPECT_FALSE(scale.lower_after(false));
  EXPECT_EQ(scale.value(), LossScale::kFirst / 2);
  scale.lower_after(false);
  EXPECT_EQ(scale.value(), LossScale::kFirst);
  for (i64 step = 0; step < 20 * LossScale::kGrowAfter; ++step) scale.lower_after(false);
  EXPECT_EQ(scale.value(), LossScale::kMost);
}

TEST(LossScale, GivesUpAtOne) {
  LossScale scale(0, true);
  int halvings = 0;
  while (scale.lower_after(true)) ++halvings;
  EXPECT_EQ(halvings, 16);
  EXPECT_EQ(scale.value(), 1);
}

TEST(LossScale, AFixedOneStaysWhateverACheckpointSays) {
  LossScale scale(128, true);
  scale.restore({4, 7});
  EXPECT_FALSE(scale.lower_after(true));
  EXPECT_EQ(scale.value(), 128);
}

TEST(LossScale, GoesOnFromACheckpointButNotFromARunThatNeededNone) {
  LossScale scale(0, true);
  scale.restore({1, 0});
  EXPECT_EQ(scale.value(), LossScale::kFirst);
  scale.restore({32, LossScale::kGrowAfter - 1});
  scale.lower_after(false);
  EXPECT_EQ(scale.value(), 64);
}

/// Two steps of the plan in fp64 under a loss scale.
struct Trained {
  StepResult result;
  TensorsByName values;
};
Trained train_with(double loss_scale) {
  const WorkFolder folder;
  TinyRun run(folder.path(),
              {{"plan.attention_dtype", "fp64"}, {"plan.expert_dtype", "fp64"}, {"plan.wire_dtype", "fp64"}});
  Session session(run.model, run.cluster, run.plan, {{true, 1, true}, {}, {}});
  session.initialize(1);
  StepInput input = testing::random_input(run.plan, run.model);
  input.learning_rate = 1e-2;
  input.max_grad_norm = 0.1;
  input.loss_scale = loss_scale;
  Trained out;
  for (input.step = 0; input.step < 2; ++input.step) out.result = session.train_step(input);
  out.values = session.values();
  return out;
}

TEST(LossScale, APowerOfTwoChangesNoBitOfAnything) {
  const Trained plain = train_with(1), scaled = train_with(1024);
  EXPECT_EQ(scaled.result.loss, plain.result.loss);
  EXPECT_EQ(scaled.result.aux_loss, plain.result.aux_loss);
  EXPECT_EQ(scaled.result.grad_norm, plain.result.grad_norm);
  expect_equal(scaled.values, plain.values);
}

const Settings kFp16 = {{"plan.attention_dtype", "fp16"},
                        {"plan.expert_dtype", "fp16"},
                        {"plan.wire_dtype", "fp16"},
                        {"train.steps", "12"}};

TEST(LossScale, TrainingInFp16FollowsFp32) {
  const WorkFolder folder;
  const TinyRun::End half = TinyRun(folder.path() / "half", kFp16).run(Checkpoints::kOff);
  const TinyRun::End whole = TinyRun(folder.path() / "whole", {{"train.steps", "12"}}).run(Checkpoints::kOff);
  ASSERT_EQ(half.outcome.records.size(), 12U);
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_TRUE(half.outcome.records[i].updated) << i;
    EXPECT_NEAR(half.outcome.records[i].loss, whole.outcome.records[i].loss, 0.02) << i;
  }
}

/// From step 3 on gradients are too large for fp16 at the first scale, not at a lower one.
void enlarge_gradients(Session& session, const StepRecord& record) {
  if (record.step != 2) return;
  for (DeviceState* state : session.states()) {
    for (const LogicalTensor& view : state->store().tensors()) {
      if (view.name == "lm_head.weight") view.value.mul_(200);
    }
  }
}

TEST(LossScale, AnOverflowSkipsTheStepLowersTheScaleAndIsNoFault) {
  const WorkFolder folder;
  TinyRun rig(folder.path(), kFp16);
  const TinyRun::End end = rig.run(Checkpoints::kOn, enlarge_gradients);
  i64 overflows = 0;
  for (const StepRecord& record : end.outcome.records) {
    EXPECT_EQ(record.updated, !record.overflowed) << record.step;
    overflows += record.overflowed ? 1 : 0;
  }
  EXPECT_GE(overflows, 1);
  EXPECT_EQ(end.outcome.skipped_steps, overflows);
  EXPECT_TRUE(end.outcome.records.back().updated);
  ASSERT_FALSE(end.outcome.warnings.empty());
  EXPECT_NE(end.outcome.warnings[0].find("fp16 gradients overflowed at loss scale 65536, which is 32768"),
            std::string::npos)
      << end.outcome.warnings[0];
  // Resumed from before the last steps: the scale and its count go on where they were.
  fs::remove_all(rig.checkpoints() / "step-00000012");
  const TinyRun::End resumed = rig.run();
  expect_equal(resumed.values, end.values);
}

}  // namespace
}  // namespace hetermoe
