#include <gtest/gtest.h>

#include "hetermoe/cost/roofline.h"
#include "tests/fault/scene.h"
#include "tests/support/error_of.h"
#include "tests/support/fake_stream.h"
#include "tests/support/faults.h"

// Lanes that launch their ops on streams and chain them by events, as on a GPU.
namespace hetermoe::testing {
namespace {

struct StreamsOutcome {
  std::vector<double> losses;
  TensorsByName values;
  Timeline timeline;
};

StreamsOutcome three_steps(const Scene& s, const MakeStream& streams, std::size_t ops_ahead = 4) {
  RigOptions options;
  if (streams) options.executor.make_stream = streams;
  options.executor.ops_ahead = ops_ahead;
  const std::unique_ptr<Rig> rig = make_rig(s, options);
  StepInput input = random_input(rig->plan(), rig->model());
  input.learning_rate = 1e-2;
  StreamsOutcome out;
  for (input.step = 0; input.step < 3; ++input.step) out.losses.push_back(rig->executor().run(input).loss);
  out.values = rig->values();
  out.timeline = rig->executor().timeline();
  return out;
}

void expect_equal_bits(const StreamsOutcome& a, const StreamsOutcome& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  for (const auto& [name, value] : a.values) EXPECT_TRUE(at::equal(value, b.values.at(name))) << what << name;
}

// Claim (Streams.*): events between streams are enough: delays change no bit, a wait that is dropped or a
// buffer that is freed early does
TEST(Streams, DelaysBetweenLaunchAndEndChangeNoBit) {
  for (const char* strategy : {"zebra", "ep-overlap", "dist-ep"}) {
    for (const Recompute recompute :
         {Recompute::kOff, Recompute::kLocal, Recompute::kAhead, Recompute::kSelect}) {
      Scene s = scene_of(strategy);
      s.plan.recompute = recompute;
      if (recompute == Recompute::kAhead) s.plan.weight_gradients = WeightGradients::kAfter;
      const StreamsOutcome expected = three_steps(s, {});
      for (u64 seed = 0; seed < 3; ++seed) {
        const Deadline deadline(std::chrono::seconds(60));
        expect_equal_bits(expected, three_steps(s, fake_streams({.seed = seed, .most_delay_us = 300})),
                          fmt::format("{} seed {} ", strategy, seed));
      }
    }
  }
}

TEST(Streams, AnyNumberOfOpsAheadGivesTheSameBits) {
  const Scene s = scene_of("zebra");
  const StreamsOutcome expected = three_steps(s, {});
  for (const std::size_t ahead : {0, 1, 1000})
    expect_equal_bits(expected, three_steps(s, fake_streams({.most_delay_us = 100}), ahead), "");
}

TEST(Streams, SpansAreThoseOfTheEventsAndKeepTheOrderOfTheSchedule) {
  const Scene s = scene_of("zebra");
  const StreamsOutcome out = three_steps(s, fake_streams({.most_delay_us = 200}));
  const Schedule schedule = build_schedule(s.plan, s.model, s.step);
  std::map<std::pair<OpId, DeviceId>, Span> by_op;
  for (const Span& span : out.timeline.spans) by_op[{span.op, span.device}] = span;
  for (const Span& span : out.timeline.spans) {
    EXPECT_LE(span.start, span.end);
    EXPECT_LE(span.end, out.timeline.step);
    for (const OpId dep : schedule.deps_of(span.op)) {
      const auto found = by_op.find({dep, span.device});
      if (found != by_op.end()) {
        EXPECT_LE(found->second.end, span.start + 1e-6);
      }
    }
  }
}

/// Ends the process with 1 when steps with the planted fault are not what they should be, with any of four
/// seeds: by chance the order may be the right one.
[[noreturn]] void run_with_fault(FakeStreamOptions planted) {
  const Deadline deadline(std::chrono::seconds(60));
  const Scene s = scene_of("zebra");
  const StreamsOutcome expected = three_steps(s, {});
  for (planted.seed = 0; planted.seed < 4; ++planted.seed) {
    StreamsOutcome got;
    const std::string error = error_of([&] { got = three_steps(s, fake_streams(planted)); });
    if (error != "no error" || got.losses != expected.losses) std::_Exit(1);
  }
  std::_Exit(0);
}

/// In a process of its own: who reads what is not there may crash.
TEST(Streams, WithoutTheirWaitsOrWithEarlyFreesAStepIsWrong) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto has_failed = [](int status) { return status != 0; };
  EXPECT_EXIT(run_with_fault({.most_delay_us = 2000}), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(run_with_fault({.most_delay_us = 2000, .forgets_waits = true}), has_failed, "");
  EXPECT_EXIT(run_with_fault({.most_delay_us = 2000, .releases_at_once = true}), has_failed, "");
}

TEST(Streams, AnErrorOnAStreamIsReportedOnceWithItsPlace) {
  const Scene s = scene_of("zebra");
  for (const OpKind kind : {OpKind::kExperts, OpKind::kDispatch, OpKind::kUpdate}) {
    const Deadline deadline(std::chrono::seconds(60));
    RigOptions options;
    options.executor.make_stream = fake_streams({.most_delay_us = 100});
    options.on_send = [&](const ExchangeCall& call, std::vector<Message>&) {
      if (kind == OpKind::kDispatch && call.name.starts_with("dispatch"))
        throw TransportError("the wire broke");
    };
    options.executor.before_op = [&](const Op& op, DeviceId) {
      if (op.kind == kind && kind != OpKind::kDispatch) throw std::runtime_error("planted fault");
    };
    const std::unique_ptr<Rig> rig = make_rig(s, options);
    const StepInput input = random_input(rig->plan(), rig->model());
    const std::string text = error_of([&] { rig->executor().run(input); });
    EXPECT_TRUE(has(text, kind == OpKind::kDispatch ? "the wire broke" : "planted fault")) << text;
    EXPECT_TRUE(has(text, name_of(kind))) << text;
  }
}

TEST(Streams, UnderAnEmulatedClockALaneWaitsForEachOp) {
  const Scene s = scene_of("zebra");
  RigOptions options;
  const RooflineCost truth(s.model, s.cluster, s.plan);
  options.executor.truth = &truth;
  options.executor.clock = ClockKind::kVirtual;
  const std::unique_ptr<Rig> plain = make_rig(s, options);
  options.executor.make_stream = fake_streams({.most_delay_us = 100});
  const std::unique_ptr<Rig> streamed = make_rig(s, options);
  const StepInput input = random_input(plain->plan(), plain->model());
  EXPECT_EQ(plain->executor().run(input).step, streamed->executor().run(input).step);
}

}  // namespace
}  // namespace hetermoe::testing
