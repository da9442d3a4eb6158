#include "hetermoe/train/run/route_recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "hetermoe/routing/trace_routing.h"
#include "tests/support/error_of.h"
#include "tests/support/processor_time.h"
#include "tests/train/tiny_run.h"

namespace hetermoe {
namespace {

struct Recorded {
  std::string bytes;
  TrainOutcome outcome;
};

Recorded record(const WorkFolder& folder, const std::string& name, Settings settings) {
  settings.emplace_back("routing.record", folder / (name + ".routes"));
  TinyRun run(folder / name, settings);
  Recorded out;
  out.outcome = run.run().outcome;
  out.bytes = read_text(run.job.routing.record);
  return out;
}

// Claim (RouteRecorder.EveryPlanGivesTheSameTraceByteForByte, Mpi.RanksRecordTheTraceOfOneProcess): a routing
// trace does not depend on the plan: single, zebra over 1, 2 and 4 expert devices, dist-ep and ep give equal
// bytes in fp64; 2 to 4 processes give its steps
TEST(RouteRecorder, EveryPlanGivesTheSameTraceByteForByte) {
  const WorkFolder folder;
  const std::vector<Settings> plans = {
      {{"strategy", "single"}, {"plan.attention", "0"}},
      {{"strategy", "zebra"}, {"plan.attention", "0"}, {"plan.experts", "6"}},
      {{"strategy", "zebra"}, {"plan.attention", "0,1"}, {"plan.experts", "6,7"}},
      {{"strategy", "zebra"}, {"plan.attention", "0,1"}, {"plan.experts", "6,7,8,9"}, {"plan.chunks", "2"}},
      {{"strategy", "dist-ep"}, {"plan.attention", "0"}, {"plan.experts", "6,7"}},
      {{"strategy", "ep"}, {"plan.attention", "0,6"}},
  };
  std::string expected;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Recorded got = record(folder, std::to_string(i), in_fp64(plans[i]));
    if (i == 0) expected = got.bytes;
    EXPECT_EQ(got.bytes, expected) << plans[i][0].second << " " << i;
  }
  const RoutingTrace trace(folder / "0.routes");
  EXPECT_EQ(trace.steps(), (std::vector<i64>{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(trace.notes().empty());
  const TraceStep step = trace.read(2);
  ASSERT_EQ(step.num_sequences(), 4);
  EXPECT_EQ(step.sequences[3].index, 7);
  EXPECT_EQ(step.sequences[3].microbatch, 1);
  EXPECT_EQ(step.num_tokens(), 32);
}

// Claim (RouteRecorder.MoreExpertDevices*): over 1, 2, 4 and 8 expert devices trace, Gini and busiest expert
// are equal to the bit, and the fullest device over the mean rises
TEST(RouteRecorder, MoreExpertDevicesChangeNoTraceAndNoGiniButTheFullestOne) {
  const WorkFolder folder;
  std::vector<Recorded> got;
  for (const char* experts : {"4", "4,5", "4,5,6,7", "4,5,6,7,8,9,10,11"})
    got.push_back(record(folder, std::to_string(got.size()),
                         in_fp64({{"model", "demo"},
                                  {"strategy", "zebra"},
                                  {"plan.attention", "0,1"},
                                  {"plan.experts", experts},
                                  {"train.steps", "2"}})));
  for (std::size_t i = 1; i < got.size(); ++i) {
    EXPECT_EQ(got[i].bytes, got[0].bytes) << i;
    for (std::size_t s = 0; s < 2; ++s) {
      const StepRecord &one = got[i - 1].outcome.records[s], &more = got[i].outcome.records[s];
      EXPECT_EQ(more.routing.gini, one.routing.gini) << i;
      EXPECT_EQ(more.expert_max_over_mean, one.expert_max_over_mean) << i;
      EXPECT_GT(more.routing.rank_ratio.value(), one.routing.rank_ratio.value()) << i;
    }
  }
}

TEST(RouteRecorder, CountsAreThoseOfTheStep) {
  const WorkFolder folder;
  const Recorded choices = record(folder, "choices", in_fp64({}));
  const Recorded counts = record(folder, "counts", in_fp64({{"routing.detail", "counts"}}));
  const RoutingTrace a(folder / "choices.routes"), b(folder / "counts.routes");
  ASSERT_EQ(a.steps(), b.steps());
  std::vector<double> sum(static_cast<std::size_t>(a.header().num_experts), 0);
  for (const i64 step : a.steps()) {
    const TraceStep of_choices = a.read(step), of_counts = b.read(step);
    EXPECT_EQ(of_choices.counts, of_counts.counts);
    EXPECT_FALSE(of_counts.has_choices());
    for (std::size_t i = 0; i < of_choices.counts[0].size(); ++i)
      sum[i % sum.size()] += of_choices.counts[0][i];
  }
  EXPECT_EQ(choices.outcome.expert_copies[0], sum);
}

TEST(RouteRecorder, RecordsEveryNthStepAndTheWeights) {
  const WorkFolder folder;
  record(folder, "some", in_fp64({{"routing.every", "4"}, {"routing.weights", "true"}}));
  const RoutingTrace trace(folder / "some.routes");
  EXPECT_EQ(trace.steps(), (std::vector<i64>{1, 5}));
  const TraceStep step = trace.read(1);
  ASSERT_EQ(step.weights[0].size(), step.choices[0].size());
  for (const float weight : step.weights[0]) EXPECT_TRUE(weight > 0 && weight <= 1);
}

TEST(RouteRecorder, AResumedRunGoesOnWithItsTrace) {
  const WorkFolder folder;
  const std::string whole = record(folder, "whole", in_fp64({{"checkpoint.every", "2"}})).bytes;
  const Settings settings = in_fp64({{"checkpoint.every", "2"}, {"routing.record", folder / "cut.routes"}});
  TinyRun first(folder / "cut", settings);
  first.job.train.steps = 4;
  first.run();
  EXPECT_EQ(RoutingTrace(folder / "cut.routes").steps().size(), 4u);
  // A schedule of learning rates that ends elsewhere changes weights, but not those of the first steps.
  TinyRun again(folder / "cut", settings);
  again.run();
  const RoutingTrace a(folder / "whole.routes"), b(folder / "cut.routes");
  EXPECT_EQ(a.steps(), b.steps());
  EXPECT_EQ(read_text(folder / "cut.routes").size(), whole.size());
  EXPECT_TRUE(b.notes().empty());
}

TEST(RouteRecorder, AResumedRunSaysThatItsTraceWasCut) {
  const WorkFolder folder;
  for (const char* every : {"1", "2"}) {
    const std::string name = std::string("cut") + every, trace = folder / (name + ".routes");
    const Settings settings =
        in_fp64({{"checkpoint.every", "2"}, {"routing.record", trace}, {"routing.every", every}});
    TinyRun first(folder / name, settings);
    first.job.train.steps = 4;
    first.run();
    std::filesystem::resize_file(trace, std::filesystem::file_size(trace) / 2);
    TinyRun again(folder / name, settings);
    const std::vector<std::string> notes = again.run().outcome.notes;
    const std::string begin = "routing.record: " + trace + " ends at step ";
    const std::string end =
        fmt::format(", expected step {}: the steps between are missing. Was the file cut?",
                    std::string(every) == "1" ? 4 : 3);
    EXPECT_EQ(std::count_if(
                  notes.begin(), notes.end(),
                  [&](const std::string& note) { return note.starts_with(begin) && note.ends_with(end); }),
              1)
        << ::testing::PrintToString(notes);
  }
}

TEST(RouteRecorder, AResumedRunSaysThatItsTraceIsGone) {
  const WorkFolder folder;
  const std::string trace = folder / "gone.routes";
  const Settings settings = in_fp64({{"checkpoint.every", "2"}, {"routing.record", trace}});
  TinyRun first(folder / "run", settings);
  first.job.train.steps = 4;
  first.run();
  std::filesystem::remove(trace);
  TinyRun again(folder / "run", settings);
  const std::vector<std::string> notes = again.run().outcome.notes;
  const std::string said =
      "routing.record: " + trace + " is not there and begins at step 5: steps before that are not in it";
  EXPECT_EQ(std::count(notes.begin(), notes.end(), said), 1) << ::testing::PrintToString(notes);
}

// Claim: a trace under its run's plan is the load that the executor reported, every exchange
TEST(RouteRecorder, ATraceUnderTheRunsPlanIsWhatTheExecutorReported) {
  const WorkFolder folder;
  TinyRun run(folder / "run", in_fp64({{"strategy", "zebra"},
                                       {"plan.attention", "0,1"},
                                       {"plan.experts", "6,7,8"},
                                       {"plan.chunks", "3"},
                                       {"routing.record", folder / "run.routes"}}));
  std::vector<RecordedRouting> loads;
  run.run(Checkpoints::kOff, [&](Session& session, const StepRecord&) {
    loads.push_back(session.executor().recorded_routing());
  });
  const RoutingTrace trace(folder / "run.routes");
  const Placement placement(run.plan, run.model, {});
  int compared = 0;
  for (std::size_t s = 0; s < loads.size(); ++s) {
    const TraceRouting routing(trace.header(), trace.read(static_cast<i64>(s) + 1), run.model, "trace");
    for (const i64 layer : trace.header().layers) {
      for (i32 m = 0; m < 2; ++m) {
        for (i32 chunk = 0; chunk < 3; ++chunk) {
          const ExchangeLoad got = routing.exchange(placement, 0, static_cast<i32>(layer), m, chunk),
                             expected = loads[s].exchange(placement, 0, static_cast<i32>(layer), m, chunk);
          EXPECT_EQ(got.tokens, expected.tokens);
          EXPECT_EQ(got.rows, expected.rows);
          EXPECT_EQ(got.copies, expected.copies);
          ++compared;
        }
      }
    }
  }
  EXPECT_GE(compared, 36);
}

/// A step of the demo takes 280 ms of processor time on the slowest machine that was looked at while it had
/// others to serve, and not less than 100 ms on any: bench/recording_cost.py measures whole runs.
TEST(RouteRecorder, CostsLittleBesideADemoStep) {
  const WorkFolder folder;
  Job job = load_job(HM_SOURCE_DIR "/configs/jobs/demo.yaml", {{"routing.record", folder / "demo.routes"}});
  const ModelConfig model = load_model(job.model);
  const Plan plan = make_job_plan(job, model, load_cluster(job.cluster));
  const Processes alone;
  RouteRecorder recorder(job, model, alone, 0, {});
  RouteCollector routes(job, model);
  const at::Tensor ids = at::arange(2).to(at::kLong).expand({256, 2}).contiguous(),
                   weights = at::ones({256, 2});
  constexpr int kSteps = 50;
  const double begin = testing::processor_time();
  for (i64 step = 0; step < kSteps; ++step) {
    for (i32 layer = 0; layer < 4; ++layer) {
      for (i64 sequence = 0; sequence < 8; ++sequence) routes.take(layer, 256 * sequence, ids, weights);
    }
    recorder.write(step, 8 * step, plan, routes.finish());
  }
  const double per_step = (testing::processor_time() - begin) / kSteps;
  std::printf("recording a demo step: %.2f ms of processor time\n", 1e3 * per_step);
  EXPECT_LT(per_step, 0.02 * 0.1);
}

/// Devices of a team hand over parts of sequences, in any order.
// Claim: choices of routers that devices of a team hand over in parts are those of whole sequences
TEST(RouteCollector, JoinsPartsOfSequences) {
  Job job = load_job(HM_SOURCE_DIR "/configs/jobs/demo.yaml",
                     {{"routing.record", "x.routes"}, {"routing.weights", "true"}});
  const ModelConfig model = load_model(job.model);
  const at::Tensor ids = at::randint(0, model.num_experts, {4 * 256, 2}, at::kLong),
                   weights = at::rand({4 * 256, 2});
  const auto taken = [&](const std::vector<std::pair<i64, i64>>& parts) {
    RouteCollector routes(job, model);
    for (const auto& [begin, end] : parts)
      routes.take(1, begin, ids.narrow(0, begin, end - begin), weights.narrow(0, begin, end - begin));
    std::vector<at::Tensor> all_ids, all_weights;
    i64 next = 0;
    for (const TakenRoutes& part : routes.finish()) {
      EXPECT_EQ(part.first, next);
      next += part.count;
      all_ids.push_back(part.ids), all_weights.push_back(part.weights);
    }
    return std::pair(at::cat(all_ids), at::cat(all_weights));
  };
  const auto whole = taken({{0, 1024}});
  const auto in_parts = taken({{700, 1024}, {0, 256}, {300, 700}, {256, 300}});
  EXPECT_TRUE(at::equal(whole.first, in_parts.first));
  EXPECT_TRUE(at::equal(whole.second, in_parts.second));
}

TEST(RouteRecorder, SaysThatATraceIsWrittenAnewOnlyWhereItIs) {
  const WorkFolder folder;
  const auto notes = [&](const std::string& text) {
    const std::string path = folder.file("x.routes", text);
    const TinyRun rig(folder / "run",
                      {{"routing.record", path}, {"train.steps", "1"}, {"checkpoint.every", "0"}});
    const Processes alone;
    const Dataset data = counting_data();
    Trainer trainer(rig.job, rig.model, rig.cluster, rig.plan, data, alone, Checkpoints::kOff);
    std::vector<std::string> heard;
    RunHooks hooks;
    hooks.on_note = [&](const std::string& note) {
      if (note.starts_with("routing.record")) heard.push_back(note);
    };
    const std::string error = error_of<ConfigError>([&] { trainer.run(hooks); });
    if (error != "no error") heard.push_back(error);
    return heard;
  };
  const std::string path = folder / "x.routes";
  const std::vector<std::string> refused = notes("a text of mine, which is no trace of a router");
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_NE(refused[0].find("is no routing trace, and writing one would destroy it"), std::string::npos)
      << refused[0];
  const std::string trace = record(folder, "whole", in_fp64({{"train.steps", "1"}})).bytes;
  EXPECT_EQ(notes(trace),
            (std::vector<std::string>{"routing.record: " + path + " is there and is written anew"}));
}

TEST(RouteRecorder, RefusesAFileThatCannotBeWritten) {
  const WorkFolder folder;
  TinyRun run(folder / "run", {{"routing.record", "/proc/none/x.routes"}});
  EXPECT_TRUE(error_of<IoError>([&] { run.run(); }).find("[/proc/none/x.routes] cannot be written: ") == 0);
}

}  // namespace
}  // namespace hetermoe
