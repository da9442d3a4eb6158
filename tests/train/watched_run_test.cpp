#include <gtest/gtest.h>

#include <limits>

#include "tests/support/error_of.h"
#include "tests/train/tiny_run.h"

// What a run does when its own numbers go wrong.
namespace hetermoe {
namespace {

/// Values, moments and masters of all devices.
std::vector<at::Tensor> everything(Session& session) {
  std::vector<at::Tensor> all;
  for (DeviceState* state : session.states()) {
    for (const LogicalTensor& tensor : state->store().tensors()) {
      for (const at::Tensor& part : {tensor.value, tensor.exp_avg, tensor.exp_avg_sq}) {
        if (part.defined()) all.push_back(part.clone());
      }
    }
  }
  return all;
}

/// Multiplies a parameter by `factor` on every device that holds it.
void scale(Session& session, const std::string& name, double factor) {
  for (DeviceState* state : session.states()) {
    for (const LogicalTensor& view : state->store().tensors()) {
      if (view.name == name) view.value.mul_(factor);
    }
  }
}

void put(Session& session, const std::string& name, const at::Tensor& value) {
  for (DeviceState* state : session.states()) {
    for (const LogicalTensor& view : state->store().tensors()) {
      if (view.name == name) view.value.copy_(value);
    }
  }
}

constexpr const char* kParameter = "model.layers.1.self_attn.q_proj.weight";

/// In step 3, and in no other, a weight is NaN.
std::function<void(Session&, const StepRecord&)> nan_in_step_3(at::Tensor& good) {
  return [&good](Session& session, const StepRecord& record) {
    if (record.step == 2) {
      good = session.values().at(kParameter);
      scale(session, kParameter, std::numeric_limits<double>::quiet_NaN());
    } else if (record.step == 3) {
      put(session, kParameter, good);
    }
  };
}

TEST(Nonfinite, StopNamesStepAndFirstParameterOfTheBackwardPass) {
  const WorkFolder folder;
  at::Tensor good;
  const std::string error =
      error_of<InputError>([&] { TinyRun(folder.path()).run(Checkpoints::kOff, nan_in_step_3(good)); });
  EXPECT_NE(error.find("nan: in the backward pass lm_head.weight is the first that is not finite"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("[step 3] loss "), std::string::npos) << error;
}

TEST(Nonfinite, ASkippedStepLeavesWeightsAndMomentsUntouchedAndIsCounted) {
  const WorkFolder folder;
  at::Tensor good;
  std::vector<at::Tensor> before, after;
  const auto poison = nan_in_step_3(good);
  const TinyRun::End end = TinyRun(folder.path(), {{"train.on_nonfinite", "skip"}})
                               .run(Checkpoints::kOff, [&](Session& session, const StepRecord& record) {
                                 if (record.step == 2) before = everything(session);
                                 poison(session, record);
                                 if (record.step == 3) after = everything(session);
                               });
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i])) << i;
  ASSERT_EQ(end.outcome.records.size(), 6U);
  for (const StepRecord& record : end.outcome.records) EXPECT_EQ(record.updated, record.step != 3);
  EXPECT_EQ(end.outcome.skipped_steps, 1);
  ASSERT_EQ(end.outcome.warnings.size(), 1U);
  EXPECT_NE(end.outcome.warnings[0].find("step 3: loss "), std::string::npos) << end.outcome.warnings[0];
}

TEST(Nonfinite, ARunWithASkippedStepResumesToTheSameBits) {
  const WorkFolder folder;
  at::Tensor good;
  TinyRun rig(folder.path(), {{"train.on_nonfinite", "skip"}});
  const TinyRun::End whole = rig.run(Checkpoints::kOn, nan_in_step_3(good));
  fs::remove_all(rig.checkpoints() / "step-00000006");
  const TinyRun::End resumed = rig.run();
  EXPECT_EQ(resumed.outcome.first_step, 4);
  EXPECT_EQ(resumed.outcome.skipped_steps, 1);
  expect_equal(resumed.values, whole.values);
}

TEST(Nonfinite, TooManySkippedStepsInARowStopTheRun) {
  const WorkFolder folder;
  TinyRun rig(folder.path(), {{"train.on_nonfinite", "skip"}, {"train.max_skipped", "2"}});
  const std::string error = error_of<InputError>([&] {
    rig.run(Checkpoints::kOff, [](Session& session, const StepRecord& record) {
      if (record.step == 1) scale(session, kParameter, std::numeric_limits<double>::infinity());
    });
  });
  EXPECT_NE(error.find("[step 4] loss "), std::string::npos) << error;
  EXPECT_NE(error.find("This is step 3 in a row: train.max_skipped allows 2."), std::string::npos) << error;
}

const Settings kLong = {{"train.steps", "24"}, {"clock.kind", "virtual"}, {"checkpoint.every", "0"}};

TEST(Watch, ASlowDeviceIsNamedOnce) {
  const WorkFolder folder;
  TinyRun rig(folder.path(), kLong);
  rig.cluster.devices[3].speed = 0.7;
  const std::vector<std::string> warnings = rig.run(Checkpoints::kOff).outcome.warnings;
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("step 8: device 3 (V100/1000#3) is slow: its ops take "), std::string::npos)
      << warnings[0];
}

TEST(Watch, DevicesThatAreAlikeAreNotNamedHoweverUnevenTheirLoad) {
  const WorkFolder folder;
  // One attention device gets three times the sequences of the other.
  Settings uneven = kLong;
  uneven.insert(uneven.end(), {{"plan.attention", "0,1"},
                               {"plan.experts", "2,3"},
                               {"plan.attention_weights", "3,1"},
                               {"plan.expert_weights", "3,1"}});
  EXPECT_TRUE(TinyRun(folder.path(), uneven).run(Checkpoints::kOff).outcome.warnings.empty());
}

TEST(Watch, AJumpOfTheLossIsToldOnce) {
  const WorkFolder folder;
  const std::vector<std::string> warnings = TinyRun(folder.path(), kLong)
                                                .run(Checkpoints::kOff,
                                                     [](Session& session, const StepRecord& record) {
                                                       if (record.step == 20)
                                                         scale(session, "lm_head.weight", 40);
                                                     })
                                                .outcome.warnings;
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("step 21: the loss jumped to "), std::string::npos) << warnings[0];
}

}  // namespace
}  // namespace hetermoe
