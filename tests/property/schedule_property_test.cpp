#include <gtest/gtest.h>

#include "hetermoe/sim/simulator.h"
#include "tests/property/random_plans.h"

namespace hetermoe {
namespace {

using test::no_faults, test::PortCost, test::RandomCase, test::RandomPlans;

constexpr unsigned kNumSeeds = 400;

/// Calls `check` with many random cases; failures name the seed.
template <class Check>
void for_random_cases(Check check) {
  for (unsigned seed = 1; seed <= kNumSeeds && !::testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomPlans random(seed);
    const RandomCase c = random.make();
    check(c, random);
  }
}

TEST(RandomSchedules, AreSound) {
  i64 num_deps = 0;
  for_random_cases([&](const RandomCase& c, RandomPlans&) {
    ASSERT_TRUE(no_faults(validate(c.plan, c.model, c.cluster)));
    const Schedule schedule = build_schedule(c.plan, c.model, c.options);
    ASSERT_TRUE(no_faults(validate(schedule, c.plan, c.model, c.options))) << to_text(schedule);
    num_deps += static_cast<i64>(schedule.deps.size());
  });
  EXPECT_GT(num_deps, 10000);
}

TEST(RandomSchedules, TextReadsBackAsTheSameSchedule) {
  for_random_cases([](const RandomCase& c, RandomPlans&) {
    const Schedule schedule = build_schedule(c.plan, c.model, c.options);
    Plan written = c.plan;
    written.order = OrderPolicy::kExplicit;
    written.explicit_order = to_text(schedule);
    const Plan read = plan_from_json(to_json(written), "plan.json");
    ASSERT_EQ(hash(build_schedule(read, c.model, c.options)), hash(schedule)) << written.explicit_order;
  });
}

/// Every op has a port of its own.
OpCosts random_costs(const Schedule& schedule, RandomPlans& random) {
  OpCosts costs;
  costs.load_begin = {0};
  costs.num_ports = schedule.num_ops();
  costs.interference.assign(static_cast<std::size_t>(schedule.num_devices), 0);
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    const bool transfer = !is_compute(schedule.ops[static_cast<std::size_t>(op)].kind);
    const auto part = [&] { return static_cast<double>(random.number(0, 5)) * 0.1; };
    costs.latency.push_back(transfer ? part() : 0);
    const Seconds rest = part();
    costs.seconds.push_back(costs.latency.back() + rest);
    if (transfer && random.chance(0.8)) costs.loads.push_back({op, rest});
    costs.load_begin.push_back(static_cast<i64>(costs.loads.size()));
  }
  return costs;
}

TEST(RandomSchedules, SimulatorIsTheLongestPathWhereNothingContends) {
  Simulator simulator;
  for_random_cases([&](const RandomCase& c, RandomPlans& random) {
    const Schedule schedule = build_schedule(c.plan, c.model, c.options);
    const OpCosts costs = random_costs(schedule, random);
    const OpTimes expected = longest_path(schedule, costs.seconds);
    const OpTimes& times = simulator.run(schedule, costs);
    ASSERT_NEAR(times.step, expected.step, 1e-12 * (1 + expected.step));
    for (std::size_t op = 0; op < schedule.ops.size(); ++op) {
      ASSERT_NEAR(times.start[op], expected.start[op], 1e-12 * (1 + expected.step));
      ASSERT_NEAR(times.end[op], expected.end[op], 1e-12 * (1 + expected.step));
    }
  });
}

TEST(RandomSchedules, ContentionOnlyDelays) {
  Simulator simulator;
  i64 num_delayed = 0;
  for_random_cases([&](const RandomCase& c, RandomPlans& random) {
    PortCost cost(c.cluster);
    cost.slowdown = random.chance(0.3) ? 0.3 : 0;
    const Schedule schedule = build_schedule(c.plan, c.model, c.options);
    const OpCosts costs = price(schedule, Placement(c.plan, c.model, c.options), c.model, c.cluster, cost,
                                ExpectedRouting(c.model));
    const OpTimes alone = longest_path(schedule, costs.seconds);
    const OpTimes& times = simulator.run(schedule, costs);
    for (std::size_t op = 0; op < schedule.ops.size(); ++op) {
      ASSERT_GE(times.end[op], alone.end[op] - 1e-9 * alone.step) << to_string(schedule.ops[op]);
      ASSERT_GE(times.end[op] - times.start[op], costs.seconds[op] - 1e-9 * alone.step);
    }
    num_delayed += times.step > alone.step * (1 + 1e-6) ? 1 : 0;
  });
  EXPECT_GT(num_delayed, 50);  // else nothing was tested
}

TEST(RandomSchedules, StepCoversEveryLane) {
  Simulator simulator;
  for_random_cases([&](const RandomCase& c, RandomPlans&) {
    const PortCost cost(c.cluster);
    const Schedule schedule = build_schedule(c.plan, c.model, c.options);
    const OpCosts costs = price(schedule, Placement(c.plan, c.model, c.options), c.model, c.cluster, cost,
                                ExpectedRouting(c.model));
    std::vector<Seconds> totals(static_cast<std::size_t>(schedule.num_devices) * kLanesOfPlace, 0);
    for (OpId op = 0; op < schedule.num_ops(); ++op) {
      for (const LaneId lane : schedule.lanes_of(op)) {
        totals[static_cast<std::size_t>(lane)] += costs.seconds[static_cast<std::size_t>(op)];
      }
    }
    const Seconds step = simulator.run(schedule, costs).step;
    for (const Seconds total : totals) ASSERT_GE(step, total * (1 - 1e-12));
  });
}

}  // namespace
}  // namespace hetermoe
