#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "hetermoe/train/run/verify.h"
#include "hetermoe/train/session/batch.h"
#include "tests/support/conversations.h"
#include "tests/train/tiny_run.h"

// Runs that learn the answers of conversations.
namespace hetermoe {
namespace {

constexpr i64 kWindow = 48;
const std::pair<std::string, std::string> kLength = {"train.seq_len", "48"};

TEST(Conversations, LossAndGradientsAreTheReferencesUnderEveryPlan) {
  const WorkFolder folder;
  const Dataset data = conversation_data(kWindow);
  const std::vector<Settings> plans = {
      {{"strategy", "single"}, {"plan.attention", "0"}},
      {{"strategy", "ep"}, {"plan.attention", "0,6"}},
      {{"strategy", "zebra"}, {"plan.attention", "0,1"}, {"plan.experts", "6,7,8"}, {"plan.chunks", "3"}},
      {{"strategy", "pp-ep"}, {"plan.attention", "0,1,6,7"}, {"plan.stages", "2"}},
      {{"strategy", "roundpipe"}, {"cluster", "rtx4090x8"}, {"plan.attention", "0,1"}}};
  for (Settings plan : plans) {
    plan.push_back(kLength);
    const TinyRun run(folder / "run", in_fp64(plan));
    const Sampler sampler(data, {kWindow, run.job.train.seed});
    const VerifyResult result = verify_plan(run.job, run.model, run.cluster, run.plan,
                                            sampler.batch(0, run.job.train.sequences, run.model.vocab));
    EXPECT_TRUE(result.passed()) << plan[0].second << ": loss " << result.loss_error << ", "
                                 << result.gradients[0].name << " " << result.gradients[0].error;
  }
}

TrainOutcome train_conversations(const std::string& folder, Settings settings) {
  settings.insert(settings.begin(), {kLength, {"train.validation_sequences", "4"}});
  const TinyRun rig(folder, settings);
  const Processes alone;
  const Dataset data = conversation_data(kWindow, 0.2);
  return Trainer(rig.job, rig.model, rig.cluster, rig.plan, data, alone, Checkpoints::kOn).run();
}

TEST(Conversations, AResumedRunUnderAnotherPlanReadsTheSameOnes) {
  const WorkFolder folder;
  const TrainOutcome whole = train_conversations(folder / "whole", {{"train.steps", "6"}});
  std::vector<u64> expected, got;
  for (const StepRecord& record : whole.records) expected.push_back(record.tokens_hash);
  EXPECT_EQ(std::set<u64>(expected.begin(), expected.end()).size(), 6U);
  const TrainOutcome first = train_conversations(folder / "parts", {{"train.steps", "4"}});
  const TrainOutcome rest =
      train_conversations(folder / "parts", {{"train.steps", "6"}, {"strategy", "dist-ep"}});
  EXPECT_EQ(rest.first_step, 4);
  for (const TrainOutcome* part : {&first, &rest}) {
    for (const StepRecord& record : part->records) got.push_back(record.tokens_hash);
  }
  EXPECT_EQ(got, expected);
  EXPECT_NEAR(rest.records.back().loss, whole.records.back().loss, 1e-3);
  EXPECT_NEAR(rest.validations().back().loss, whole.validations().back().loss, 1e-3);
  EXPECT_LT(whole.validations().back().loss, std::log(256.0) + 0.1);
}

/// The loss of validation is that of the answers, as the reference has it.
TEST(Conversations, ValidationCountsAnswersAlone) {
  const WorkFolder folder;
  Settings settings = in_fp64({{"strategy", "zebra"}, {"plan.attention", "0,1"}, {"plan.experts", "6,7,8"}});
  settings.insert(
      settings.end(),
      {kLength, {"train.steps", "1"}, {"train.learning_rate", "0"}, {"train.validation_sequences", "8"}});
  const TinyRun rig(folder / "run", settings);
  const Processes alone;
  const Dataset data = conversation_data(kWindow, 0.3);
  Trainer trainer(rig.job, rig.model, rig.cluster, rig.plan, data, alone);
  const double got = trainer.run().validations().at(0).loss;
  const Sampler sampler(data, {kWindow, rig.job.train.seed, /*validation=*/true, 0});
  const StepInput input = input_of(sampler.batch(0, 8, rig.model.vocab));
  EXPECT_LT(input.target_count, 8 * kWindow / 2);
  TensorsByName values = trainer.session().values();
  for (auto& [name, value] : values) value = value.to(at::kDouble);
  const ReferenceResult expected =
      reference_step(rig.model, values, input.tokens, input.targets, {1}, {}, input.starts);
  EXPECT_NEAR(got, expected.loss - expected.aux_loss, 1e-10);
}

}  // namespace
}  // namespace hetermoe
