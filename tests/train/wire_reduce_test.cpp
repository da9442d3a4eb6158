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
  for (const auto& [rows, gradients] : {std::pair{"fp8_row", "fp8_row"},
                                        {"fp8_row", "fp8_group"},
                                        {"fp8_group", "bf16"},
                                        {"fp32", "fp8_group"}}) {
    const WorkFolder folder;
    TinyRun rig(folder.path(), {{"plan.wire_dtype", rows},
                                {"plan.wire_backward", gradients},
                                {"train.steps", "2"},
                                {"checkpoint.every", "0"}});
    for (const StepRecord& record : rig.run(Checkpoints::kOff).outcome.records) {
      EXPECT_GT(record.rows_error, 0.01) << rows << gradients;
      EXPECT_LT(record.rows_error, 0.05) << rows << gradients;
    }
  }
}

TEST(WireReduceRun, TheFirstLinesSayHowRowsAndGradientsTravel) {
  const WorkFolder folder;
  TinyRun rig(folder.path(), with_feedback({{"train.steps", "1"},
                                            {"checkpoint.every", "0"},
                                            {"plan.wire_dtype", "fp8_row"},
                                            {"plan.wire_backward", "fp8_group"}}));
  std::string notes;
  JobRunOptions options;
  options.data = std::make_shared<const Dataset>(counting_data());
  options.hooks.on_note = [&](const std::string& note) { notes += note + "\n"; };
  train_job(rig.job, options, {}, Processes());
  EXPECT_NE(notes.find("gradients travel in bf16 to the device that sums them, which keeps"),
            std::string::npos)
      << notes;
  EXPECT_NE(notes.find("rows of experts and their gradients travel in fp8_row and fp8_group, rows between "
                       "other parts in bf16"),
            std::string::npos)
      << notes;
}

}  // namespace
}  // namespace hetermoe
