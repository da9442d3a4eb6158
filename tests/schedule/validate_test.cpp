#include <gtest/gtest.h>

#include <functional>

#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

using test::find_op, test::make_cluster, test::make_model, test::make_zebra_plan;
using test::has_fault, test::has_text, test::no_faults;

struct Case {
  ModelConfig model;
  Plan plan;
  StepOptions options;
  Schedule schedule;
};

Case make_case(test::ModelShape model, test::ZebraShape shape,
               const std::function<void(Plan&, StepOptions&)>& edit = {}) {
  Case c;
  c.model = make_model(model);
  c.plan = make_zebra_plan(c.model, make_cluster({shape.attention, shape.experts}), shape);
  if (edit) edit(c.plan, c.options);
  c.schedule = build_schedule(c.plan, c.model, c.options);
  return c;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back(make_case({}, {}));
  all.push_back(make_case({}, {2, 2, 2}));
  all.push_back(make_case({.num_layers = 3, .dense = {1}}, {2, 1, 2, {1, 0, 0}}));
  all.push_back(make_case({}, {.attention = 2, .experts = 2, .strategy = "ep"}));
  all.push_back(make_case({}, {}, [](Plan& plan, StepOptions& options) {
    plan.recompute = Recompute::kResend;
    options.balance = true;
  }));
  all.push_back(make_case({}, {}, [](Plan& plan, StepOptions&) {
    plan.chunks = 2;
    plan.recompute = Recompute::kOff;
    plan.queue_binding = QueueBinding::kName;
  }));
  all.push_back(
      make_case({}, {2, 1, 2}, [](Plan& plan, StepOptions&) {  // a pipeline whose stages share experts
        plan.order = OrderPolicy::kOneFOneB;
        plan.groups[0].layers[0].attention = plan.groups[0].embed = {{{0, 2}}};
        plan.groups[0].layers[1].attention = plan.groups[0].head = {{{1, 2}}};
      }));
  return all;
}

std::vector<std::string> faults_of(const Case& c, const Schedule& schedule) {
  return validate(schedule, c.plan, c.model, c.options);
}

/// The schedule without dependency number `index`.
Schedule without_dependency(Schedule schedule, std::size_t index) {
  schedule.deps.erase(schedule.deps.begin() + static_cast<std::ptrdiff_t>(index));
  for (i64& begin : schedule.dep_begin) begin -= begin > static_cast<i64>(index) ? 1 : 0;
  return schedule;
}

/// Exchanges the ops at append positions `first` and first + 1, which must not depend on each other.
Schedule with_swapped_ops(const Schedule& schedule, OpId first) {
  Schedule out;
  out.num_devices = schedule.num_devices;
  out.states = schedule.states;
  const auto renamed = [&](OpId op) { return op == first ? first + 1 : op == first + 1 ? first : op; };
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    const OpId old = renamed(op);
    out.ops.push_back(schedule.ops[static_cast<std::size_t>(old)]);
    for (const LaneId lane : schedule.lanes_of(old)) out.lanes.push_back(lane);
    std::vector<OpId> deps;
    for (const OpId dep : schedule.deps_of(old)) deps.push_back(renamed(dep));
    std::sort(deps.begin(), deps.end());
    out.deps.insert(out.deps.end(), deps.begin(), deps.end());
    out.lane_begin.push_back(static_cast<i64>(out.lanes.size()));
    out.dep_begin.push_back(static_cast<i64>(out.deps.size()));
  }
  return out;
}

TEST(Validate, BuiltSchedulesAreSound) {
  for (const Case& c : cases()) EXPECT_TRUE(no_faults(faults_of(c, c.schedule))) << to_text(c.schedule);
}

TEST(Validate, EveryDependencyIsMissed) {
  for (const Case& c : cases()) {
    ASSERT_GT(c.schedule.deps.size(), 20u);
    for (std::size_t d = 0; d < c.schedule.deps.size(); ++d) {
      EXPECT_FALSE(faults_of(c, without_dependency(c.schedule, d)).empty())
          << "dependency " << d << " on op " << c.schedule.deps[d];
    }
  }
}

TEST(Validate, NamesBothOpsAndTheBufferOfAMissingDependency) {
  const Case c = make_case({.num_layers = 1}, {});
  const OpId dispatch = find_op(c.schedule, "dispatch.F l0 m0"),
             attention = find_op(c.schedule, "attention.F l0 m0");
  const auto at = static_cast<std::size_t>(c.schedule.dep_begin[static_cast<std::size_t>(dispatch)]);
  ASSERT_EQ(c.schedule.deps[at], attention);
  const std::vector<std::string> faults = faults_of(c, without_dependency(c.schedule, at));
  ASSERT_FALSE(faults.empty());
  EXPECT_EQ(faults[0],
            fmt::format("op {} dispatch.F l0 m0 may start on device 0 before op {} attention.F l0 m0 has "
                        "ended, though both use send (layer 0, microbatch 0)",
                        dispatch, attention));
}

/// Two neighbours of one lane that use a common buffer, in the wrong order: forward before the embedding it
/// reads.
TEST(Validate, SwappedLaneOrderIsNoticed) {
  const Case c = make_case({.num_layers = 1}, {.microbatches = 1});
  const OpId embed = find_op(c.schedule, "embed.F m0");
  ASSERT_EQ(find_op(c.schedule, "attention.F l0 m0"), embed + 1);
  const std::vector<std::string> faults = faults_of(c, with_swapped_ops(c.schedule, embed));
  EXPECT_TRUE(has_fault(faults, "reads hidden (layer 0, microbatch 0), which no earlier op writes"));
}

/// Every pair of neighbours: a swap within a lane is noticed exactly when the two share a buffer.
TEST(Validate, SwapOfIndependentOpsStaysSound) {
  const Case c = make_case({}, {2, 2, 2});
  const OpId second = find_op(c.schedule, "embed.F m0", 1);
  EXPECT_TRUE(no_faults(faults_of(c, with_swapped_ops(c.schedule, second - 1))));
}

class Tampered : public ::testing::Test {
 protected:
  Case c_ = make_case({}, {2, 2, 2});
  Schedule s_ = c_.schedule;
  OpId dispatch_ = find_op(s_, "dispatch.F l0 m0");
  std::size_t lane_ = static_cast<std::size_t>(s_.lane_begin[static_cast<std::size_t>(dispatch_)]);

  void expect_fault(const std::string& text) { EXPECT_TRUE(has_fault(faults_of(c_, s_), text)); }
};

TEST_F(Tampered, WrongQueue) {
  for (std::size_t i = lane_; i < lane_ + 4; ++i) s_.lanes[i] += 1;
  expect_fault(
      "has lanes 0.to_attention 1.to_attention 2.to_attention 3.to_attention, expected 0.to_expert "
      "1.to_expert");
}

TEST_F(Tampered, LanesNotAscending) {
  std::swap(s_.lanes[lane_], s_.lanes[lane_ + 1]);
  expect_fault("has lanes 1.to_expert 0.to_expert");
}

TEST_F(Tampered, MissingParticipant) {
  s_.lanes.erase(s_.lanes.begin() + static_cast<std::ptrdiff_t>(lane_));
  for (i64& begin : s_.lane_begin) begin -= begin > static_cast<i64>(lane_) ? 1 : 0;
  expect_fault("has lanes 1.to_expert 2.to_expert 3.to_expert, expected 0.to_expert 1.to_expert");
}

TEST_F(Tampered, ExtraParticipant) {
  const OpId embed = find_op(s_, "embed.F m0");
  const auto at = static_cast<std::size_t>(s_.lane_begin[static_cast<std::size_t>(embed)]);
  s_.lanes.insert(s_.lanes.begin() + static_cast<std::ptrdiff_t>(at) + 1, lane_of(3, Queue::kCompute));
  for (i64& begin : s_.lane_begin) begin += begin > static_cast<i64>(at) ? 1 : 0;
  expect_fault("has lanes 0.compute 3.compute, expected 0.compute");
}

TEST_F(Tampered, ForwardDependency) {
  s_.deps[0] = s_.num_ops() - 1;
  expect_fault("which is not before it");
}

TEST_F(Tampered, DependencyAcrossDevices) {
  const OpId experts = find_op(s_, "experts.F l0 m0", 2);
  s_.deps[static_cast<std::size_t>(s_.dep_begin[static_cast<std::size_t>(experts)])] =
      find_op(s_, "embed.F m0", 0);
  expect_fault("but they share no device");
}

TEST_F(Tampered, DependencyWithoutReason) {
  const OpId update = s_.num_ops() - 1;  // on device 1, behind another update that waits for the norm
  const OpId embed = find_op(s_, "embed.F m0", 1);
  ASSERT_TRUE(s_.deps_of(update).empty());
  s_.deps.push_back(embed);
  s_.dep_begin.back() += 1;
  expect_fault("but they share no buffer");
}

TEST_F(Tampered, OpMissing) {
  s_.ops.pop_back();
  s_.lanes.pop_back();
  s_.lane_begin.pop_back();
  s_.dep_begin.pop_back();
  s_.deps.resize(static_cast<std::size_t>(s_.dep_begin.back()));
  expect_fault("update s7 on device 1 is missing");
}

TEST_F(Tampered, OpOnADeviceWithoutAShare) {
  const OpId embed = find_op(s_, "embed.F m0");
  s_.lanes[static_cast<std::size_t>(s_.lane_begin[static_cast<std::size_t>(embed)])] =
      lane_of(3, Queue::kCompute);
  expect_fault("embed.F m0 on device 0 is missing");
  expect_fault("is not part of the step");
}

TEST_F(Tampered, BrokenArrays) {
  s_.dep_begin[3] = 1000000;
  expect_fault("dep_begin does not cut");
}

}  // namespace
}  // namespace hetermoe
