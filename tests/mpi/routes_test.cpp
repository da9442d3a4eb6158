#include <gtest/gtest.h>

#include "hetermoe/routing/trace.h"
#include "hetermoe/train/run/trainer.h"
#include "tests/mpi/job.h"
#include "tests/support/counting_data.h"
#include "tests/support/work_folder.h"
#include "tests/train/tiny_run.h"

namespace hetermoe::testing {
namespace {

TEST(Mpi, RanksRecordTheTraceOfOneProcess) {
  const WorkFolder mine;
  const std::filesystem::path folder = job->gather(mine.path().string())[0];
  const auto run_of = [&](const std::string& name) {
    return TinyRun(folder / name, {{"plan.attention_dtype", "fp64"},
                                   {"plan.expert_dtype", "fp64"},
                                   {"plan.wire_dtype", "fp64"},
                                   {"strategy", "ep"},
                                   {"checkpoint.every", "0"},
                                   {"routing.record", (folder / (name + ".routes")).string()}});
  };
  TinyRun whole = run_of("whole");
  const Dataset text = counting_data();
  TinyRun part = run_of("part");
  Trainer(part.job, part.model, part.cluster, part.plan, text, *job).run();
  job->gather("");
  if (job->rank() == 0) {
    whole.run(Checkpoints::kOff);
    const RoutingTrace expected(folder / "whole.routes"), got(folder / "part.routes");
    ASSERT_EQ(got.steps(), expected.steps());
    EXPECT_EQ(got.header(), expected.header());
    EXPECT_TRUE(got.notes().empty());
    for (const i64 step : got.steps()) {
      EXPECT_EQ(got.read(step).choices, expected.read(step).choices) << step;
      EXPECT_EQ(got.read(step).sequences, expected.read(step).sequences) << step;
    }
    EXPECT_EQ(got.steps().size(), 6U);
  }
  job->gather("");
  // Replay: the trace of all ranks forces a run of all ranks, whose own record is the same.
  TinyRun replayed = run_of("replayed");
  replayed.job.routing.replay = (folder / "part.routes").string();
  const TrainOutcome out =
      Trainer(replayed.job, replayed.model, replayed.cluster, replayed.plan, text, *job).run();
  for (const StepRecord& record : out.records) EXPECT_EQ(record.replayed_choices, 1.0);
  job->gather("");
  if (job->rank() == 0) {
    const RoutingTrace expected(folder / "part.routes"), got(folder / "replayed.routes");
    for (const i64 step : got.steps()) EXPECT_EQ(got.read(step).choices, expected.read(step).choices) << step;
  }
  job->gather("");
}

}  // namespace
}  // namespace hetermoe::testing
