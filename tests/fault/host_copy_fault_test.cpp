#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "hetermoe/plan/offload.h"
#include "tests/fault/scene.h"
#include "tests/support/error_of.h"
#include "tests/support/faults.h"

// Each copy between a device and its host fails or stalls, on either side: how does the step end?
namespace hetermoe::testing {
namespace {

Scene offloaded_scene(const std::vector<std::string>& entries = {"optimizer", "experts.weights"}) {
  Scene s = scene_of("zebra");
  for (Node& node : s.cluster.nodes) node.host = NodeHost{.memory_gib = 64};
  offload(s.plan, s.model, s.cluster, entries, "test");
  s.plan.slots.saved = 1;
  return s;
}

struct Copy {
  OpId op;
  PlaceId side;
};

std::vector<Copy> copies_of(const Scene& s) {
  const Schedule schedule = build_schedule(s.plan, s.model, s.step);
  std::vector<Copy> copies;
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    if (!is_host_copy(schedule.ops[static_cast<std::size_t>(op)])) continue;
    for (const LaneId lane : schedule.lanes_of(op)) copies.push_back({op, device_of(lane)});
  }
  return copies;
}

/// The error of a step in which `fault` runs before the copy on one side, and `on_abort` when the step fails.
std::string error_with(const Scene& s, const Copy& copy, Seconds watchdog, const std::function<void()>& fault,
                       const std::function<void()>& on_abort = {}) {
  const Deadline deadline(std::chrono::seconds(60));
  const Schedule schedule = build_schedule(s.plan, s.model, s.step);
  const Op& at = schedule.ops[static_cast<std::size_t>(copy.op)];
  std::atomic<i64> earlier = 0;  // the same copy of earlier visits
  for (OpId op = 0; op < copy.op; ++op) earlier += schedule.ops[static_cast<std::size_t>(op)] == at ? 1 : 0;
  RigOptions options;
  options.executor.watchdog = watchdog;
  options.on_abort = on_abort;
  options.executor.before_op = [&](const Op& op, DeviceId device) {
    if (op == at && device == copy.side && earlier-- == 0) fault();
  };
  const std::unique_ptr<Rig> rig = make_rig(s, options);
  return error_of([&] { rig->executor().run(random_input(s.plan, s.model)); });
}

std::string name_of_copy(const Scene& s, const Copy& copy) {
  const Schedule schedule = build_schedule(s.plan, s.model, s.step);
  return to_string(schedule.ops[static_cast<std::size_t>(copy.op)]);
}

void expect_failures_named(const Scene& s, std::size_t at_least) {
  at::set_num_threads(1);
  const std::vector<Copy> copies = copies_of(s);
  EXPECT_GE(copies.size(), at_least);
  for (const Copy& copy : copies) {
    const std::string error = error_with(s, copy, 60, [] { fail<DeviceError>("test", "the link is gone"); });
    const std::string place = fmt::format("device {} ({})", copy.side, s.cluster.device_name(copy.side));
    EXPECT_NE(error.find("the link is gone"), std::string::npos) << error;
    EXPECT_NE(error.find(place), std::string::npos) << error;
    EXPECT_NE(error.find(name_of_copy(s, copy)), std::string::npos) << error;
  }
}

void expect_stalls_named(const Scene& s) {
  at::set_num_threads(1);
  const std::vector<Copy> copies = copies_of(s);
  for (const std::size_t at : {std::size_t{0}, copies.size() / 2, copies.size() - 1}) {
    Gate gate;
    const std::string error = error_with(
        s, copies[at], 1, [&] { gate.wait(); }, [&] { gate.open(); });
    EXPECT_NE(error.find("[watchdog]"), std::string::npos) << error;
    EXPECT_NE(error.find(name_of_copy(s, copies[at])), std::string::npos) << error;
  }
}

// Claim (HostCopyFault.*): every copy between a device and its host that fails or stalls ends the step with
// op and device
TEST(HostCopyFault, EveryCopyThatFailsIsNamed) { expect_failures_named(offloaded_scene(), 40); }
TEST(HostCopyFault, EveryCopyOfActivationsThatFailsIsNamed) {
  expect_failures_named(offloaded_scene({"saved"}), 16);
}
TEST(HostCopyFault, ACopyThatStallsEndsTheStepWithItsName) { expect_stalls_named(offloaded_scene()); }
TEST(HostCopyFault, ACopyOfActivationsThatStallsEndsTheStepWithItsName) {
  expect_stalls_named(offloaded_scene({"saved"}));
}

}  // namespace
}  // namespace hetermoe::testing
