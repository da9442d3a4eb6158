#include <gtest/gtest.h>

#include <numeric>

#include "hetermoe/model/op_cost.h"
#include "hetermoe/report/run_page.h"
#include "hetermoe/train/growth/growing_job.h"
#include "tests/train/tiny_run.h"

// What a run leaves while it goes on, and what its page makes of that.
namespace hetermoe {
namespace {

class RunFilesTest : public ::testing::Test {
 protected:
  /// Eight steps, of which 3 and 6 and the last are validated.
  Job job(Settings more = {}) const {
    std::string text;
    for (int i = 0; i < 6000; ++i) text += static_cast<char>('a' + i * i % 23);
    Settings all = {{"model", "tiny"},
                    {"cluster", "demo"},
                    {"output", folder_ / "run"},
                    {"data.paths", folder_.file("a.txt", text) + "," + folder_.file("b.txt", text + "xyz")},
                    {"data.weights", "1,1"},
                    {"train.seq_len", "8"},
                    {"train.sequences", "4"},
                    {"train.microbatches", "2"},
                    {"train.steps", "8"},
                    {"train.validate_every", "3"},
                    {"train.validation_sequences", "4"},
                    {"clock.kind", "virtual"},
                    {"clock.threads", "1"},
                    {"checkpoint.every", "4"}};
    all.insert(all.end(), more.begin(), more.end());
    return job_from_overrides(all);
  }
  StrategyRun train(const Job& job, const std::function<void(const StepRecord&)>& on_step = {}) const {
    const auto hear = [&](const std::string&, const StepRecord& record) {
      if (on_step) on_step(record);
    };
    const JobRunOptions how{.checkpoints = Checkpoints::kOn};
    const TrainedJob done =
        grows(job) ? train_growing_job(job, how, hear, Processes()) : train_job(job, how, hear, Processes());
    return done.runs.at(0);
  }
  std::vector<Json> metrics() const {
    std::vector<Json> lines;
    std::ifstream in(folder_ / "run/metrics.jsonl");
    for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  WorkFolder folder_;
};

// Claim (RunFilesTest.*, GrowingJob.TheHeatMapSaysFromWhichStepItCounts): a run that went on, grew or was
// killed has its whole page
TEST_F(RunFilesTest, UtilisationIsThatOfTheModelsFlops) {
  const Job job = this->job();
  const StrategyRun run = train(job);
  const Cluster cluster = load_cluster(job.cluster);
  const ModelConfig model = load_model(job.model);
  const double tokens = real(job.train.sequences * job.train.seq_len);
  ASSERT_EQ(run.outcome.records.size(), 8u);
  for (const StepRecord& record : run.outcome.records) {
    ASSERT_EQ(record.mfu.size(), 2u);
    double flops = 0;  // of all devices, whose fp16 is emulated
    for (const Device& device : cluster.devices) {
      const DeviceType& type = cluster.types[idx(device.type)];
      flops += record.mfu.at(type.name) * type.peak(Dtype::kFp16) * record.step_s;
    }
    EXPECT_NEAR(flops / (training_flops_per_token(model, job.train.seq_len) * tokens), 1, 1e-9);
  }
}

TEST_F(RunFilesTest, MemoryOfEachDeviceIsMeasuredBesideWhatIsPredicted) {
  const StrategyRun run = train(job());
  const std::map<std::string, Bytes>& measured = run.outcome.records.back().memory;
  ASSERT_EQ(measured.size(), 4u);
  for (std::size_t d = 0; d < 4; ++d) {
    const Bytes got = measured.at(run.predicted.timeline.devices[d].name);
    EXPECT_NEAR(got / run.predicted.memory[d].use.total(), 1, 0.2) << d << ": " << got;
  }
}

TEST_F(RunFilesTest, ARunThatWentOnHasOneCurve) {
  train(job({{"train.steps", "4"}}));
  train(job());
  const std::vector<Json> lines = metrics();
  ASSERT_EQ(lines.size(), 8u);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].at("step"), i + 1);
    EXPECT_EQ(lines[i].contains("marks"), i == 4) << lines[i];
  }
  EXPECT_EQ(lines[4].at("marks").at(0), "the run went on from a checkpoint");
  const ReportInput page = run_page(folder_ / "run");
  ASSERT_EQ(page.losses.size(), 1u);
  ASSERT_EQ(page.losses[0].runs.size(), 3u);  // the run, and validation of each source
  EXPECT_EQ(page.losses[0].runs[0].train.size(), 8u);
  EXPECT_EQ(page.losses[0].runs[0].validation.size(), 4u);  // after 3, 4, 6 and 8
  EXPECT_EQ(page.losses[0].runs[1].validation.size(), 4u);
  EXPECT_EQ(page.losses[0].runs[2].name, "b.txt");
  ASSERT_EQ(page.losses[0].marks.size(), 1u);
  EXPECT_EQ(page.losses[0].marks[0].step, 5);
  ASSERT_EQ(page.events.size(), 1u);
}

TEST_F(RunFilesTest, AKilledRunHasItsPageAllTheSame) {
  struct Killed {};
  EXPECT_THROW(train(job(),
                     [&](const StepRecord& record) {
                       if (record.step == 3) throw Killed();
                     }),
               Killed);
  EXPECT_FALSE(fs::exists(folder_ / "run/report.html"));
  const ReportInput page = run_page(folder_ / "run");
  ASSERT_EQ(page.strategies.size(), 1u);
  const StrategyReport& strategy = page.strategies[0];
  EXPECT_TRUE(strategy.plan && strategy.simulated && strategy.executed);
  EXPECT_EQ(strategy.memory.size(), 4u);
  EXPECT_GT(strategy.memory[0].measured, 0);
  EXPECT_EQ(page.losses.at(0).runs.at(0).train.size(), 3u);
  EXPECT_EQ(page.expert_loads.size(), 1u);
  EXPECT_EQ(page.title, "hetermoe: tiny on demo");
}

TEST_F(RunFilesTest, WhatChangesInARunIsMarked) {
  train(job({{"grow.at", "4"}}));
  std::vector<std::string> marks;
  for (const Json& line : metrics()) {
    for (const Json& mark : line.value("marks", Json::array()))
      marks.push_back(fmt::format("{}: {}", line.at("step").get<i64>(), mark.get<std::string>()));
  }
  ASSERT_EQ(marks.size(), 1u);
  EXPECT_EQ(marks[0].substr(0, 3), "5: ");
  EXPECT_NE(marks[0].find(" experts, "), std::string::npos) << marks[0];
  const ReportInput page = run_page(folder_ / "run");
  EXPECT_EQ(page.losses.at(0).runs.at(0).train.size(), 8u);
  ASSERT_EQ(page.expert_loads.size(), 2u);  // before the growth and after it
  const ExpertLoad &before = page.expert_loads[0], &after = page.expert_loads[1];
  EXPECT_NE(before.title.find("steps 1 to 4"), std::string::npos) << before.title;
  ASSERT_EQ(after.families.size(), before.copies.size());
  for (std::size_t e = 0; e < before.copies[0].size(); ++e) {
    EXPECT_GT(before.copies[0][e], 0);
    EXPECT_EQ(std::count(after.families[0].begin(), after.families[0].end(), static_cast<i64>(e)), 2);
  }
}

TEST_F(RunFilesTest, ARunThatBeginsAnewHasNoGrowthOfAnother) {
  train(job({{"grow.at", "4"}}));
  train(job({{"checkpoint.resume", "false"}}));
  EXPECT_EQ(run_page(folder_ / "run").expert_loads.size(), 1u);
}

}  // namespace
}  // namespace hetermoe
