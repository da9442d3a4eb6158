#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <iostream>

#include "hetermoe/report/table.h"
#include "hetermoe/train/session/session.h"
#include "tests/fault/scene.h"
#include "tests/support/faults.h"
#include "tests/support/one_thread.h"

// Each exchange call of a change of plan, on each device, with each kind of fault.
namespace hetermoe::testing {
namespace {

/// zebra -> ep on three devices.
struct Change {
  Scene from = scene_of("zebra"), to = scene_of("ep");

  /// How it ends: the error, "" = none.
  std::string run(const HookedTransport::Hook& on_send, const std::function<void()>& on_abort, bool checksums,
                  Seconds watchdog) const {
    Session::Options options;
    options.step = from.step;
    Session session(from.model, from.cluster, from.plan, options, [&](const Schedule&) {
      std::unique_ptr<Transport> transport = std::make_unique<HookedTransport>(
          make_in_process_transport(from.cluster.num_devices()), on_send, HookedTransport::Hook(), on_abort);
      return checksums ? make_checksummed_transport(std::move(transport)) : std::move(transport);
    });
    session.initialize(1);
    ExecutorOptions executor;
    executor.watchdog = watchdog;
    try {
      session.change_plan(to.plan, executor);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  Schedule schedule() const {
    return make_migration(moves_between(from.plan, to.plan, from.model, from.cluster).moves,
                          from.cluster.num_devices())
        .schedule;
  }
};

std::string run_with(const Change& change, const FaultPoint& point, Seconds watchdog, bool& altered) {
  const Deadline deadline(std::chrono::seconds(60));
  FaultPlanter planter(point);
  const bool checksums = point.fault == Fault::kFlip;
  const std::string error =
      change.run([&](const ExchangeCall& call, std::vector<Message>& out) { planter.on_send(call, out); },
                 [&] { planter.on_abort(); }, checksums, watchdog);
  altered = planter.altered();
  return error;
}

/// Op and the device that met the fault.
void expect_named(const Change& change, const Schedule& schedule, const FaultPoint& point,
                  const std::string& error) {
  const std::string op = to_string(schedule.ops[static_cast<std::size_t>(point.op)]);
  const auto name = [&](DeviceId d) {
    return fmt::format("device {} ({})", d, change.from.cluster.device_name(d));
  };
  if (point.fault == Fault::kGone) {
    EXPECT_TRUE(has(error, "[watchdog]"));
    EXPECT_TRUE(
        has(error, fmt::format("{} exchanges with its peers, has nothing from {}", op, name(point.device))));
  } else {
    const DeviceId who = point.fault == Fault::kFail ? point.device : point.peer;
    EXPECT_TRUE(has(error, fmt::format("[{} {}]", name(who), op)));
  }
}

TEST(MigrateFault, EveryFaultOfEveryCallEndsTheRunWithOpAndDeviceOrChangesNothing) {
  const Change change;
  const Schedule schedule = change.schedule();
  ASSERT_GE(schedule.num_ops(), 3);
  Table table({"fault", "calls", "one named error", "no error", "nothing to alter"});
  for (const Fault fault : all_faults()) {
    i64 calls = 0, named = 0, fine = 0, untouched = 0;
    for (const FaultPoint& point : fault_points(schedule, fault)) {
      bool altered = false;
      std::string error;
      for (const Seconds watchdog : watchdogs_for(fault)) {
        error = run_with(change, point, watchdog, altered);
        if (!woke_early(fault, to_string(schedule.ops[static_cast<std::size_t>(point.op)]), error)) break;
      }
      ++calls;
      if (!error.empty()) {
        expect_named(change, schedule, point, error);
        ++named;
      } else if (alters(fault) && !altered) {
        ++untouched;
      } else {
        ++fine;
      }
    }
    table.add_row({name_of(fault), std::to_string(calls), std::to_string(named), std::to_string(fine),
                   std::to_string(untouched)});
    EXPECT_EQ(fine > 0, fault == Fault::kDelay) << name_of(fault);
    EXPECT_EQ(named > 0, fault != Fault::kDelay) << name_of(fault);
  }
  std::cout << table.str();
}

/// Alters the numbers of the first message that has some.
std::string run_with_number(const Change& change, std::size_t number, i64 difference) {
  std::atomic<bool> done = false;
  return change.run(
      [&](const ExchangeCall& call, std::vector<Message>& out) {
        for (std::size_t i = 0; i < out.size(); ++i) {
          if (call.participants[i] == call.self || out[i].numbers.empty() || done.exchange(true)) continue;
          out[i].numbers[number] += difference;
        }
      },
      {}, false, 60);
}

TEST(MigrateFault, AMessageOfAnotherLayerPartExpertOrCountIsRefused) {
  const Change change;
  EXPECT_EQ(run_with_number(change, 0, 0), "");
  for (std::size_t number = 0; number < 3; ++number) {
    const std::string error = run_with_number(change, number, 1);
    EXPECT_TRUE(has(error, fmt::format("] number {} of ", number)));
    EXPECT_TRUE(has(error, "migrate"));
    EXPECT_TRUE(has(error, "got "));
  }
  EXPECT_TRUE(has(run_with_number(change, 3, -1), "optimizer updates of "));
}

}  // namespace
}  // namespace hetermoe::testing
