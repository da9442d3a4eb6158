#include <gtest/gtest.h>

#include "hetermoe/plan/offload.h"
#include "hetermoe/train/session/changes.h"
#include "tests/support/strategy_plans.h"
#include "tests/train/tiny_run.h"

// Runs without master copies, and with moments in 16 bits.
namespace hetermoe {
namespace {

const Settings kBf16 = {
    {"plan.attention_dtype", "bf16"}, {"plan.expert_dtype", "bf16"}, {"train.learning_rate", "0.01"}};
const Settings kNarrow = {{"plan.master", "none"}, {"plan.moments_dtype", "bf16"}};

Settings with(Settings all, const Settings& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(OptimizerDtypesRun, AResumedRunHasEqualBits) {
  const WorkFolder whole_folder, cut_folder;
  const TensorsByName whole = TinyRun(whole_folder.path(), with(kBf16, kNarrow)).run().values;
  TinyRun(cut_folder.path(), with(with(kBf16, kNarrow), {{"train.steps", "4"}})).run();
  TinyRun rest(cut_folder.path(), with(kBf16, kNarrow));
  EXPECT_EQ(rest.steps().front(), 4);
  expect_equal(rest.run().values, whole);
}

TEST(OptimizerDtypesRun, ARunMayGoOnWithMasters) {
  const WorkFolder folder;
  TinyRun(folder.path(), with(with(kBf16, kNarrow), {{"train.steps", "4"}})).run();
  const TinyRun::End end = TinyRun(folder.path(), kBf16).run();
  EXPECT_EQ(end.outcome.records.size(), 2);
}

/// Of parameters alone: bytes that all devices keep.
i64 bytes_of(const Settings& settings, Residence optimizer = Residence::kDevice) {
  const WorkFolder folder;
  TinyRun run(folder.path(), settings);
  if (optimizer == Residence::kHost) offload(run.plan, run.model, run.cluster, {"optimizer"}, "test");
  Session session(run.model, run.cluster, run.plan, {});
  i64 bytes = 0;
  for (DeviceState* state : session.states()) bytes += state->store().bytes();
  return bytes;
}

TEST(OptimizerDtypesRun, MemoryIsWhatThePredictionSays) {
  const double all = static_cast<double>(bytes_of(kBf16));
  EXPECT_NEAR(static_cast<double>(bytes_of(with(kBf16, {{"plan.master", "none"}}))) / all, 14.0 / 18, 0.01);
  EXPECT_NEAR(static_cast<double>(bytes_of(with(kBf16, kNarrow))) / all, 10.0 / 18, 0.01);
  EXPECT_NEAR(static_cast<double>(bytes_of(with(kBf16, {{"plan.moments_dtype", "bf16"}}))) / all, 14.0 / 18,
              0.01);
}

TEST(OptimizerDtypesRun, APlanKeepsItsDtypes) {
  const WorkFolder folder;
  const TinyRun wide(folder.path(), kBf16), narrow(folder.path(), with(kBf16, kNarrow));
  EXPECT_FALSE(hindrance(wide.plan, wide.plan, wide.model));
  EXPECT_NE(hindrance(wide.plan, narrow.plan, wide.model).value_or("").find("an optimizer keeps its dtypes"),
            std::string::npos);
}

TEST(OptimizerDtypesRun, OtherDtypesAreRefused) {
  const WorkFolder folder;
  const auto error = [&](const Settings& settings) {
    try {
      TinyRun run(folder.path(), settings);
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(error({{"plan.master", "none"}}).find("[master] got none, but device 0 has parameters in fp32"),
            std::string::npos);
  EXPECT_NE(error({{"plan.moments_dtype", "fp16"}}).find("[moments_dtype] got fp16, expected fp32 or bf16"),
            std::string::npos);
  EXPECT_NE(error(in_fp64({{"plan.moments_dtype", "bf16"}})).find("has parameters in fp64"),
            std::string::npos);
}

}  // namespace
}  // namespace hetermoe
