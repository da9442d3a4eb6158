#include "hetermoe/train/run/route_replay.h"

#include <gtest/gtest.h>

#include <random>

#include "hetermoe/routing/trace_routing.h"
#include "hetermoe/train/run/verify.h"
#include "tests/support/case_count.h"
#include "tests/support/counting_data.h"
#include "tests/support/error_of.h"
#include "tests/train/tiny_run.h"

namespace hetermoe {
namespace {

const std::vector<Settings>& plans() {
  static const std::vector<Settings> all = {
      {{"strategy", "single"}, {"plan.attention", "0"}},
      {{"strategy", "ep"}, {"plan.attention", "0,6"}},
      {{"strategy", "dist-ep"}, {"plan.attention", "0"}, {"plan.experts", "6,7"}},
      {{"strategy", "zebra"}, {"plan.attention", "0,1"}, {"plan.experts", "6,7,8"}, {"plan.chunks", "3"}},
      {{"strategy", "zebra"}, {"plan.attention", "0"}, {"plan.experts", "6"}, {"plan.recompute", "local"}},
      {{"strategy", "zebra"}, {"plan.attention", "0"}, {"plan.experts", "6"}, {"plan.recompute", "resend"}},
  };
  return all;
}

/// What a test's trace has of the tiny model's sequences.
struct Made {
  i64 sequences = 4;
  std::uint32_t tokens = 8;
  TraceDetail detail = TraceDetail::kChoices;
  i64 first_index = 0;
  i64 hole = -1;  ///< a token of the first sequence without a choice
  bool twice = false;
};

/// Random choices that no router made.
void write_trace(const std::string& path, const Made& made = {}) {
  const ModelConfig model = load_model("tiny");
  TraceHeader header;
  header.layers = layers_with_experts(model);
  header.num_experts = model.num_experts;
  header.top_k = model.top_k;
  RoutingWriter writer(path, header);
  std::mt19937_64 random(7);
  for (i64 number = 1; number <= (made.twice ? 2 : 1); ++number) {
    TraceStep step;
    step.step = number;
    for (i64 s = 0; s < made.sequences; ++s)
      step.sequences.push_back(
          {.index = made.first_index < 0 ? -1 : made.first_index + s, .tokens = made.tokens});
    index_tokens(step);
    for (std::size_t l = 0; l < header.layers.size(); ++l) {
      std::vector<std::uint16_t>& ids = step.choices.emplace_back();
      for (i64 t = 0; t < step.num_tokens(); ++t) {
        const i64 first = static_cast<i64>(random() % static_cast<u64>(header.num_experts));
        for (i64 k = 0; k < header.top_k; ++k) {
          const i64 id = (first + k) % header.num_experts;
          ids.push_back(t == made.hole ? kNoExpert : static_cast<std::uint16_t>(id));
        }
      }
    }
    step.weights.resize(header.layers.size());
    count_choices(step, header);
    writer.step(step, made.detail);
  }
  writer.finish();
}

VerifyResult verify(TinyRun& run) {
  const Sampler sampler(counting_data(), {run.job.train.seq_len, run.job.train.seed});
  return verify_plan(run.job, run.model, run.cluster, run.plan,
                     sampler.batch(0, run.job.train.sequences, run.model.vocab));
}

TEST(RouteReplay, LossAndGradientsAreTheReferencesUnderEveryPlan) {
  const WorkFolder folder;
  write_trace(folder / "made.routes");
  write_trace(folder / "short.routes", {.tokens = 7});
  write_trace(folder / "hole.routes", {.hole = 3});
  double free_loss = 0;
  const std::vector<std::string> traces = {"made.routes", "short.routes", "hole.routes"};
  std::size_t turn = 0;
  for (const Settings& plan : plans()) {
    ++turn;
    for (const char* trace : {"", "made.routes", "short.routes", "hole.routes"}) {
      if (!testing::every_case() && *trace != 0 && trace != traces[turn % traces.size()]) continue;
      Settings settings = in_fp64(plan);
      settings.emplace_back("routing.replay", *trace == 0 ? "" : folder / trace);
      if (std::string(trace) == "hole.routes") settings.emplace_back("routing.replay_gaps", "choose");
      TinyRun run(folder / "run", settings);
      const VerifyResult result = verify(run);
      EXPECT_TRUE(result.passed()) << plan[0].second << " " << trace << ": loss " << result.loss_error << ", "
                                   << result.gradients[0].name << " " << result.gradients[0].error;
      if (*trace == 0)
        free_loss = result.loss;
      else
        EXPECT_GT(std::abs(result.loss - free_loss), 1e-6) << "the trace changes nothing";
      for (const GradientError& gradient : result.gradients)
        EXPECT_LT(gradient.error, 1e-10) << gradient.name;
    }
  }
}

TEST(RouteReplay, RoutersLearnThoughTheirChoiceIsGiven) {
  const WorkFolder folder;
  write_trace(folder / "made.routes", {.sequences = 24});
  TinyRun run(folder / "run", in_fp64({{"routing.replay", folder / "made.routes"}}));
  const TensorsByName end = run.run(Checkpoints::kOff).values;
  TinyRun begin(folder / "begin", in_fp64({{"train.steps", "0"}}));
  const TensorsByName start = begin.run(Checkpoints::kOff).values;
  int routers = 0;
  for (const auto& [name, value] : end) {
    if (name.find("mlp.gate.") == std::string::npos && name.find("moe.gate.") == std::string::npos) continue;
    EXPECT_FALSE(at::equal(value, start.at(name))) << name;
    ++routers;
  }
  EXPECT_GT(routers, 0);
}

TEST(RouteReplay, ARecordOfAReplayIsTheTraceAndTheRunRepeats) {
  const WorkFolder folder;
  const auto run = [&](const std::string& name, const Settings& plan, const std::string& replay) {
    Settings settings = in_fp64(plan);
    settings.emplace_back("routing.record", folder / (name + ".routes"));
    settings.emplace_back("routing.replay", replay.empty() ? "" : folder / replay);
    return TinyRun(folder / name, settings).run(Checkpoints::kOff);
  };
  const TinyRun::End first = run("first", plans()[0], "");
  for (std::size_t p = 0; p < plans().size(); ++p) {
    const std::string name = "again" + std::to_string(p);
    const TinyRun::End again = run(name, plans()[p], "first.routes");
    EXPECT_EQ(read_text(folder / (name + ".routes")), read_text(folder / "first.routes")) << p;
    if (p == 0) expect_equal(again.values, first.values);
    for (std::size_t s = 0; s < first.outcome.records.size(); ++s) {
      EXPECT_NEAR(again.outcome.records[s].loss, first.outcome.records[s].loss, 1e-9);
      EXPECT_EQ(again.outcome.records[s].replayed_choices, 1.0);
    }
  }
  EXPECT_FALSE(first.outcome.records[0].replayed_choices.has_value());
}

TEST(RouteReplay, ATraceIsNotReplayedAndRecordedAtOnce) {
  const WorkFolder folder;
  const std::string trace = folder / "traces/made.routes";
  fs::create_directories(folder / "traces");
  write_trace(trace);
  const std::string bytes = read_text(trace);
  for (const auto& [record, replay] :
       Settings{{trace, trace}, {folder / "traces/new.routes", folder / "traces"}}) {
    TinyRun run(folder / "run", in_fp64({{"routing.record", record}, {"routing.replay", replay}}));
    EXPECT_EQ(error_of<ConfigError>([&] { run.run(Checkpoints::kOff); }),
              "[routing.record] " + record +
                  " belongs to the trace that routing.replay reads, expected another file");
  }
  EXPECT_EQ(read_text(trace), bytes);
}

TEST(RouteReplay, OtherWeightsTakeTheRecordedChoices) {
  const WorkFolder folder;
  TinyRun first(folder / "first", in_fp64({{"routing.record", folder / "first.routes"}}));
  first.run(Checkpoints::kOff);
  const Settings other = {{"train.learning_rate", "0.5"}, {"routing.record", folder / "other.routes"}};
  TinyRun free(folder / "free", in_fp64(other));
  free.run(Checkpoints::kOff);
  EXPECT_NE(read_text(folder / "other.routes"), read_text(folder / "first.routes"));
  Settings forced = in_fp64(other);
  forced.emplace_back("routing.replay", folder / "first.routes");
  TinyRun replayed(folder / "replayed", forced);
  replayed.run(Checkpoints::kOff);
  EXPECT_EQ(read_text(folder / "other.routes"), read_text(folder / "first.routes"));
}

TEST(RouteReplay, AResumedRunGoesOnInTheTrace) {
  const WorkFolder folder;
  write_trace(folder / "made.routes", {.sequences = 24});
  const Settings settings = in_fp64({{"routing.replay", folder / "made.routes"}, {"checkpoint.every", "2"}});
  TinyRun whole(folder / "whole", settings);
  const TinyRun::End expected = whole.run();
  TinyRun cut(folder / "cut", settings);
  cut.run(Checkpoints::kOn, [&](Session&, const StepRecord& record) { stop_requested = record.step == 3; });
  stop_requested = false;
  TinyRun again(folder / "cut", settings);
  const TinyRun::End got = again.run();
  EXPECT_EQ(got.outcome.first_step, 4);
  expect_equal(got.values, expected.values);
}

TEST(RouteReplay, AForwardPassRecordsWhatTrainingWouldChoose) {
  const WorkFolder folder;
  const Settings settings = in_fp64({{"checkpoint.every", "2"}, {"routing.record", folder / "run.routes"}});
  TinyRun run(folder / "run", settings);
  run.run(Checkpoints::kOn, [&](Session&, const StepRecord& record) { stop_requested = record.step == 3; });
  stop_requested = false;
  const auto ahead = [&](const std::optional<FoundCheckpoint>& checkpoint, const std::string& name) {
    TinyRun again(folder / "run", settings);
    again.job.routing.record = folder / name;
    const Dataset text = counting_data();
    const Processes alone;
    return Trainer(again.job, again.model, again.cluster, again.plan, text, alone)
        .record_routes(checkpoint, 1);
  };
  const RecordedRoutes first = ahead(std::nullopt, "first.routes");
  EXPECT_EQ(first.first_sequence, 0);
  const FoundCheckpoint newest = find_checkpoints(run.checkpoints(), kIgnore)[0];
  const RecordedRoutes fifth = ahead(newest, "fifth.routes");
  EXPECT_EQ(fifth.steps_done, 4);
  EXPECT_EQ(fifth.first_sequence, 16);
  TinyRun rest(folder / "run", settings);
  rest.run();
  const RoutingTrace trained(folder / "run.routes");
  EXPECT_EQ(RoutingTrace(folder / "first.routes").read(1).choices, trained.read(1).choices);
  EXPECT_EQ(RoutingTrace(folder / "fifth.routes").read(5).choices, trained.read(5).choices);
}

std::string refusal(const WorkFolder& folder, const Made& made, const Settings& more = {}) {
  write_trace(folder / "made.routes", made);
  Settings settings = in_fp64({{"train.steps", "1"}, {"routing.replay", folder / "made.routes"}});
  settings.insert(settings.end(), more.begin(), more.end());
  TinyRun run(folder / "run", settings);
  return error_of<InputError>([&] { run.run(Checkpoints::kOff); });
}

TEST(RouteReplay, ClosesOnWhatItLacks) {
  const WorkFolder folder;
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(refusal(folder, {.sequences = 3}), "sequence 3 of the data is not in the trace. Record");
  has(refusal(folder, {.first_index = 1}), "sequence 0 of the data is not in the trace");
  has(refusal(folder, {.first_index = -1}), "none of its sequences says which of the data it is");
  has(refusal(folder, {.tokens = 6}), "sequence 0 of step 1 has 6 tokens: expected 8, or one less");
  has(refusal(folder, {.tokens = 9}), "has 9 tokens: expected 8");
  has(refusal(folder, {.detail = TraceDetail::kCounts}), "has counts only");
  has(refusal(folder, {.hole = 3}), "token 3 of sequence 0 has no 2 experts in layer");
  has(refusal(folder, {.twice = true}), "sequence 0 of the data is in step 1 and in step 2");
  has(refusal(folder, {}, {{"model", "demo"}}), "experts");
}

TEST(RouteReplay, OtherTextIsRefused) {
  const WorkFolder folder;
  TinyRun(folder / "run", {{"routing.record", folder / "made.routes"}, {"train.steps", "2"}})
      .run(Checkpoints::kOff);
  const auto replayed = [&](const std::string& seed) {
    return error_of<InputError>([&] {
      TinyRun(folder / "again",
              {{"routing.replay", folder / "made.routes"}, {"train.steps", "2"}, {"train.seed", seed}})
          .run(Checkpoints::kOff);
    });
  };
  EXPECT_EQ(replayed("1"), "no error");
  EXPECT_NE(replayed("2").find("made.routes] was recorded on other text: got checksum "), std::string::npos)
      << replayed("2");
}

TEST(RouteReplay, GapsAreLeftToTheRoutersWhereThatIsAskedFor) {
  const WorkFolder folder;
  write_trace(folder / "made.routes", {.sequences = 3});
  TinyRun run(folder / "run", in_fp64({{"train.steps", "2"},
                                       {"routing.replay", folder / "made.routes"},
                                       {"routing.replay_gaps", "choose"}}));
  const TrainOutcome out = run.run(Checkpoints::kOff).outcome;
  EXPECT_DOUBLE_EQ(out.records[0].replayed_choices.value(), 0.75);
  EXPECT_DOUBLE_EQ(out.records[1].replayed_choices.value(), 0);
}

TEST(RouteReplay, OneOtherChoiceIsFound) {
  const WorkFolder folder;
  write_trace(folder / "made.routes");
  TinyRun run(folder / "run", in_fp64({{"routing.replay", folder / "made.routes"}}));
  RouteReplay replay(run.job, run.model);
  const std::vector<at::Tensor> choices = replay.choices(0, 4);
  at::Tensor counts = at::zeros({run.model.num_layers, run.model.num_experts}, at::kLong);
  for (const i64 layer : layers_with_experts(run.model)) {
    counts[layer].copy_(
        choices[static_cast<std::size_t>(layer)].reshape({-1}).to(at::kLong).bincount({}, counts.size(1)));
  }
  replay.check_counts(counts);
  const i64 layer = layers_with_experts(run.model)[0];
  counts[layer][0].add_(1);
  counts[layer][1].sub_(1);
  EXPECT_THROW(replay.check_counts(counts), Error);
}

}  // namespace
}  // namespace hetermoe
