#include "hetermoe/train/job/epochs.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "hetermoe/data/sampler.h"
#include "hetermoe/train/job/job_data.h"
#include "hetermoe/train/run/compare.h"
#include "tests/support/conversations.h"
#include "tests/support/error_of.h"
#include "tests/train/tiny_run.h"

// How long a run is, and its learning rate.
namespace hetermoe {
namespace {

Settings text_settings(const WorkFolder& folder, i64 bytes) {
  std::string text;
  for (i64 i = 0; i < bytes; ++i) text += static_cast<char>('a' + i * 7 % 23);
  return {{"model", "tiny"}, {"data.paths", folder.file("text.txt", text)}, {"data.validation_share", "0"}};
}

/// Windows by how often the steps of the job draw them; the last step may draw some of the next epoch.
std::map<i64, i64> draws_of(const Job& job, const Dataset& data, i64 sequences) {
  const Sampler sampler(data, {job.train.seq_len, job.train.seed});
  std::map<i64, i64> out;
  for (i64 i = 0; i < sequences; ++i) ++out[sampler.draw(i).window];
  EXPECT_EQ(static_cast<i64>(out.size()), sampler.num_windows());
  return out;
}

TEST(Epochs, ReadEveryWindowSoOften) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 12; ++i) {
    const WorkFolder folder;
    const i64 seq_len = 4 + static_cast<i64>(random() % 60), sequences = 1 + static_cast<i64>(random() % 30);
    const i64 epochs = 1 + static_cast<i64>(random() % 3);
    Settings settings = text_settings(folder, 300 + static_cast<i64>(random() % 3000));
    if (i % 3 == 0)
      settings = {{"model", "tiny"},
                  {"data.paths", folder.file("x.jsonl", conversation_lines(90))},
                  {"data.template", "plain"},
                  {"data.validation_share", "0"}};
    settings.insert(settings.end(), {{"train.seq_len", std::to_string(i % 3 == 0 ? 48 : seq_len)},
                                     {"train.sequences", std::to_string(sequences)},
                                     {"train.epochs", std::to_string(epochs)}});
    const auto [job, data] = with_steps(job_from_overrides(settings));
    ASSERT_TRUE(data);
    EXPECT_FALSE(job.train.epochs);
    const i64 windows = (data->sources[0].train.size() - 1) / job.train.seq_len;
    EXPECT_GE(job.train.steps * sequences, epochs * windows);
    EXPECT_LT((job.train.steps - 1) * sequences, epochs * windows);
    for (const auto& [window, draws] : draws_of(job, *data, epochs * windows))
      EXPECT_EQ(draws, epochs) << window;
    EXPECT_GE(epochs_of(job.train, *data), static_cast<double>(epochs));
  }
}

TEST(Epochs, AResolvedJobNamesItsStepsAndIsReadAgain) {
  const WorkFolder folder;
  Settings settings = text_settings(folder, 801);
  settings.insert(settings.end(),
                  {{"train.seq_len", "8"}, {"train.sequences", "16"}, {"train.epochs", "1.5"}});
  const Job job = with_steps(job_from_overrides(settings)).job;
  EXPECT_EQ(job.train.steps, 10);  // 1.5 times 100 windows, 16 a step
  const Job again = parse_job(to_json(job).dump(), "job.json", {});
  EXPECT_EQ(again.train.steps, 10);
  EXPECT_FALSE(again.train.epochs);
  EXPECT_FALSE(with_steps(again).data);
  EXPECT_EQ(length_text(job.train, load_job_data(job)), "in 10 steps (1.6 epochs)");
}

TEST(Epochs, StepsOrEpochsButNotBoth) {
  const auto job = [](const std::string& yaml, const Settings& flags) { return parse_job(yaml, "j", flags); };
  const std::string both =
      "[train.epochs] got 2 beside train.steps 7, expected one of them: leave the other out";
  EXPECT_EQ(error_of<ConfigError>([&] { job("train: {steps: 7, epochs: 2}", {}); }), both);
  EXPECT_EQ(error_of<ConfigError>([&] {
              job("model: tiny", {{"train.steps", "7"}, {"train.epochs", "2"}});
            }),
            both);
  EXPECT_EQ(job("train: {steps: 7}", {{"train.epochs", "2"}}).train.epochs, 2);
  const Job steps = job("train: {epochs: 2}", {{"train.steps", "7"}});
  EXPECT_FALSE(steps.train.epochs);
  EXPECT_EQ(steps.train.steps, 7);
  for (const char* value : {"0", "-1", "1e7"}) {
    EXPECT_NE(error_of<ConfigError>([&] {
                job("model: tiny", {{"train.epochs", value}});
              }).find("[--train.epochs] out of range"),
              std::string::npos);
  }
}

/// Same text, same learning rates: of a run of two epochs, and of one that stopped in the second.
TEST(Epochs, AResumedRunGoesOnWhereItWas) {
  const WorkFolder folder;
  const auto run = [&](const std::string& output, i64 end_after) {
    Settings settings = text_settings(folder, 400);
    settings.insert(settings.end(), {{"train.seq_len", "8"},
                                     {"train.sequences", "16"},
                                     {"train.microbatches", "2"},
                                     {"train.epochs", "2"},
                                     {"train.schedule", "wsd"},
                                     {"train.warmup_steps", "2"},
                                     {"train.decay_steps", "4"},
                                     {"train.validation_sequences", "0"},
                                     {"clock.kind", "virtual"},
                                     {"checkpoint.every", "2"},
                                     {"clock.threads", "1"},
                                     {"output", output}});
    const JobOfSteps of_steps = with_steps(job_from_overrides(settings));
    EXPECT_EQ(of_steps.job.train.steps, 7);  // twice 49 windows, 16 a step
    return compare_job(of_steps.job, {"zebra"},
                       {.checkpoints = Checkpoints::kOn, .end_after = end_after, .data = of_steps.data})
        .at(0)
        .outcome;
  };
  const TrainOutcome whole = run(folder / "whole", 0), first = run(folder / "parts", 5);
  const TrainOutcome rest = run(folder / "parts", 0);
  EXPECT_EQ(rest.first_step, 5);
  std::vector<StepRecord> parts = first.records;
  parts.insert(parts.end(), rest.records.begin(), rest.records.end());
  ASSERT_EQ(parts.size(), whole.records.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].tokens_hash, whole.records[i].tokens_hash);
    EXPECT_EQ(parts[i].learning_rate, whole.records[i].learning_rate);
    EXPECT_EQ(parts[i].loss, whole.records[i].loss);
  }
  EXPECT_EQ(parts[2].learning_rate, 1e-3);
  EXPECT_LT(parts[6].learning_rate, parts[5].learning_rate);
}

TEST(RateOptions, WhatDoesNotFitIsRefused) {
  const auto error = [](Settings settings) {
    settings.insert(settings.begin(), {{"model", "tiny"}, {"train.steps", "20"}});
    return error_of<ConfigError>([&] { learning_rate_of(job_from_overrides(settings).train); });
  };
  EXPECT_EQ(error({{"train.min_lr", "0.1"}}),
            "[train.min_lr] got 0.1, expected at most the peak, 0.001 (train.learning_rate)");
  EXPECT_EQ(error({{"train.schedule", "constant"}, {"train.min_lr", "0"}}),
            "[train.min_lr] got 0 with train.schedule constant, which never falls: leave it out");
  EXPECT_EQ(error({{"train.decay_steps", "3"}}),
            "[train.decay_steps] got 3 with train.schedule cosine, expected wsd or none");
  EXPECT_EQ(error({{"train.schedule", "wsd"}, {"train.decay_steps", "11"}}),
            "[train.decay_steps] got 11, expected at most 10, the steps after the warm-up (train.steps 20, "
            "train.warmup_steps 10)");
  EXPECT_NE(error({{"train.schedule", "polynomial"}}).find("unknown value \"polynomial\""),
            std::string::npos);
}

TEST(RateOptions, SharesAndRatesSayTheSame) {
  const auto rate = [](Settings settings) {
    settings.insert(settings.begin(), {{"model", "tiny"}, {"train.steps", "200"}, {"train.schedule", "wsd"}});
    return learning_rate_of(job_from_overrides(settings).train);
  };
  EXPECT_EQ(rate({}).decay_steps, 20);
  EXPECT_EQ(rate({}).lowest, 1e-4);
  EXPECT_EQ(rate({{"train.min_lr", "3e-4"}}).lowest, 3e-4);
  EXPECT_EQ(rate({{"train.decay_share", "1"}}).decay_steps, 190);
  EXPECT_EQ(rate({{"train.decay_steps", "7"}, {"train.decay", "1-sqrt"}}).decay_steps, 7);
}

}  // namespace
}  // namespace hetermoe
