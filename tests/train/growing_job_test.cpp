#include "hetermoe/train/growth/growing_job.h"

#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/nn/reference.h"
#include "hetermoe/report/run_page.h"
#include "hetermoe/train/checkpoint/resume.h"
#include "hetermoe/train/growth/grow_run.h"
#include "hetermoe/train/growth/growth_scores.h"
#include "hetermoe/train/run/results.h"
#include "hetermoe/train/session/batch.h"
#include "tests/support/error_of.h"
#include "tests/train/tiny_run.h"

// Growth of experts in mid-run (grow).
namespace hetermoe {
namespace {

using JobBits = std::map<std::string, at::Tensor>;

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
  const JobRunOptions how{.checkpoints = Checkpoints::kOn};
  return grows(job) ? train_growing_job(job, how, {}, Processes()) : train_job(job, how, {}, Processes());
}

FoundCheckpoint checkpoint_of(const Job& job, i64 step) {
  for (const FoundCheckpoint& found : find_checkpoints(checkpoint_folder(job.output), kIgnore)) {
    if (found.info.step == step) return found;
  }
  throw InternalError("no checkpoint of this step");
}

/// Weights and moments after a step.
JobBits bits_of(const Job& job, i64 step) {
  JobBits out;
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const SafetensorsReader reader(checkpoint_of(job, step).path / file);
    for (const std::string& name : reader.names()) out[name] = reader.read(name);
  }
  return out;
}
void expect_same_bits(const JobBits& a, const JobBits& b) {
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
  const JobBits expected = bits_of(whole, 8);
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

/// Growth after step 3; top-k is 4 then, 3 after step 4 and 2 after step 5.
Settings narrowing(Settings more = {}) {
  more.insert(more.begin(), {{"grow.at", "3"},
                             {"grow.mode", "wide_k"},
                             {"grow.narrow_to", "2"},
                             {"grow.narrow_every", "1"},
                             {"checkpoint.every", "1"}});
  return more;
}

// Claim (GrowingJob.TopKFalls*, GrowingJob.TheNarrowerStep*, GrowingJob.ARunThatIsCutWhileItNarrows*,
// GrowingJob.ACutBeforeTheCheckpointIsRewritten*): top-k falls by one expert at a time: each step is the
// reference's with that top-k, and a cut changes no bit
TEST(GrowingJob, TopKFallsByOneExpertAtATime) {
  const WorkFolder folder;
  const Job job = job_in(folder, "run", narrowing());
  const TrainedJob done = train(job);
  std::vector<i64> seen;
  for (const StepRecord& record : done.runs[0].outcome.records) seen.push_back(record.top_k);
  EXPECT_EQ(seen, (std::vector<i64>{2, 2, 2, 4, 3, 2, 2, 2}));
  const ModelConfig source = load_model("tiny");
  const auto model_at = [&](i64 step) { return load_model(checkpoint_of(job, step).path.string()); };
  EXPECT_EQ(model_at(3).top_k, 4);  // a checkpoint has the model that goes on from it
  EXPECT_EQ(model_at(4).top_k, 3);
  EXPECT_EQ(model_at(8).top_k, 2);
  EXPECT_EQ(model_at(8).aux_loss_coef, source.aux_loss_coef);
  EXPECT_NEAR(model_at(4).aux_loss_coef, source.aux_loss_coef * 2 / 3, 1e-15);
  EXPECT_EQ(done.model.top_k, 2);
  const std::vector<std::string>& notes = done.runs[0].outcome.notes;
  const auto told = [&](const std::string& part) {
    return std::any_of(notes.begin(), notes.end(),
                       [&](const std::string& note) { return note.find(part) != std::string::npos; });
  };
  EXPECT_TRUE(told("step 5: a token sees 3 experts, 4 before"));
  EXPECT_TRUE(told("step 6: a token sees 2 experts, 3 before"));
}

/// Steps of fewer experts are not counted with those of the grown ones, those of another top-k are.
TEST(GrowingJob, TheHeatMapSaysFromWhichStepItCounts) {
  const WorkFolder folder;
  const Job job = job_in(folder, "run", narrowing());
  const TrainedJob done = train(job);
  write_results(job, done.model, load_cluster(done.cluster), done.runs);
  const ReportInput page = run_page(job.output);
  ASSERT_EQ(page.expert_loads.size(), 2u);
  const ExpertLoad &before = page.expert_loads[0], &after = page.expert_loads[1];
  EXPECT_NE(before.title.find("steps 1 to 3"), std::string::npos) << before.title;
  for (const std::vector<double>& copies : before.copies)
    EXPECT_EQ(std::accumulate(copies.begin(), copies.end(), 0.0), 32 * 2 * 3);
  EXPECT_NE(after.title.find("steps 4 to 8;"), std::string::npos) << after.title;
  for (const std::vector<double>& copies : after.copies)
    EXPECT_EQ(std::accumulate(copies.begin(), copies.end(), 0.0), 32 * (4 + 3 + 2 + 2 + 2));
}

TensorsByName weights_of(const FoundCheckpoint& checkpoint) {
  TensorsByName out;
  const SafetensorsReader reader(checkpoint.path / "model.safetensors");
  for (const std::string& name : reader.names()) out[name] = reader.read(name);
  return out;
}

/// The single-device reference on batch `batch` after a checkpoint, with its weights.
ReferenceResult reference_of(const Job& job, const FoundCheckpoint& from, const ModelConfig& model,
                             i64 batch) {
  const Dataset data = load_dataset(job.data, job.train.seq_len);
  const Sampler sampler(data, {job.train.seq_len, job.train.seed});
  const i64 first = from.info.sequences + batch * job.train.sequences;
  const StepInput input = input_of(sampler.batch(first, job.train.sequences, model.vocab));
  return reference_step(model, weights_of(from), input.tokens, input.targets,
                        {job.train.aux_group, job.train.aux_per_layer});
}

/// The step after a fall is that of the reference with the narrower model on the same weights.
TEST(GrowingJob, TheNarrowerStepIsThatOfTheReference) {
  const WorkFolder folder;
  const Job job = job_in(folder, "run", narrowing());
  const TrainedJob done = train(job);
  for (const i64 step : {3, 4, 5}) {
    const FoundCheckpoint from = checkpoint_of(job, step);
    const ReferenceResult expected = reference_of(job, from, load_model(from.path.string()), 0);
    const StepRecord& got = done.runs[0].outcome.records[static_cast<std::size_t>(step)];
    EXPECT_NEAR(got.loss, expected.loss - expected.aux_loss, 1e-10) << step;
    EXPECT_NEAR(got.aux_loss, expected.aux_loss, 1e-10) << step;
  }
}

/// Squared norms over all matrices of each expert of the mean gradient, and what the other scores make of it.
// Claim (GrowingJob.ScoresByGradients*): scores by gradients, saliency and Fisher are those of the
// reference's mean gradient over the same batches
TEST(GrowingJob, ScoresByGradientsAreThoseOfTheReference) {
  const WorkFolder folder;
  const Job job = job_in(folder, "run");
  train(job);
  const ModelConfig model = load_model("tiny");
  const FoundCheckpoint from = checkpoint_of(job, 5);
  constexpr i64 kBatches = 3;
  std::vector<TensorsByName> gradients;
  for (i64 b = 0; b < kBatches; ++b) gradients.push_back(reference_of(job, from, model, b).grads);
  const TensorsByName weights = weights_of(from);
  const SafetensorsReader moments(from.path / "optimizer.safetensors");
  const auto total = [](const at::Tensor& x) { return x.to(at::kDouble).sum().item<double>(); };
  std::map<std::pair<i64, ExpertId>, std::array<double, 4>> sums;  // gradient, weight, moment, numbers
  for (const ParamInfo& p : parameters(model)) {
    if (p.expert < 0) continue;
    at::Tensor mean = gradients[0].at(p.name) / kBatches;
    for (i64 b = 1; b < kBatches; ++b)
      mean = mean + gradients[static_cast<std::size_t>(b)].at(p.name) / kBatches;
    std::array<double, 4>& sum = sums[{p.layer, p.expert}];
    sum[0] += total(mean.square()), sum[1] += total(weights.at(p.name).square());
    sum[2] += total(moments.read(p.name + ".exp_avg_sq")), sum[3] += real(p.numel());
  }
  const GrowthSource source{.model = model, .weights = from.path, .checkpoint = from};
  const auto scores = [&](GrowthScore score) {
    return growth_scores({score}, source,
                         [&] { return GrowthData(job, model, from.info.sequences, kBatches); });
  };
  const ExpertScores gradient = scores(GrowthScore::kGradient), saliency = scores(GrowthScore::kSaliency),
                     fisher = scores(GrowthScore::kFisher);
  for (const auto& [expert, sum] : sums) {
    const auto of = [&, at = expert](const ExpertScores& all) {
      return all[static_cast<std::size_t>(at.first)][static_cast<std::size_t>(at.second)];
    };
    EXPECT_NEAR(of(gradient) / sum[0], 1, 1e-9);
    EXPECT_NEAR(of(saliency) / std::sqrt(sum[0] * sum[1]), 1, 1e-9);
    EXPECT_NEAR(of(fisher) / (sum[0] * sum[3] / sum[2]), 1, 1e-9);
  }
}

TEST(GrowingJob, ARunThatIsCutWhileItNarrowsGoesOnToTheSameBits) {
  const WorkFolder folder;
  const Job job = job_in(folder, "run", narrowing());
  const TrainedJob whole = train(job);
  const JobBits expected = bits_of(job, 8);
  for (const i64 step : {7, 5, 4, 3, 2}) {
    for (const FoundCheckpoint& found : find_checkpoints(checkpoint_folder(job.output), kIgnore)) {
      if (found.info.step > step) fs::remove_all(found.path);
    }
    const TrainedJob again = train(job);
    EXPECT_EQ(again.runs[0].outcome.first_step, step);
    ASSERT_EQ(again.runs[0].outcome.records.size(), static_cast<std::size_t>(8 - step));
    EXPECT_EQ(again.runs[0].outcome.records.front().top_k,
              whole.runs[0].outcome.records[static_cast<std::size_t>(step)].top_k);
    expect_same_bits(bits_of(job, 8), expected);
  }
}

/// A run that is cut between the last step of a part and the rewriting of its checkpoint: it is rewritten.
TEST(GrowingJob, ACutBeforeTheCheckpointIsRewrittenChangesNothing) {
  const WorkFolder folder;
  const Job job = job_in(folder, "run", narrowing());
  train(job);
  const JobBits expected = bits_of(job, 8);
  // The checkpoint of step 4 as the wide part left it: that of step 3 trained by one step under its job.
  const Job wide = job_in(folder, "wide", narrowing({{"grow.narrow_every", "2"}, {"train.steps", "8"}}));
  train(wide);
  ASSERT_EQ(load_model(checkpoint_of(wide, 4).path.string()).top_k, 4);
  for (const FoundCheckpoint& found : find_checkpoints(checkpoint_folder(job.output), kIgnore)) {
    if (found.info.step >= 4) fs::remove_all(found.path);
  }
  fs::copy(checkpoint_of(wide, 4).path, checkpoint_folder(job.output) / "step-00000004",
           fs::copy_options::recursive);
  EXPECT_EQ(train(job).runs[0].outcome.first_step, 4);
  expect_same_bits(bits_of(job, 8), expected);
}

/// With s and S seconds a step, growth after t of T costs t s + (T - t) S: 2 % at most from the executed sum.
// Claim: t s + (T - t) S is what a growing run took, within 2 %
TEST(GrowingJob, TheFormulaOfCostGivesTheExecutedTotal) {
  const WorkFolder folder;
  const ModelConfig model = load_model("tiny");
  const ModelConfig grown = plan_growth(model, {.mode = GrowthMode::kWideK}).after;
  const Settings emulated = {{"cluster", "demo"}, {"strategy", "zebra"}, {"train.steps", "30"}};
  const auto seconds = [](const TrainedJob& done) {
    double sum = 0;
    for (const StepRecord& record : done.runs[0].outcome.records) sum += record.step_s;
    return sum;
  };
  const auto with = [&](Settings more) {
    more.insert(more.begin(), emulated.begin(), emulated.end());
    return more;
  };
  const double few = seconds(train(job_in(folder, "few", with({})))) / 30;
  const double many =
      seconds(
          train(job_in(folder, "many", with({{"model", folder.file("many.json", to_hf(grown).dump())}})))) /
      30;
  EXPECT_GT(many, 1.02 * few);
  const double executed =
      seconds(train(job_in(folder, "grown", with({{"grow.at", "20"}, {"grow.mode", "wide_k"}}))));
  EXPECT_NEAR(executed / (20 * few + 10 * many), 1, 0.02);
  EXPECT_NEAR(1 - executed / (30 * many), growth_saving(few, many, 20, 30), 0.02);
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
  expect({{"grow.narrow_to", "1"}}, "got 1 with mode fixed-k, expected it with wide-k");
  expect({{"grow.mode", "wide_k"}, {"grow.narrow_to", "4"}}, "expected 1 to 3, below the top-k 4");
  expect({{"grow.mode", "wide_k"}, {"grow.narrow_to", "2"}, {"grow.narrow_every", "2"}},
         "top-k reaches after step 9, expected before the end, 8");
  expect({{"grow.at", "0"}, {"grow.narrow_to", "2"}}, "got 2 without grow.at");
  expect({{"model", "tiny-olmoe"}, {"grow.mode", "wide_k"}, {"grow.narrow_to", "1"}}, "expected at least 2");
  expect({{"balancer.name", "lpt"}}, "about the old experts or the new ones");
  train(job_in(folder, "whole"));
  const std::string error = error_of<ConfigError>([&] { train(job_in(folder, "whole", growing())); });
  EXPECT_NE(error.find("is of step 8 and has not grown"), std::string::npos) << error;
}

/// Devices that have room for the source alone: told with device and bytes before the first step.
TEST(GrowingJob, AClusterWithoutRoomForTheGrownModelIsRefused) {
  const WorkFolder folder;
  const ModelConfig model = load_model("tiny");
  const ModelConfig grown = plan_growth(model, {.factor = 8}).after;
  const Job job = job_in(folder, "run", {{"cluster", "demo"}, {"strategy", "ep"}});
  Cluster cluster = load_cluster("demo");
  const auto most = [&](const ModelConfig& its) {
    const std::vector<Bytes> memory = estimate_memory(make_job_plan(job, its, cluster), its);
    return *std::max_element(memory.begin(), memory.end());
  };
  const double between = (most(model) + most(grown)) / 2;
  for (DeviceType& type : cluster.types) {
    DeviceType larger = type;
    larger.memory_gib += 1;
    const double per_gib = usable_memory(larger) - usable_memory(type);
    type.memory_gib -= (usable_memory(type) - between) / per_gib;
  }
  const std::string small = folder.file("small.yaml", to_json(cluster).dump());
  const auto with = [&](const std::string& name, Settings more) {
    for (const auto& [key, value] :
         Settings{{"strategy", "ep"}, {"grow.factor", "8"}, {"grow.mode", "fixed_k"}})
      more.emplace_back(key, value);
    return job_in(folder, name, growing(more));
  };
  const std::string error = error_of<ConfigError>([&] { train(with("small", {{"cluster", small}})); });
  EXPECT_TRUE(error.starts_with("[grow] device ")) << error;
  EXPECT_NE(error.find(" usable) needs "), std::string::npos) << error;
  EXPECT_NE(error.find("for 32 experts in place of 4: expected a smaller grow.factor"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder / "small"));
  EXPECT_EQ(train(with("moved", {{"cluster", small}, {"grow.cluster", "demo"}})).model.num_experts, 32);
}

/// Hours before it would grow. Emulated devices that are too small for the source may be so for it, too.
TEST(GrowingJob, AModelThatGrowsBeyondTheMemoryOfThisMachineIsRefused) {
  const WorkFolder folder;
  Json large = to_hf(load_model("tiny"));
  large["hidden_size"] = 4096, large["intermediate_size"] = 16384, large["num_hidden_layers"] = 4;
  const Job job = job_in(folder, "run",
                         growing({{"model", folder.file("large.json", large.dump())},
                                  {"cluster", "demo"},
                                  {"strategy", "single"},
                                  {"grow.factor", "16384"}}));
  const std::string error = error_of<ConfigError>([&] { train(job); });
  EXPECT_TRUE(
      error.starts_with("[grow.factor] large-x16384 has 52.8 T parameters, for which training keeps "))
      << error;
  EXPECT_NE(error.find(" of memory: expected a smaller model"), std::string::npos) << error;
  EXPECT_FALSE(fs::exists(folder / "run"));
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
