#include <gtest/gtest.h>

#include "hetermoe/train/growth/growing_job.h"
#include "tests/mpi/job.h"
#include "tests/support/work_folder.h"
#include "tests/train/tiny_run.h"

namespace hetermoe::testing {
namespace {

/// Rank 0 grows the checkpoint that all ranks wrote, and all go on from it.
TEST(Mpi, RanksGrowLikeOneProcess) {
  const WorkFolder mine;
  const std::filesystem::path folder = job->gather(mine.path().string())[0];
  if (job->rank() == 0) {
    std::string text;
    for (int i = 0; i < 6000; ++i) text += static_cast<char>('a' + i * i % 23);
    write_text(folder / "text.txt", text);
  }
  job->gather("");
  const auto losses_of = [&](const std::string& name, const Settings& grow, const Processes& processes) {
    Settings all = in_fp64({{"model", "tiny"},
                            {"output", (folder / name).string()},
                            {"data.paths", (folder / "text.txt").string()},
                            {"train.seq_len", "8"},
                            {"train.sequences", "4"},
                            {"train.microbatches", "2"},
                            {"train.steps", "6"},
                            {"train.validation_sequences", "0"},
                            {"clock.threads", "1"},
                            {"checkpoint.every", "3"},
                            {"grow.at", "3"}});
    all.insert(all.end(), grow.begin(), grow.end());
    const Job run = job_from_overrides(all);
    std::vector<double> losses;
    const TrainedJob done = train_growing_job(
        run, {.checkpoints = Checkpoints::kOn},
        [&](const std::string&, const StepRecord& record) { losses.push_back(record.loss); }, processes);
    EXPECT_EQ(done.model.num_experts, 2 * load_model("tiny").num_experts);
    EXPECT_EQ(losses.size(), 6u);
    return losses;
  };
  const Settings narrowing = {{"grow.mode", "wide_k"}, {"grow.narrow_to", "2"}, {"grow.narrow_every", "1"}};
  for (const auto& [name, grow] : std::map<std::string, Settings>{{"grown", {}}, {"narrow", narrowing}}) {
    const std::vector<double> got = losses_of(name + "-together", grow, *job);
    if (job->rank() == 0) {
      EXPECT_EQ(got, losses_of(name + "-alone", grow, Processes())) << name;
    }
    job->gather("");
  }
}

}  // namespace
}  // namespace hetermoe::testing
