#include "hetermoe/train/growing_job.h"

#include "hetermoe/train/grow_run.h"
#include "hetermoe/train/resume.h"
#include "tests/support/error_of.h"
#include "tests/train/tiny_run.h"

// Growth of experts in mid-run (grow).
namespace hetermoe {
namespace {

using Bits = std::map<std::string, at::Tensor>;

/// Eight steps; the model may grow after the fifth.
Job job_in(const WorkFolder& folder, const std::string& name, Settings more = {}) {
  std::string text;
  for (int i = 0; i < 6000; ++i) text += static_cast<char>('a' + i * i % 23);
  Settings all = in_fp64({{"model", "tiny"},
                          {"output", folder / name},
                          {"data.paths", folder.file("text.txt", text)},
                          {"train.seq_len", "8"},
                          {"train.sequences", "4"},
                          {"train.microbatches", "2"},
                          {"train.steps", "8"},
                          {"train.validation_sequences", "0"},
                          {"clock.threads", "1"},
                          {"checkpoint.every", "5"},
                          {"checkpoint.keep", "9"}});
  all.insert(all.end(), more.begin(), more.end());
  return job_from_overrides(all);
}
Settings growing(Settings more = {}) {
  more.insert(more.begin(), {"grow.at", "5"});
  return more;
}

TrainedJob train(const Job& job) {
  return train_job(job, {{job.strategy}, true, 0, Checkpoints::kOn, {}}, {}, Processes());
}

FoundCheckpoint checkpoint_of(const Job& job, i64 step) {
  for (const FoundCheckpoint& found : find_checkpoints(checkpoint_folder(job.output), kIgnore)) {
    if (found.info.step == step) return found;
  }
  throw InternalError("no checkpoint of this step");
}

/// Weights and moments after a step.
Bits bits_of(const Job& job, i64 step) {
  Bits out;
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const SafetensorsReader reader(checkpoint_of(job, step).path / file);
    for (const std::string& name : reader.names()) out[name] = reader.read(name);
  }
  return out;
}
void expect_same_bits(const Bits& a, const Bits& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

TEST(GrowingJob, InTheRunIsAsByCommandToTheBit) {
  const WorkFolder folder;
  const Job in_run = job_in(folder, "in_run", growing({{"grow.mode", "fixed_k"}}));
  const TrainedJob done = train(in_run);
  EXPECT_EQ(done.model.num_experts, 2 * load_model("tiny").num_experts);
  EXPECT_EQ(done.runs[0].outcome.records.size(), 8u);
  EXPECT_EQ(done.runs[0].outcome.first_step, 0);

  const Job source = job_in(folder, "source");
  train(source);
  const GrownRun grown =
      write_grown_run(checkpoint_of(source, 5), plan_growth(load_model("tiny"), {}), folder / "grown");
  const Job rest = load_job(grown.job.string(), {});
  EXPECT_EQ(train(rest).runs[0].outcome.first_step, 5);
  expect_same_bits(bits_of(in_run, 8), bits_of(rest, 8));
}

TEST(GrowingJob, ARunThatWasCutGoesOnToTheSameBits) {
  const WorkFolder folder;
  const Job whole =
      job_in(folder, "whole",
             growing({{"checkpoint.every", "2"}, {"grow.score", "gradient"}, {"grow.batches", "2"}}));
  train(whole);
  const Bits expected = bits_of(whole, 8);
  const auto goes_on_from = [&](i64 step) {
    for (const FoundCheckpoint& found : find_checkpoints(checkpoint_folder(whole.output), kIgnore)) {
      if (found.info.step > step) fs::remove_all(found.path);
    }
    const TrainedJob again = train(whole);
    EXPECT_EQ(again.runs[0].outcome.first_step, step);
    EXPECT_EQ(again.runs[0].outcome.records.size(), static_cast<std::size_t>(8 - step));
    expect_same_bits(bits_of(whole, 8), expected);
  };
  goes_on_from(6);  // it has grown
  goes_on_from(5);
  goes_on_from(4);  // it has not
}

TEST(GrowingJob, WideKKeepsTheLossesAndAnotherClusterMayFollow) {
  const WorkFolder folder;
  const Settings exact = {{"train.max_grad_norm", "0"}, {"train.adam_eps", "1e-30"}};
  const TrainedJob source = train(job_in(folder, "source", exact));
  Settings wide = exact;
  for (const auto& [key, value] : Settings{{"mode", "wide_k"}, {"noise", "0"}, {"cluster", "demo"}})
    wide.emplace_back("grow." + key, value);
  const TrainedJob grown = train(job_in(folder, "grown", growing(wide)));
  EXPECT_EQ(grown.cluster, "demo");
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_NEAR(grown.runs[0].outcome.records[i].loss, source.runs[0].outcome.records[i].loss, 1e-10) << i;
}

TEST(GrowingJob, WhatCannotBeIsToldBeforeTheFirstStep) {
  const WorkFolder folder;
  const auto expect = [&](Settings more, const std::string& part) {
    const std::string error =
        error_of<ConfigError>([&] { train(job_in(folder, "bad", growing(std::move(more)))); });
    EXPECT_NE(error.find(part), std::string::npos) << error;
    EXPECT_FALSE(fs::exists(folder / "bad")) << part;
  };
  expect({{"grow.at", "8"}}, "expected a step before the last one, 8");
  expect({{"checkpoint.every", "0"}}, "expected checkpoints");
  expect({{"grow.factor", "1"}}, "adds no experts");
  expect({{"grow.mode", "dormant"}}, "e_score_correction_bias");
  expect({{"grow.score", "load"}}, "is missing, expected a routing trace");
  expect({{"balancer.name", "lpt"}}, "about the old experts or the new ones");
  train(job_in(folder, "whole"));
  const std::string error = error_of<ConfigError>([&] { train(job_in(folder, "whole", growing())); });
  EXPECT_NE(error.find("is of step 8 and has not grown"), std::string::npos) << error;
}

/// Who grows by command what grew in its run does not grow twice at the same step.
TEST(GrowingJob, GrowthByCommandLeavesTheJobsOwnOut) {
  const WorkFolder folder;
  const Job job = job_in(folder, "run", growing());
  const ModelConfig model = train(job).model;
  const GrownRun again = write_grown_run(checkpoint_of(job, 8), plan_growth(model, {}), folder / "again");
  EXPECT_EQ(again.notes,
            std::vector<std::string>{"grow.at is left out of the job: it is about the old experts"});
  const TrainedJob done = train(load_job(again.job.string(), {{"train.steps", "9"}}));
  EXPECT_EQ(done.model.num_experts, 4 * load_model("tiny").num_experts);
  EXPECT_EQ(done.runs[0].outcome.records.size(), 1u);
}

}  // namespace
}  // namespace hetermoe
