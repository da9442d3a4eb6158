#include <gtest/gtest.h>

#include "hetermoe/train/run/train_job.h"
#include "tests/train/resumed_run.h"

// Runs whose gradients travel in 16 bits.
namespace hetermoe {
namespace {

Settings narrow_sums(Settings more) {
  more.push_back({"plan.wire_reduce", "bf16"});
  return more;
}
Settings with_feedback(Settings more) {
  more.push_back({"plan.error_feedback", "true"});
  return narrow_sums(std::move(more));
}

/// What was lost is in the checkpoint, of each device; else the steps after would have other bits.
TEST(WireReduceRun, WithFeedbackAResumedRunHasTheBitsOfOne) {
  for (const char* divides : {"false", "true"}) {
    const Settings settings = {{"strategy", "ep"}, {"plan.shard_optimizer", divides}};
    const TinyRun::End fed = expect_resumed_to_the_bit(with_feedback(settings)),
                       plain = expect_resumed_to_the_bit(narrow_sums(settings));
    bool differs = false;
    for (const auto& [name, value] : fed.values)
      differs = differs || !at::equal(value, plain.values.at(name));
    EXPECT_TRUE(differs) << "feedback changes something";
  }
}

TEST(WireReduceRun, EveryStepSaysWhatIsLost) {
  const WorkFolder folder;
  for (const bool narrow : {false, true}) {
    const Settings settings = {{"strategy", "ep"}, {"checkpoint.every", "0"}};
    TinyRun rig(folder.path(), narrow ? narrow_sums(settings) : settings);
    for (const StepRecord& record : rig.run(Checkpoints::kOff).outcome.records) {
      if (narrow) {
        EXPECT_GT(record.gradients_error, 1e-3);
        EXPECT_LT(record.gradients_error, 4e-3);
      } else {
        EXPECT_EQ(record.gradients_error, 0);
      }
      EXPECT_EQ(record.rows_error, 0);
    }
  }
}

TEST(WireReduceRun, RowsWithScalesSayWhatTheyLose) {
  const WorkFolder folder;
  TinyRun rig(folder.path(), {{"plan.wire_dtype", "fp8_row"}, {"checkpoint.every", "0"}});
  for (const StepRecord& record : rig.run(Checkpoints::kOff).outcome.records) {
    EXPECT_GT(record.rows_error, 0.01);
    EXPECT_LT(record.rows_error, 0.05);
  }
}

TEST(WireReduceRun, TheFirstLinesSayHowGradientsTravel) {
  const WorkFolder folder;
  TinyRun rig(folder.path(), with_feedback({{"train.steps", "1"}, {"checkpoint.every", "0"}}));
  std::string notes;
  JobRunOptions options;
  options.data = std::make_shared<const Dataset>(counting_data());
  options.hooks.on_note = [&](const std::string& note) { notes += note + "\n"; };
  train_job(rig.job, options, {}, Processes());
  EXPECT_NE(notes.find("gradients travel in bf16 to the device that sums them, which keeps"),
            std::string::npos)
      << notes;
}

}  // namespace
}  // namespace hetermoe
