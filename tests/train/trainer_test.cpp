#include "hetermoe/train/run/trainer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "hetermoe/train/run/results.h"
#include "tests/support/counting_data.h"
#include "tests/train/tiny_run.h"

namespace hetermoe {
namespace {

/// The order of the plan's own schedule, written out as a person would hand it in.
void write_order_out(TinyRun& rig) {
  rig.plan.explicit_order = to_text(
      build_schedule(rig.plan, rig.model, {rig.model.aux_loss_coef > 0, rig.job.train.aux_group, true}));
  rig.plan.order = OrderPolicy::kExplicit;
}

TEST(Trainer, AHandMadeOrderIsTrainedAndValidatedToTheEnd) {
  const WorkFolder folder, plain_folder;
  TinyRun rig(folder.path(), {{"train.validation_sequences", "4"}, {"train.validate_every", "3"}});
  TinyRun plain(plain_folder.path(), {{"train.validation_sequences", "4"}, {"train.validate_every", "3"}});
  write_order_out(rig);
  StrategyRun run;
  run.outcome = rig.run().outcome;
  const TrainOutcome expected = plain.run().outcome;
  ASSERT_EQ(run.outcome.records.size(), 6U);
  ASSERT_EQ(run.outcome.validations().size(), 2U);
  EXPECT_EQ(run.outcome.validations()[1].step, 6);
  EXPECT_EQ(run.outcome.validations()[1].loss, expected.validations()[1].loss);
  EXPECT_EQ(rig.steps(), (std::vector<i64>{6, 4}));
  run.strategy = "explicit";
  run.plan = rig.plan;
  EXPECT_TRUE(fs::exists(write_results(rig.job, rig.model, rig.cluster, {run})));
}

/// A run alone that counts how often it would have asked others.
class CountingProcesses : public Processes {
 public:
  std::vector<std::string> gather(const std::string& text) const override {
    ++count;
    return {text};
  }
  mutable i64 count = 0;
};

/// How often the run asked in each step, with a parameter multiplied by `factor` from step 3 on.
std::vector<i64> questions(TinyRun& rig, double factor) {
  const Dataset text = counting_data();
  const CountingProcesses processes;
  Trainer trainer(rig.job, rig.model, rig.cluster, rig.plan, text, processes, Checkpoints::kOff);
  std::vector<i64> counts;
  i64 before = processes.count;
  trainer.run([&](const StepRecord& record) {
    counts.push_back(processes.count - before);
    before = processes.count;
    if (record.step != 2) return;
    for (DeviceState* state : trainer.session().states()) {
      for (const LogicalTensor& view : state->store().tensors()) {
        if (view.name == "lm_head.weight") view.value.mul_(factor);
      }
    }
  });
  return counts;
}

const std::vector<std::pair<std::string, std::string>> kAllFp16 = {{"plan.attention_dtype", "fp16"},
                                                                   {"plan.expert_dtype", "fp16"},
                                                                   {"plan.wire_dtype", "fp16"},
                                                                   {"train.on_nonfinite", "skip"}};

TEST(Trainer, OnlyAFaultAsksWhichParameterWasTheFirst) {
  const WorkFolder folder;
  TinyRun overflow(folder.path(), kAllFp16);
  EXPECT_EQ(questions(overflow, 200), std::vector<i64>(6, 0));
  TinyRun fault(folder.path(), kAllFp16);
  EXPECT_EQ(questions(fault, std::numeric_limits<double>::quiet_NaN()), (std::vector<i64>{0, 0, 1, 1, 1, 1}));
}

TEST(LossScale, AStepWhoseLossIsNotFiniteIsNoGoodStep) {
  const WorkFolder folder;
  TinyRun rig(folder.path(), kAllFp16);
  at::Tensor good;
  rig.run(Checkpoints::kOn, [&](Session& session, const StepRecord& record) {
    for (DeviceState* state : session.states()) {
      for (const LogicalTensor& view : state->store().tensors()) {
        if (view.name != "lm_head.weight") continue;
        if (record.step == 2) good = view.value.clone();
        if (record.step == 2) view.value.fill_(std::numeric_limits<double>::quiet_NaN());
        if (record.step == 3) view.value.copy_(good);
      }
    }
  });
  const std::vector<FoundCheckpoint> found = find_checkpoints(rig.checkpoints(), kIgnore);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].info.skipped, 1);
  EXPECT_EQ(found[0].info.loss_scale.value, LossScale::kFirst);
  EXPECT_EQ(found[0].info.loss_scale.good_steps, 5);
}

// --- runs that share a folder ---

TEST(NewRun, InAFolderWithCheckpointsOfAnotherKeepsItsOwn) {
  const WorkFolder folder;
  TinyRun(folder.path(), {{"train.steps", "10"}}).run();
  TinyRun rig(folder.path(), {{"checkpoint.resume", "false"}, {"train.steps", "5"}});
  const TinyRun::End end = rig.run();
  EXPECT_EQ(end.outcome.first_step, 0);
  EXPECT_EQ(rig.steps(), (std::vector<i64>{5, 4}));
  ASSERT_EQ(end.outcome.notes.size(), 1U);
  EXPECT_NE(end.outcome.notes[0].find("2 checkpoints of other runs are now in "), std::string::npos)
      << end.outcome.notes[0];
}

TEST(NewRun, ARestartOfItGoesOnFromItsOwnCheckpoints) {
  const WorkFolder folder;
  TinyRun(folder.path(), {{"train.steps", "10"}}).run();
  TinyRun rig(folder.path(), {{"checkpoint.resume", "false"}, {"train.steps", "5"}});
  rig.run();
  rig.job.checkpoint.resume = true;
  rig.job.train.steps = 8;
  const TinyRun::End restarted = rig.run();
  EXPECT_EQ(restarted.outcome.first_step, 5);
  EXPECT_EQ(restarted.outcome.records.size(), 3U);
}

/// As an earlier version left them, or a person who copied a folder.
TEST(NewRun, CheckpointsOfAnotherRunInTheSameFolderAreNotRemoved) {
  const WorkFolder folder, other;
  TinyRun foreign(other.path(), {{"train.steps", "2"}});
  foreign.run();
  TinyRun rig(folder.path());
  rig.run();
  fs::copy(foreign.checkpoints() / "step-00000002", rig.checkpoints() / "step-00000002",
           fs::copy_options::recursive);
  rig.job.train.steps = 8;
  rig.run();
  EXPECT_EQ(rig.steps(), (std::vector<i64>{8, 6, 2}));
}

// --- what is read ---

/// Bytes that this process has read from files so far.
i64 bytes_read() {
  std::ifstream in("/proc/self/io");
  for (std::string word; in >> word;) {
    i64 count = 0;
    if (word == "rchar:" && in >> count) return count;
  }
  return -1;
}

TEST(Checkpoint, AMasterIsReadOnce) {
  const WorkFolder folder;
  TinyRun rig(folder.path(), {{"plan.attention_dtype", "bf16"}, {"plan.expert_dtype", "bf16"}});
  rig.run();
  const FoundCheckpoint newest = find_checkpoints(rig.checkpoints(), kIgnore).at(0);
  // On one device nothing is replicated: every tensor is read once.
  TinyRun single(folder.path(), {{"strategy", "single"}, {"plan.attention_dtype", "bf16"}});
  Session session(single.model, single.cluster, single.plan, {});
  const i64 before = bytes_read();
  ASSERT_GE(before, 0);
  load_checkpoint(newest, single.model, session.states());
  const i64 optimizer = static_cast<i64>(fs::file_size(newest.path / "optimizer.safetensors"));
  EXPECT_LT(bytes_read() - before, optimizer + optimizer / 10);
}

}  // namespace
}  // namespace hetermoe
