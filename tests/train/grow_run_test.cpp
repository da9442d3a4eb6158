#include "hetermoe/train/growth/grow_run.h"

#include <fstream>

#include "hetermoe/base/index.h"
#include "hetermoe/routing/trace.h"
#include "hetermoe/train/checkpoint/resume.h"
#include "tests/support/error_of.h"
#include "tests/support/strategy_plans.h"
#include "tests/train/tiny_run.h"

// Runs that go on with more experts, from a checkpoint that grew.
namespace hetermoe {
namespace {

constexpr i64 kGrowAt = 5, kSteps = 25;

/// In fp64, without what depends on the global norm, and with an epsilon that is nothing.
Settings exact(Settings more) {
  Settings all = in_fp64({{"checkpoint.every", std::to_string(kGrowAt)},
                          {"checkpoint.keep", "100"},
                          {"train.steps", std::to_string(kSteps)},
                          {"train.max_grad_norm", "0"},
                          {"train.adam_eps", "1e-30"}});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

FoundCheckpoint checkpoint_of_run(const TinyRun& run, i64 step) {
  for (const FoundCheckpoint& found : find_checkpoints(run.checkpoints(), kIgnore)) {
    if (found.info.step == step) return found;
  }
  throw InternalError("no checkpoint of this step");
}

/// The run that goes on in `output`, by the job that was left there.
TinyRun run_of(const GrownRun& left, const fs::path& output, const Settings& more = {}) {
  TinyRun run(output.string());
  run.job = load_job(left.job.string(), more);
  run.model = load_model(run.job.model);
  run.cluster = load_cluster(run.job.cluster);
  run.plan = make_job_plan(run.job, run.model, run.cluster);
  return run;
}
TinyRun grown_run(const TinyRun& source, const Growth& growth, const fs::path& output,
                  const Settings& more = {}) {
  return run_of(write_grown_run(checkpoint_of_run(source, kGrowAt), growth, output), output, more);
}

std::vector<double> losses_from(const TrainOutcome& outcome, i64 step) {
  std::vector<double> out;
  for (const StepRecord& record : outcome.records) {
    if (record.step > step) out.push_back(record.loss);
  }
  return out;
}

double most_different(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

/// Largest difference of an instance's parameter from its source's, after both runs.
double most_different(const Growth& growth, const TensorsByName& source, const TensorsByName& grown) {
  double most = 0;
  for (const ParamInfo& parameter : parameters(growth.after)) {
    if (parameter.buffer) continue;
    at::Tensor expected = source.at(source_name(growth, parameter));
    const at::Tensor& got = grown.at(parameter.name);
    if (expected.sizes() != got.sizes()) expected = expected.repeat({growth.factor, 1});
    most = std::max(most, (got - expected).abs().max().item<double>());
  }
  return most;
}

GrowthOptions wide(GrownMoments moments) {
  return {.mode = GrowthMode::kWideK, .noise = 0, .moments = moments};
}

/// Twenty steps of the grown run are those of the source.
// Claim (GrowRun.*, GrowingJob.*, Mpi.RanksGrowLikeOneProcess): a grown run makes the steps of its source,
// under every plan, with two groups, on more devices, over processes; growth in the run is that by command,
// to the bit; a cut changes nothing
TEST(GrowRun, WideKWithSplitMomentsMakesTheStepsOfTheSource) {
  const WorkFolder folder;
  TinyRun source(folder / "source", exact({}));
  const TinyRun::End before = source.run();
  const std::vector<double> expected = losses_from(before.outcome, kGrowAt);
  ASSERT_EQ(std::ssize(expected), kSteps - kGrowAt);
  const auto end_of = [&](GrownMoments moments, const char* name) {
    const Growth growth = plan_growth(source.model, wide(moments));
    TinyRun run = grown_run(source, growth, folder / name);
    const TinyRun::End end = run.run();
    EXPECT_EQ(end.outcome.first_step, kGrowAt);
    return std::pair(most_different(losses_from(end.outcome, kGrowAt), expected),
                     most_different(growth, before.values, end.values));
  };
  const auto [loss, parameter] = end_of(GrownMoments::kSplit, "split");
  EXPECT_LE(loss, 1e-10);
  EXPECT_LE(parameter, 1e-9);
  // The control: moments of the whole gradient beside gradients of a part.
  EXPECT_GT(end_of(GrownMoments::kCopy, "copy").second, 1e-5);
}

/// Copies that get no token change nothing that is seen.
TEST(GrowRun, DormantCopiesLeaveTheRunAsItIs) {
  const WorkFolder folder;
  TinyRun source(folder / "source", exact({{"model", "tiny-deepseek-v3"}}));
  const TinyRun::End before = source.run();
  const Growth growth = plan_growth(source.model, {.factor = 2, .mode = GrowthMode::kDormant});
  TinyRun run = grown_run(source, growth, folder / "grown");
  const TinyRun::End end = run.run();
  EXPECT_LE(most_different(losses_from(end.outcome, kGrowAt), losses_from(before.outcome, kGrowAt)), 1e-10);
  i64 copies = 0;
  for (const ParamInfo& parameter : parameters(growth.after)) {
    if (parameter.expert < 0) continue;
    const at::Tensor difference =
        end.values.at(parameter.name) - before.values.at(source_name(growth, parameter));
    if (growth.is_copy[idx(parameter.layer)][idx(parameter.expert)]) {
      ++copies;  // it sleeps: only weight decay acts on it
    } else {
      EXPECT_LE(difference.abs().max().item<double>(), 1e-9) << parameter.name;
    }
  }
  EXPECT_GT(copies, 0);
}

/// Two devices, each with the whole model and half of the sequences.
Plan two_copies(const ModelConfig& model, const Cluster& cluster) {
  StrategyRequest request;
  request.seq_len = 8, request.sequences = 2, request.microbatches = 1;
  request.attention = {0};
  Plan plan = find_strategy("single").make(model, cluster, request);
  request.attention = {1};
  plan.groups.push_back(find_strategy("single").make(model, cluster, request).groups[0]);
  testing::use_fp64(plan);
  return plan;
}

/// Whatever the plan that goes on.
TEST(GrowRun, EveryPlanGoesOnAlike) {
  const WorkFolder folder;
  TinyRun source(folder / "source", exact({{"train.steps", "8"}, {"cluster", "demo"}}));
  source.run();
  const Growth growth = plan_growth(source.model, {.factor = 2, .mode = GrowthMode::kFixedK, .seed = 3});
  std::vector<double> expected;
  const auto check = [&](const std::string& name, const Settings& more,
                         const std::function<void(TinyRun&)>& change = {}) {
    TinyRun run = grown_run(source, growth, folder / name, more);
    if (change) change(run);
    const std::vector<double> losses = losses_from(run.run().outcome, kGrowAt);
    ASSERT_EQ(losses.size(), 3u);
    if (expected.empty()) expected = losses;
    EXPECT_LE(most_different(losses, expected), 1e-10) << name;
  };
  for (const std::string strategy : {"single", "ep", "zebra"}) check(strategy, {{"strategy", strategy}});
  check("more devices", {{"strategy", "ep"}, {"cluster", "o1"}},
        [&](TinyRun& run) { EXPECT_GE(run.cluster.num_devices(), source.cluster.num_devices() + 2); });
  check("two groups", {}, [](TinyRun& run) { run.plan = two_copies(run.model, run.cluster); });
}

/// After a reset the optimizer counts anew, also where the run is cut once more.
TEST(GrowRun, ResetMomentsCountUpdatesAnewAndSurviveACut) {
  const WorkFolder folder;
  TinyRun source(folder / "source", exact({{"train.steps", "9"}}));
  source.run();
  const Growth growth = plan_growth(source.model, {});
  EXPECT_EQ(growth.moments, GrownMoments::kReset);
  std::map<i64, i64> updates;
  const auto count = [&](Session& session, const StepRecord& record) {
    updates[record.step] = session.states()[0]->store().updates();
  };
  TinyRun whole = grown_run(source, growth, folder / "whole", {{"checkpoint.every", "2"}});
  const TinyRun::End end = whole.run(Checkpoints::kOn, count);
  EXPECT_EQ(updates, (std::map<i64, i64>{{6, 1}, {7, 2}, {8, 3}, {9, 4}}));
  EXPECT_EQ(checkpoint_of_run(whole, 8).info.forgotten, 5);
  fs::remove_all(whole.checkpoints() / "step-00000009");
  fs::remove_all(whole.checkpoints() / "step-00000008");
  updates.clear();
  const TinyRun::End again = whole.run(Checkpoints::kOn, count);
  EXPECT_EQ(again.outcome.first_step, 6);
  EXPECT_EQ(updates, (std::map<i64, i64>{{7, 2}, {8, 3}, {9, 4}}));
  expect_equal(again.values, end.values);
}

/// bf16 values are roundings of masters that have the noise.
TEST(GrowRun, MastersGrowAndValuesAreTheirRoundings) {
  const WorkFolder folder;
  TinyRun source(folder / "source", {{"plan.attention_dtype", "bf16"},
                                     {"plan.expert_dtype", "bf16"},
                                     {"checkpoint.every", "5"},
                                     {"train.steps", "5"}});
  source.run();
  const Growth growth = plan_growth(source.model, {.moments = GrownMoments::kSplit});
  const CheckpointShard shard = grow_checkpoint(checkpoint_of_run(source, 5), growth);
  TensorsByName all;
  for (const auto* list : {&shard.model, &shard.optimizer}) {
    for (const OutTensor& tensor : *list) {
      const at::Tensor made = tensor.make();
      EXPECT_TRUE(all.emplace(tensor.head.name, made).second);
      EXPECT_EQ(made.scalar_type(), tensor.head.dtype);
      EXPECT_EQ(made.sizes(), at::IntArrayRef(tensor.head.shape)) << tensor.head.name;
    }
  }
  EXPECT_EQ(all.size(), 4 * parameters(growth.after).size());
  for (const ParamInfo& parameter : parameters(growth.after)) {
    const at::Tensor& value = all.at(parameter.name);
    EXPECT_EQ(value.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(value, all.at(parameter.name + ".master").to(at::kBFloat16)));
    EXPECT_EQ(all.at(parameter.name + ".exp_avg").sizes(), at::IntArrayRef(parameter.shape));
  }
}

/// No part of a grown checkpoint is in memory before its turn.
TEST(GrowRun, ATensorIsReadWhenItIsWritten) {
  const WorkFolder folder;
  TinyRun source(folder / "source", {{"checkpoint.every", "5"}, {"train.steps", "5"}});
  source.run();
  const FoundCheckpoint from = checkpoint_of_run(source, 5);
  const CheckpointShard shard = grow_checkpoint(from, plan_growth(source.model, {}));
  std::fstream(from.path / "model.safetensors", std::ios::in | std::ios::out)
      .seekp(-5, std::ios::end)
      .put('x');
  EXPECT_NE(error_of<IoError>([&] {
              for (const OutTensor& tensor : shard.model) tensor.make();
            }).find("is damaged: got checksum"),
            std::string::npos);
}

using Bits = std::map<std::string, at::Tensor>;
Bits bits_of_folder(const fs::path& checkpoint) {
  Bits out;
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const SafetensorsReader reader(checkpoint / file);
    for (const std::string& name : reader.names()) out[name] = reader.read(name);
  }
  return out;
}

/// A checkpoint that grows and shrinks is what it was, moments included, and goes on as if nothing had been.
TEST(GrowRun, ShrinkingUndoesTheGrowthOfACheckpointToTheBit) {
  const WorkFolder folder;
  TinyRun source(folder / "source", exact({{"train.steps", "9"}}));
  const TinyRun::End before = source.run();
  const Growth growth = plan_growth(source.model, wide(GrownMoments::kSplit));
  const GrownRun grown = write_grown_run(checkpoint_of_run(source, kGrowAt), growth, folder / "grown");
  const FoundCheckpoint wide_one = read_checkpoint(grown.checkpoint);
  const Growth undone = plan_shrink(load_model(grown.checkpoint.string()), wide(GrownMoments::kSplit));
  const GrownRun shrunk = write_changed_run(shrink_checkpoint(wide_one, undone, 0.999), folder / "shrunk");
  const Bits expected = bits_of_folder(checkpoint_of_run(source, kGrowAt).path),
             got = bits_of_folder(shrunk.checkpoint);
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(got.at(name), tensor)) << name;
  TinyRun run = run_of(shrunk, folder / "shrunk");
  expect_equal(run.run().values, before.values);
}

/// Of all tensors of an expert.
double cosine(const TensorsByName& values, const std::vector<ParamInfo>& tensors, const Growth& growth) {
  double dot = 0, a = 0, b = 0;
  for (const ParamInfo& tensor : tensors) {
    const at::Tensor x = values.at(tensor.name).to(at::kDouble);
    const at::Tensor y = values.at(source_name(growth, tensor)).to(at::kDouble);
    dot += (x * y).sum().item<double>(), a += x.square().sum().item<double>(),
        b += y.square().sum().item<double>();
  }
  return dot / std::sqrt(a * b);
}

/// The share of the choices of a step of which the twin is another choice of the token.
double overlap(const TraceStep& step, const TraceHeader& header, const Growth& growth) {
  i64 both = 0, all = 0;
  const auto top_k = idx(header.top_k);
  for (std::size_t l = 0; l < step.choices.size(); ++l) {
    const std::vector<ExpertId>& source = growth.source_of[idx(header.layers[l])];
    for (std::size_t i = 0; i < step.choices[l].size(); ++i, ++all) {
      const auto first = step.choices[l].begin() + static_cast<std::ptrdiff_t>(i / top_k * top_k);
      const ExpertId mine = source[step.choices[l][i]];
      if (std::count_if(first, first + header.top_k, [&](std::uint16_t e) { return source[e] == mine; }) > 1)
        ++both;
    }
  }
  return real(both) / real(all);
}

/// With noise twins part: they differ, and tokens that chose both choose one. Without it they never do.
// Claim: twins part by their noise, and without it never
TEST(GrowRun, TwinsPartByTheirNoise) {
  const WorkFolder folder;
  TinyRun source(folder / "source", exact({}));
  source.run();
  for (const double noise : {1e-2, 0.0}) {
    GrowthOptions how = wide(GrownMoments::kSplit);
    how.noise = noise;
    const Growth growth = plan_growth(source.model, how);
    const std::string name = noise > 0 ? "noisy" : "quiet";
    TinyRun run = grown_run(source, growth, folder / name,
                            {{"train.steps", "65"},
                             {"train.learning_rate", "1e-2"},
                             {"routing.record", folder / (name + ".routes")}});
    const TinyRun::End end = run.run();
    std::map<std::pair<i64, ExpertId>, std::vector<ParamInfo>> copies;
    for (const ParamInfo& parameter : parameters(growth.after)) {
      if (parameter.expert >= 0 && growth.is_copy[idx(parameter.layer)][idx(parameter.expert)])
        copies[{parameter.layer, parameter.expert}].push_back(parameter);
    }
    double least = 1, most = -1;
    for (const auto& [expert, tensors] : copies) {
      const double c = cosine(end.values, tensors, growth);
      least = std::min(least, c), most = std::max(most, c);
    }
    const RoutingTrace trace(folder / (name + ".routes"));
    const double first = overlap(trace.read(trace.steps().front()), trace.header(), growth);
    const double last = overlap(trace.read(trace.steps().back()), trace.header(), growth);
    if (noise > 0) {
      EXPECT_LT(most, 0.999);
      EXPECT_LT(last, first - 0.05);
    } else {
      EXPECT_GT(least, 1 - 1e-9);
      EXPECT_EQ(first, 1);
      EXPECT_EQ(last, 1);
    }
  }
}

TEST(GrowRun, AnOutputThatIsNotEmptyIsRefused) {
  const WorkFolder folder;
  folder.file("out/thesis.tex", "x");
  const std::string error = error_of<ConfigError>([&] { check_grown_output(folder / "out"); });
  EXPECT_NE(error.find("is not empty, expected a new folder"), std::string::npos) << error;
}

}  // namespace
}  // namespace hetermoe
