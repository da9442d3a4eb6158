#include "hetermoe/profile/profiler.h"
#include "hetermoe/profile/expert_products.h"
#include "hetermoe/profile/step_times.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "hetermoe/cost/measured.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/profile/machine.h"
#include "hetermoe/profile/tasks.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

TEST(Percentile, InterpolatesBetweenRanks) {
  EXPECT_EQ(percentile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(percentile({4, 1, 2, 3}, 0.5), 2.5);
  EXPECT_EQ(percentile({5}, 0.9), 5);
  EXPECT_DOUBLE_EQ(percentile({0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100}, 0.9), 90);
}

TEST(AllocationCounter, CountsWhatIsAllocatedSinceTheMark) {
  const at::Tensor before = at::ones({1000});
  AllocationCounter counter;
  at::Tensor old = at::ones({500});
  counter.mark();
  at::Tensor kept = at::zeros({256});
  { const at::Tensor gone = at::zeros({1024}); }
  EXPECT_EQ(counter.current(), 1024);
  EXPECT_EQ(counter.peak(), 5120);
  old.reset();  // not of this count: must not lower it
  EXPECT_EQ(counter.current(), 1024);
  kept.reset();
  EXPECT_EQ(counter.current(), 0);
}

TEST(Measure, RunsWarmUpAndTimedRunsAndPreparesEach) {
  i64 prepared = 0, run = 0, cleared = 0;
  Task task{[&] { ++run; }, [&] { ++prepared; }, [&] { ++cleared; }};
  TimingOptions options;
  options.warmup = 3, options.min_runs = 4, options.max_runs = 4;
  const Measurement m = measure(task, at::kCPU, options);
  EXPECT_EQ(m.runs, 4);
  EXPECT_EQ(run, 3 + 4 + 1);  // the last one counts memory
  EXPECT_EQ(prepared, run);
  EXPECT_EQ(cleared, run);
  EXPECT_GT(m.median, 0);
  EXPECT_LE(m.p10, m.median);
  EXPECT_LE(m.median, m.p90);
}

TEST(Measure, StopsAtItsBudgetOnceItHasEnoughRuns) {
  const auto wait = [] { usleep(2000); };
  TimingOptions options;
  options.warmup = 0, options.min_runs = 3, options.budget = 0;
  EXPECT_EQ(measure({wait, {}, {}}, at::kCPU, options).runs, 3);
  EXPECT_GE(measure({wait, {}, {}}, at::kCPU, options).p10, 2e-3);
}

TEST(Tasks, ExpertsKeepTheirResultAndRecomputeKeepsTheActivationsToo) {
  const ModelConfig model = load_model("tiny");
  std::map<ProfiledPhase, Measurement> measured;
  TimingOptions once;
  once.warmup = 0, once.min_runs = once.max_runs = 1;
  const c10::NoGradGuard no_grad;
  for (ProfileTask& task : expert_tasks(model, 0, 2, 32, at::TensorOptions().dtype(at::kFloat))) {
    EXPECT_EQ(task.entry.copies, 64);
    measured[task.entry.phase] = measure(task.task, at::kCPU, once);
  }
  ASSERT_EQ(measured.size(), 4U);
  const double row = static_cast<double>(model.hidden) * 4, rows = 64;
  const double gate_up = 2 * static_cast<double>(model.expert_hidden) * 4;
  EXPECT_EQ(measured[ProfiledPhase::kForward].kept_bytes, rows * row);
  EXPECT_EQ(measured[ProfiledPhase::kRecompute].kept_bytes, rows * (row + gate_up));
  // Gradients of rows, and of routing weights in both orders.
  EXPECT_EQ(measured[ProfiledPhase::kBackward].kept_bytes, rows * (row + 8));
  EXPECT_GE(measured[ProfiledPhase::kForwardBackward].peak_bytes, rows * (row + gate_up));
}

class ProfilerTest : public ::testing::Test {
 protected:
  static ProfileOptions small() {
    ProfileOptions options;
    options.seq_lens = {32, 512};
    options.sequences = {1, 4};
    options.rows_per_expert = {8, 1024};
    options.timing.min_runs = 5, options.timing.max_runs = 20, options.timing.budget = 0.01;
    return options;
  }
};

TEST_F(ProfilerTest, ProfileOfATinyModelIsCompletePositiveAndGrowsWithSize) {
  const ModelConfig model = load_model("tiny");
  i64 seen = 0, left = -1;
  const ProfileFile profile = profile_device(model, small(), [&](const ProfileEntry&, i64 now_left) {
    ++seen;
    left = now_left;
  });
  EXPECT_EQ(left, 0);
  EXPECT_EQ(seen, static_cast<i64>(profile.entries.size()));
  EXPECT_EQ(profile.model, "tiny");
  EXPECT_FALSE(profile.host.empty());
  EXPECT_EQ(profile.date.size(), 20U);
  std::map<std::pair<ProfiledOp, ProfiledPhase>, std::vector<ProfileEntry>> tables;
  for (const ProfileEntry& entry : profile.entries) {
    EXPECT_GT(entry.seconds, 0);
    EXPECT_LE(entry.p10, entry.seconds);
    EXPECT_GE(entry.p90, entry.seconds);
    EXPECT_GE(entry.runs, 5);
    EXPECT_GE(entry.peak_bytes, entry.kept_bytes);
    tables[{entry.op, entry.phase}].push_back(entry);
  }
  // 5 phases of attention and experts, 2 of embed and head, update, gather, merge, transfer; of steps norm,
  // balance, gap, dispatch and combine forward and backward.
  EXPECT_EQ(tables.size(), 5U + 5U + 2U + 2U + 4U + 3U + 4U);
  for (const auto& [key, entries] : tables) {
    const auto smaller = [](const ProfileEntry& a, const ProfileEntry& b) {
      const ProfilePoint p = point_of(a), q = point_of(b);
      return p.family * p.size < q.family * q.size;
    };
    const auto [least, most] = std::minmax_element(entries.begin(), entries.end(), smaller);
    // 64 times the work or more in these; the others take microseconds, of which a busy machine tells
    // nothing.
    const bool heavy = key.first == ProfiledOp::kAttention || key.first == ProfiledOp::kExperts ||
                       key.first == ProfiledOp::kHead;
    if (!heavy) continue;
    EXPECT_GT(most->seconds, 3 * least->seconds) << name_of(key.first) << " " << name_of(key.second);
  }
}

TEST_F(ProfilerTest, FeedsTheMeasuredCostModelThroughItsFile) {
  const ModelConfig model = load_model("tiny");
  ProfileOptions options = small();
  options.seq_lens = {64};
  options.timing.budget = 0;
  options.steps = false;  // the time between ops would be added
  const ProfileFile profile = profile_device(model, options);
  const WorkFolder folder;
  const std::filesystem::path path = folder / "tiny.json";
  write_profile(profile, path);
  EXPECT_TRUE(read_profile(path) == profile);
  Cluster cluster = load_cluster("one");
  cluster.types[0].profile = path.string();
  StrategyRequest request;
  request.seq_len = 64;
  request.sequences = 4;
  Plan plan = find_strategy("ep").make(model, cluster, request);
  plan.dtype.assign(1, Dtype::kFp32);
  const MeasuredCost cost(model, cluster, plan, load_profiles(cluster));
  for (const ProfileEntry& entry : profile.entries) {
    if (entry.op != ProfiledOp::kAttention || entry.phase != ProfiledPhase::kForward) continue;
    ComputeWork work;
    work.op.kind = OpKind::kAttention;
    work.op.layer = 0;
    work.seq_len = 64;
    work.tokens = static_cast<double>(entry.tokens);
    EXPECT_EQ(cost.compute(work), entry.seconds);
  }
}

TEST_F(ProfilerTest, WholeStepsGiveEveryOpAtEverySizeAndWhatStandsBetween) {
  const ModelConfig model = load_model("tiny");
  ProfileOptions options = small();
  options.seq_lens = {16, 32};
  options.timing.warmup = 0, options.timing.min_runs = options.timing.max_runs = 2;
  std::map<std::pair<ProfiledOp, ProfiledPhase>, std::set<double>> sizes;
  for (const ProfileEntry& entry : measure_steps(model, options, at::kCPU)) {
    EXPECT_GT(entry.seconds, 0);
    EXPECT_GE(entry.runs, 2);
    sizes[{entry.op, entry.phase}].insert(point_of(entry).family * point_of(entry).size);
  }
  const std::set<double> tokens = {16, 32, 64, 128};
  using enum ProfiledPhase;
  for (const ProfiledPhase phase : {kForward, kForwardKept, kBackward, kForwardBackward})
    EXPECT_EQ((sizes[{ProfiledOp::kAttention, phase}]), tokens) << name_of(phase);
  for (const ProfiledOp op : {ProfiledOp::kDispatch, ProfiledOp::kCombine, ProfiledOp::kEmbed}) {
    for (const ProfiledPhase phase : {kForward, kBackward})
      EXPECT_EQ((sizes[{op, phase}]), tokens) << name_of(op);
  }
  EXPECT_EQ((sizes[{ProfiledOp::kGap, kForward}]), tokens);
  EXPECT_EQ((sizes[{ProfiledOp::kHead, kForwardBackward}]), tokens);
  EXPECT_EQ((sizes[{ProfiledOp::kNorm, kForward}]),
            (std::set<double>{static_cast<double>(count_parameters(model).total)}));
}

TEST_F(ProfilerTest, StepsAreOfTwoLayersWithExperts) {
  ModelConfig model = load_model("tiny-deepseek-v3");  // its first layer is dense
  ASSERT_EQ(model.num_layers, 3);
  const double params = static_cast<double>(count_parameters(model).total);
  model.num_layers = 5;
  model.dense_layer.resize(5);
  ProfileOptions options = small();
  options.seq_lens = {16}, options.sequences = {1}, options.rows_per_expert = {4};
  options.timing.warmup = 0, options.timing.min_runs = options.timing.max_runs = 1;
  const ProfileFile profile = profile_device(model, options);
  const auto norm = std::find_if(profile.entries.begin(), profile.entries.end(),
                                 [](const ProfileEntry& entry) { return entry.op == ProfiledOp::kNorm; });
  ASSERT_NE(norm, profile.entries.end());
  EXPECT_EQ(static_cast<double>(norm->params), params);
}

TEST_F(ProfilerTest, MeasuresWhichProductsOfExpertsAreFaster) {
  ModelConfig model = load_model("tiny");
  const at::TensorOptions bf16 = at::TensorOptions().dtype(at::kBFloat16);
  const TimingOptions timing{.warmup = 0, .min_runs = 1, .max_runs = 1};
  const ExpertProducts faster = faster_expert_products(model, 0, 4, 16, bf16, timing);
  EXPECT_NE(faster, ExpertProducts::kAuto);
  EXPECT_EQ(faster_expert_products(model, 0, 4, 16, bf16.dtype(at::kFloat), timing), ExpertProducts::kEach);
  model.expert_hidden = 12;
  EXPECT_EQ(faster_expert_products(model, 0, 4, 16, bf16, timing), ExpertProducts::kEach);
  // Not on a CPU, whose caches one expert at a time fits; a file keeps it.
  ProfileFile profile = profile_device(load_model("tiny"), small());
  EXPECT_EQ(profile.expert_products, ExpertProducts::kAuto);
  profile.expert_products = ExpertProducts::kGrouped;
  const WorkFolder folder;
  write_profile(profile, folder / "tiny.json");
  EXPECT_EQ(read_profile(folder / "tiny.json").expert_products, ExpertProducts::kGrouped);
}

TEST_F(ProfilerTest, AModelWhoseStepsDoNotFitSaysSo) {
  ProfileOptions options = small();
  EXPECT_EQ(why_no_steps(load_model("tiny"), options), "");
  const std::string why = why_no_steps(load_model("deepseek-v3"), options);
  EXPECT_NE(why.find("whole steps are not measured: the first layers of deepseek-v3"), std::string::npos)
      << why;
}

TEST_F(ProfilerTest, MeasuresLowPrecisionDenseLayersAndTiedEmbeddings) {
  for (const char* name : {"tiny-qwen3", "tiny-deepseek-v3"}) {
    const ModelConfig model = load_model(name);
    ProfileOptions options;
    options.dtype = Dtype::kBf16;
    options.seq_lens = {16};
    options.sequences = {1};
    options.rows_per_expert = {4};
    options.timing.warmup = 0, options.timing.min_runs = options.timing.max_runs = 1;
    const ProfileFile profile = profile_device(model, options);
    i64 dense = 0;
    for (const ProfileEntry& entry : profile.entries) dense += entry.op == ProfiledOp::kDenseAttention;
    const bool has_dense = std::count(model.dense_layer.begin(), model.dense_layer.end(), true) > 0;
    EXPECT_EQ(dense, has_dense ? 5 : 0) << name;
    EXPECT_EQ(profile.dtype, Dtype::kBf16);
  }
}

TEST_F(ProfilerTest, LeavesTheNumberOfThreadsAsItWas) {
  at::set_num_threads(2);
  ProfileOptions options = small();
  options.seq_lens = {16}, options.rows_per_expert = {8};
  options.timing.budget = 0, options.timing.min_runs = 1;
  profile_device(load_model("tiny"), options,
                 [](const ProfileEntry&, i64) { EXPECT_EQ(at::get_num_threads(), 1); });
  EXPECT_EQ(at::get_num_threads(), 2);
}

TEST_F(ProfilerTest, WrongOptionsAreClearErrors) {
  const ModelConfig model = load_model("tiny");
  const auto options_error = [&](const ProfileOptions& options) {
    return error_of<ConfigError>([&] { profile_device(model, options); });
  };
  ProfileOptions options = small();
  options.device = "gpu";
  EXPECT_EQ(options_error(options),
            "[profile device] no such device: got \"gpu\", expected cpu, cuda or cuda:N");
  options = small();
  options.experts = {5};
  EXPECT_EQ(options_error(options), "[profile experts] got 5, expected at most 4 as in tiny");
  options = small();
  options.sequences = {};
  EXPECT_EQ(options_error(options), "[profile sequences] got no sizes, expected at least one");
  if (num_cuda_devices() == 0) {
    options = small();
    options.device = "cuda";
    EXPECT_NE(options_error(options).find("[profile device] got \"cuda\", but "), std::string::npos);
  }
}

}  // namespace
}  // namespace hetermoe
