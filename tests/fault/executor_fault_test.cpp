#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "tests/fault/scene.h"
#include "tests/support/error_of.h"
#include "tests/support/faults.h"
#include "tests/support/one_thread.h"

// Whatever fails, wherever: run() throws once, says where, and nothing hangs or stays behind.
namespace hetermoe::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::size_t num_threads() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

/// Once it has stayed the same for a tenth of a second: a thread that was joined is listed a moment longer.
std::size_t settled_num_threads() {
  std::size_t count = num_threads();
  for (int same = 0; same < 10; ++same) {
    std::this_thread::sleep_for(milliseconds(10));
    if (num_threads() != count) same = 0;
    count = num_threads();
  }
  return count;
}

std::string step_error(Rig& rig) {
  return error_of([&] { rig.executor().run(random_input(rig.plan(), rig.model())); });
}

// Claim (ExecutorFaults.AnOpThatThrowsOnAnyLane*, ExecutorFaults.AMessageThatIsLostAtAnyTransfer*): an op
// that throws, a message that is lost, at every op and lane: reported once, with its place
TEST(ExecutorFaults, AnOpThatThrowsOnAnyLaneIsReportedOnceWithItsPlace) {
  const Scene s = scene_of("zebra");
  const Schedule schedule = build_schedule(s.plan, s.model, s.step);
  std::thread([] {}).join();  // a sanitizer's own thread starts with the first of ours
  const std::size_t threads_before = settled_num_threads();
  std::set<OpKind> kinds;
  std::set<Queue> queues;
  for (OpId id = 0; id < schedule.num_ops(); ++id) {
    for (const LaneId lane : schedule.lanes_of(id)) {
      const Deadline deadline(seconds(60));
      const Op target = schedule.ops[static_cast<std::size_t>(id)];
      RigOptions options;
      options.executor.before_op = [&](const Op& op, DeviceId device) {
        if (op == target && device == device_of(lane)) throw std::runtime_error("planted fault");
      };
      const std::unique_ptr<Rig> rig = make_rig(s, options);
      const std::string text = step_error(*rig);
      EXPECT_TRUE(has(text, "planted fault"));
      EXPECT_TRUE(has(text, to_string(target)));
      EXPECT_TRUE(
          has(text, fmt::format("[device {} ({})", device_of(lane), s.cluster.device_name(device_of(lane)))));
      kinds.insert(target.kind);
      queues.insert(queue_of(lane));
    }
  }
  EXPECT_EQ(kinds.size(), 12);  // every OpKind
  EXPECT_EQ(queues.size(), 5);
  for (int tries = 0; tries < 1000 && num_threads() != threads_before; ++tries)
    std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(num_threads(), threads_before);
}

TEST(ExecutorFaults, AMessageThatIsLostAtAnyTransferIsReported) {
  const Scene s = scene_of("zebra");
  const Schedule schedule = build_schedule(s.plan, s.model, s.step);
  i64 transfers = 0;
  for (OpId id = 0; id < schedule.num_ops(); ++id) {
    if (is_compute(schedule.ops[static_cast<std::size_t>(id)].kind)) continue;
    for (const bool sending : {true, false}) {
      const Deadline deadline(seconds(60));
      const DeviceId device = device_of(schedule.lanes_of(id).back());
      const HookedTransport::Hook hook = [&](const ExchangeCall& call, std::vector<Message>&) {
        if (call.op == id && call.self == device) throw TransportError("the wire broke");
      };
      RigOptions options;
      (sending ? options.on_send : options.on_receive) = hook;
      const std::unique_ptr<Rig> rig = make_rig(s, options);
      EXPECT_TRUE(has(step_error(*rig), "the wire broke"));
      ++transfers;
    }
  }
  EXPECT_GT(transfers, 40);
}

TEST(ExecutorFaults, WhatIsNoExceptionIsReportedToo) {
  const Deadline deadline(seconds(60));
  RigOptions options;
  options.executor.before_op = [](const Op& op, DeviceId) {
    if (op.kind == OpKind::kHead) throw 42;
  };
  EXPECT_TRUE(has(step_error(*make_rig(scene_of("zebra"), options)), "head.F"));
}

TEST(ExecutorFaults, NoUseAfterAnError) {
  const Deadline deadline(seconds(60));
  std::atomic<bool> fails = true;
  RigOptions options;
  options.executor.before_op = [&](const Op& op, DeviceId) {
    if (fails && op.kind == OpKind::kHead) throw std::runtime_error("planted fault");
  };
  const std::unique_ptr<Rig> rig = make_rig(scene_of("zebra"), options);
  EXPECT_TRUE(has(step_error(*rig), "planted fault"));
  fails = false;
  EXPECT_THROW(rig->executor().run(random_input(rig->plan(), rig->model())), InternalError);
}

TEST(ExecutorFaults, AFaultInALaterStepIsReportedToo) {
  const Deadline deadline(seconds(60));
  std::atomic<int> heads = 0;
  RigOptions options;
  options.executor.before_op = [&](const Op& op, DeviceId) {
    if (op.kind == OpKind::kHead && ++heads > 8) throw std::runtime_error("planted fault");
  };
  const std::unique_ptr<Rig> rig = make_rig(scene_of("zebra"), options);
  EXPECT_EQ(step_error(*rig), "no error");
  EXPECT_EQ(step_error(*rig), "no error");
  EXPECT_TRUE(has(step_error(*rig), "planted fault"));
}

/// How long a watchdog says that no op ended; 0 = it says nothing.
double quiet_seconds(const std::string& text) {
  const std::string words = "[watchdog] no op ended for ";
  const std::size_t at = text.find(words);
  return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + words.size(), nullptr);
}

TEST(ExecutorFaults, WatchdogNamesTheOpThatNeverEndsAndWhoWaitsForIt) {
  const Deadline deadline(seconds(60));
  Gate gate;
  RigOptions options;
  options.executor.watchdog = 1;
  options.executor.before_op = [&](const Op& op, DeviceId device) {
    if (op.kind == OpKind::kExperts && op.layer == 1 && op.microbatch == 0 && device == 1) gate.wait();
  };
  options.on_abort = [&] { gate.open(); };  // the watchdog has fired
  const std::string text = step_error(*make_rig(scene_of("zebra"), options));
  EXPECT_GE(quiet_seconds(text), 1) << text;
  EXPECT_LT(quiet_seconds(text), 30) << text;
  EXPECT_TRUE(has(text, "device 1 (V100#1) compute: "));
  EXPECT_TRUE(has(text, "experts.F l1 m0 computes"));
  EXPECT_TRUE(has(text, "device 1 (V100#1) to_attention: "));
  EXPECT_TRUE(has(text, "combine.F l1 m0 waits for experts.F l1 m0"));
  EXPECT_TRUE(has(text, "device 0 (A40#0) to_attention: "));
  EXPECT_TRUE(has(text, "combine.F l1 m0 exchanges with its peers"));
}

TEST(ExecutorFaults, WatchdogStopsATransferThatNeverEnds) {
  const Deadline deadline(seconds(60));
  Gate gate;
  RigOptions options;
  options.executor.watchdog = 1;
  options.on_send = [&](const ExchangeCall& call, std::vector<Message>&) {
    if (call.name == "dispatch.B l1 m1" && call.self == 2) gate.wait();
  };
  options.on_abort = [&] { gate.open(); };
  const std::string text = step_error(*make_rig(scene_of("zebra"), options));
  EXPECT_TRUE(has(text, "dispatch.B l1 m1 exchanges with its peers"));
  EXPECT_TRUE(has(text, "attention.B l1 m1 waits for dispatch.B l1 m1"));
}

TEST(ExecutorFaults, ALaneThatStaysInItsOpAfterAFailureIsReportedAgain) {
  const Deadline deadline(seconds(60));
  Gate failed, gate;
  RigOptions options;
  options.executor.watchdog = 0.5;
  options.on_abort = [&] { failed.open(); };
  std::atomic<bool> stays = false;
  options.executor.before_op = [&](const Op& op, DeviceId device) {
    if (op.kind != OpKind::kExperts) return;
    if (device == 1) {
      stays = true;
      gate.wait();
    } else if (device == 0) {
      while (!stays) std::this_thread::sleep_for(milliseconds(1));
      throw std::runtime_error("planted fault");
    }
  };
  const std::unique_ptr<Rig> rig = make_rig(scene_of("zebra"), options);
  ::testing::internal::CaptureStderr();
  std::thread opener([&] {
    failed.wait();
    std::this_thread::sleep_for(seconds(3));  // the watchdog says so after half a second
    gate.open();
  });
  const std::string text = step_error(*rig);
  opener.join();
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(has(text, "planted fault"));
  EXPECT_TRUE(has(printed, "[watchdog] the step failed, but some lanes do not leave their op"));
  EXPECT_TRUE(has(printed, "device 1 (V100#1) compute: "));
}

TEST(ExecutorFaults, ASlowButLivelyStepDoesNotWakeTheWatchdog) {
  const Deadline deadline(seconds(60));
  RigOptions options;
  options.executor.watchdog = 0.5;
  options.executor.before_op = [](const Op& op, DeviceId) {
    if (op.kind == OpKind::kAttention) std::this_thread::sleep_for(milliseconds(100));
  };
  std::string error;
  for (int attempt = 0; attempt < 3 && error != "no error"; ++attempt) {  // a machine may stand still, too
    const auto begin = std::chrono::steady_clock::now();
    error = step_error(*make_rig(scene_of("zebra"), options));
    const std::chrono::duration<double> lasted = std::chrono::steady_clock::now() - begin;
    EXPECT_GT(lasted.count(), options.executor.watchdog);
  }
  EXPECT_EQ(error, "no error");
}

TEST(ExecutorFaults, BufferThatTheTableForgetsIsALeak) {
  const Deadline deadline(seconds(60));
  const std::unique_ptr<Rig> rig = make_rig(scene_of("zebra"), {});
  // The lifetimes are those of recompute: local; now the experts keep activations that nobody frees.
  rig->plan().recompute = Recompute::kOff;
  const std::string text = step_error(*rig);
  EXPECT_TRUE(has(text, "still holds"));
  EXPECT_TRUE(has(text, "saved_experts of layer 0 microbatch 0"));
}

TEST(ExecutorFaults, ReadingWhatNobodyHasWrittenNamesBothOps) {
  const Deadline deadline(seconds(60));
  const Scene s = scene_of("zebra");
  Gate gate;
  RigOptions options;
  options.alter = [](Schedule& schedule) {
    for (std::size_t op = 0; op < schedule.ops.size(); ++op) {
      if (to_string(schedule.ops[op]) != "dispatch.F l0 m0") continue;
      const auto begin = schedule.deps.begin() + schedule.dep_begin[op],
                 end = schedule.deps.begin() + schedule.dep_begin[op + 1];
      const i64 dropped = end - begin;
      schedule.deps.erase(begin, end);
      for (std::size_t later = op + 1; later < schedule.dep_begin.size(); ++later)
        schedule.dep_begin[later] -= dropped;
    }
  };
  options.executor.before_op = [&](const Op& op, DeviceId) {
    if (to_string(op) == "attention.F l0 m0") gate.wait();
  };
  options.on_abort = [&] { gate.open(); };
  const std::string text = step_error(*make_rig(s, options));
  EXPECT_TRUE(has(text, "dispatch.F l0 m0]"));
  EXPECT_TRUE(has(text, "of attention.F l0 m0, which has not ended: a dependency is missing"));
}

}  // namespace
}  // namespace hetermoe::testing
