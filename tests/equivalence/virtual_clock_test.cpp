#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "hetermoe/cost/roofline.h"
#include "hetermoe/sim/simulator.h"
#include "tests/support/case_count.h"
#include "tests/support/guest_plan.h"
#include "tests/support/rig.h"

// A run under the virtual clock and the simulator fed with the routing of that run agree on every span, where
// nothing contends. They share no code that computes times.
namespace hetermoe::testing {
namespace {

/// Seconds that differ from op to op, device to device and with the load: an op mixed up with another shows.
/// Transfers take latency only, so they never share a port.
class OddCost : public CostModel {
 public:
  Seconds compute(const ComputeWork& work) const override {
    const double device = 1 + 0.37 * work.device, kind = 1 + static_cast<double>(work.op.kind);
    const double amount = work.tokens + 2.5 * work.rows + 0.7 * work.copies + 1e-3 * work.params +
                          0.1 * work.merged_rows + 0.3 * work.experts;
    return 1e-3 * device * (kind + 0.01 * work.op.layer + amount);
  }
  TransferCost transfer(const TransferWork& work) const override {
    TransferCost cost;
    cost.latency = 2e-3 * (1 + static_cast<double>(work.op.kind));
    for (const PortBytes& bytes : work.bytes) cost.latency += 1e-6 * (bytes.net_out + 0.3 * bytes.local_in);
    return cost;
  }
};

struct SpanOf {
  Seconds start = 0, end = 0;
};
using Spans = std::map<std::pair<OpId, DeviceId>, SpanOf>;

Spans spans_of(const Timeline& timeline) {
  Spans spans;
  for (const Span& span : timeline.spans) spans[{span.op, span.device}] = {span.start, span.end};
  return spans;
}

void expect_equal(const Spans& executed, const Spans& simulated, Seconds step, const Schedule& schedule,
                  const std::string& name) {
  ASSERT_EQ(executed.size(), simulated.size()) << name;
  const double tolerance = 1e-9 * step;
  for (const auto& [key, span] : executed) {
    const auto found = simulated.find(key);
    ASSERT_NE(found, simulated.end()) << name;
    const std::string op = to_string(schedule.ops[static_cast<std::size_t>(key.first)]);
    EXPECT_NEAR(span.start, found->second.start, tolerance) << name << ": " << op << " on " << key.second;
    EXPECT_NEAR(span.end, found->second.end, tolerance) << name << ": " << op << " on " << key.second;
  }
}

/// Runs the plan under the virtual clock and simulates it with the recorded routing. Returns the executed
/// step.
Seconds check(const ModelConfig& model, const Cluster& cluster, const Plan& plan, const StepOptions& step,
              const std::string& name, std::function<void(const Op&, DeviceId)> before_op = {},
              int* num_expected = nullptr) {
  const OddCost cost;
  RigOptions options;
  options.step = step;
  options.executor.clock = ClockKind::kVirtual;
  options.executor.truth = &cost;
  options.executor.before_op = std::move(before_op);
  Rig rig(model, cluster, plan, options);
  rig.load(lively_values(model));
  const StepResult result = rig.executor().run(random_input(plan, model));
  const RecordedRouting routing = rig.executor().recorded_routing();
  const OpCosts costs = price(rig.schedule(), rig.placement(), model, cluster, cost, routing);
  const Spans executed = spans_of(rig.executor().timeline());
  std::size_t parts = 0;
  for (OpId op = 0; op < rig.schedule().num_ops(); ++op) parts += rig.schedule().lanes_of(op).size();
  EXPECT_EQ(executed.size(), parts) << name;  // one span per op and device
  Simulator simulator;
  const OpTimes simulated = simulator.run(rig.schedule(), costs);
  const OpTimes longest = longest_path(rig.schedule(), costs.seconds);
  for (const OpTimes& times : {simulated, longest}) {
    const Timeline timeline = make_timeline(rig.schedule(), times, plan, cluster, "simulated");
    expect_equal(executed, spans_of(timeline), times.step, rig.schedule(), name);
    EXPECT_NEAR(result.step, times.step, 1e-9 * times.step) << name;
  }
  EXPECT_EQ(rig.executor().timeline().source, "executed (virtual clock, emulated)");
  if (num_expected != nullptr) {
    const OpCosts expected =
        price(rig.schedule(), rig.placement(), model, cluster, cost, ExpectedRouting(model));
    *num_expected +=
        std::abs(longest_path(rig.schedule(), expected.seconds).step - result.step) < 1e-9 * result.step;
  }
  return result.step;
}

StrategyRequest clock_request() {
  StrategyRequest request;
  request.seq_len = 4;
  request.sequences = 6;
  request.microbatches = 3;
  return request;
}

// Claim (VirtualClock.*): executed timeline under the virtual clock = simulated timeline, op by op, where
// nothing contends
TEST(VirtualClock, EqualsTheSimulationForEveryStrategy) {
  int num_expected = 0, runs = 0;
  for (const ModelConfig& model : {tiny_mixtral(), tiny_deepseek_v3()}) {
    for (const i32 num_devices : {1, 2, 3, 4, 8}) {
      const Cluster cluster = make_cluster(num_devices, std::min(3, num_devices));
      for (const NamedPlan& named : strategy_plans(model, cluster, clock_request())) {
        const std::string name = fmt::format("{} on {}", named.name, num_devices);
        check(model, cluster, named.plan, {true, 1, true}, name, {}, &num_expected);
        ++runs;
      }
    }
  }
  EXPECT_EQ(runs, 2 * (1 + 4 * 14));
  EXPECT_LT(num_expected, runs / 4);  // the routing of the run matters: the replay is no accident
}

TEST(VirtualClock, EqualsTheSimulationForRandomPlans) {
  for (u64 seed = 3000; seed < 3000 + case_count<u64>(25, 60); ++seed) {
    const RandomCase c = random_case(seed);
    check(c.model, c.cluster, c.plan, c.step, describe(c));
  }
}

/// What is lent, and where it runs, has a price in both.
TEST(VirtualClock, WithGuestsToo) {
  i64 runs = 0;
  for (u64 seed = 3000; runs < case_count(15, 40); ++seed) {
    RandomCase c = random_case(seed);
    if (!use_guests(c.plan, c.model) || !validate(c.plan, c.model, c.cluster).empty()) continue;
    check(c.model, c.cluster, c.plan, c.step, describe(c));
    ++runs;
  }
}

TEST(VirtualClock, ForwardOnlyToo) {
  const ModelConfig model = tiny_qwen3();
  const Cluster cluster = make_cluster(4);
  for (const NamedPlan& named : strategy_plans(model, cluster, clock_request()))
    check(model, cluster, named.plan, {false, 0, false}, named.name);
}

TEST(VirtualClock, DoesNotDependOnTheMachine) {
  const ModelConfig model = tiny_mixtral();
  const Cluster cluster = make_cluster(4);
  std::atomic<u64> count = 0;
  const auto delays = [&](const Op&, DeviceId) {
    Chooser choose(++count);
    if (choose.chance(0.3)) std::this_thread::sleep_for(std::chrono::microseconds(choose.between(1, 500)));
  };
  for (const NamedPlan& named : strategy_plans(model, cluster, clock_request())) {
    const StepOptions step = {true, 1, true};
    EXPECT_EQ(check(model, cluster, named.plan, step, named.name),
              check(model, cluster, named.plan, step, named.name, delays));
  }
}

/// The product's own cost model, on ports so wide that a transfer takes its latency.
TEST(VirtualClock, EqualsTheSimulationWithRooflineCosts) {
  const ModelConfig model = load_model("tiny");
  Cluster cluster = make_cluster(4, 3);
  for (Node& node : cluster.nodes) node.network = node.local = 1e30;
  for (const NamedPlan& named : strategy_plans(model, cluster, clock_request())) {
    SoftwareConstants constants;
    constants.interference = 0;
    const RooflineCost cost(model, cluster, named.plan, constants);
    RigOptions options;
    options.step = {true, 1, true};
    options.executor.clock = ClockKind::kVirtual;
    options.executor.truth = &cost;
    Rig rig(model, cluster, named.plan, options);
    rig.load(lively_values(model));
    rig.executor().run(random_input(named.plan, model));
    const OpCosts costs =
        price(rig.schedule(), rig.placement(), model, cluster, cost, rig.executor().recorded_routing());
    Simulator simulator;
    const OpTimes& times = simulator.run(rig.schedule(), costs);
    const Timeline simulated = make_timeline(rig.schedule(), times, named.plan, cluster, "simulated");
    expect_equal(spans_of(rig.executor().timeline()), spans_of(simulated), times.step, rig.schedule(),
                 named.name);
  }
}

}  // namespace
}  // namespace hetermoe::testing
