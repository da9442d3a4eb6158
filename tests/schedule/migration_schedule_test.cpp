#include "hetermoe/schedule/migration_schedule.h"

#include <algorithm>

#include "hetermoe/placement/placement.h"
#include "tests/schedule/plans.h"
#include "tests/support/strategy_plans.h"

namespace hetermoe {
namespace {

using test::make_cluster;
using test::make_model;
using test::make_zebra_plan;

UnitMove move(i32 layer, UnitPart part, DeviceId from, DeviceId to) {
  return {.unit = {.layer = layer, .part = part, .expert = part == UnitPart::kExperts ? 0 : -1},
          .from = from,
          .to = to,
          .bytes = 1000,
          .dtype = Dtype::kFp32};
}

std::span<const UnitMove> moves_of(const Migration& m, std::size_t op) {
  return m.moves_of(m.schedule.ops[op]);
}

TEST(MigrationSchedule, HasOneOpForEachLayerWithMovesAmongItsGiversAndTakers) {
  const Migration m = make_migration({move(-1, UnitPart::kEmbed, 0, 1), move(2, UnitPart::kAttention, 0, 3),
                                      move(2, UnitPart::kExperts, 1, 3), move(4, UnitPart::kHead, 2, 0)},
                                     4);
  EXPECT_EQ(to_text(m.schedule),
            "device 0 move: 0 migrate | 1 migrate l2 | 2 migrate l4\n"
            "device 1 move: 0 migrate | 1 migrate l2\n"
            "device 2 move: 2 migrate l4\n"
            "device 3 move: 1 migrate l2\n");
  ASSERT_EQ(m.schedule.num_ops(), 3);
  EXPECT_EQ(moves_of(m, 0).size(), 1U);
  ASSERT_EQ(moves_of(m, 1).size(), 2U);
  EXPECT_EQ(moves_of(m, 1)[0].unit.part, UnitPart::kAttention);
  EXPECT_EQ(moves_of(m, 1)[1].unit.part, UnitPart::kExperts);
  EXPECT_EQ(moves_of(m, 2)[0].from, 2);
}

TEST(MigrationSchedule, IsEmptyWithoutMoves) { EXPECT_EQ(make_migration({}, 4).schedule.num_ops(), 0); }

TEST(MigrationSchedule, AMigrateIsNoOpOfAStep) {
  const ModelConfig model = make_model({});
  const Cluster cluster = make_cluster({1, 1});
  const Plan plan = make_zebra_plan(model, cluster, {});
  Schedule schedule = build_schedule(plan, model);
  ASSERT_TRUE(test::no_faults(validate(schedule, plan, model)));
  const Migration m = make_migration({move(1, UnitPart::kAttention, 0, 1)}, 2);
  schedule.ops.push_back(m.schedule.ops[0]);
  schedule.lanes.insert(schedule.lanes.end(), m.schedule.lanes.begin(), m.schedule.lanes.end());
  schedule.lane_begin.push_back(static_cast<i64>(schedule.lanes.size()));
  schedule.dep_begin.push_back(static_cast<i64>(schedule.deps.size()));
  EXPECT_TRUE(test::has_fault(validate(schedule, plan, model), "migrate l1 is not part of the step"));
}

/// The state of a plan that a unit belongs to.
const State& state_of(const Unit& unit, const std::vector<State>& states) {
  const auto belongs = [&](const State& s) {
    switch (unit.part) {
      case UnitPart::kEmbed:
        return s.part == UnitPart::kEmbed;
      case UnitPart::kAttention:
        return s.part == UnitPart::kAttention && s.layer == unit.layer;
      case UnitPart::kExperts:
        return s.part == UnitPart::kExperts && s.layer == unit.layer &&
               std::find(s.experts.begin(), s.experts.end(), unit.expert) != s.experts.end();
      case UnitPart::kHead:
        return s.part == UnitPart::kHead;
    }
    return false;
  };
  return *std::find_if(states.begin(), states.end(), belongs);
}

// Who holds what is worked out twice: for the states of a schedule and for units.
TEST(Holders, AreThoseOfTheStatesForEveryStrategy) {
  const Cluster cluster = make_cluster({2, 2}, 3);
  for (const bool tied : {false, true}) {
    ModelConfig model = make_model({.num_layers = 3, .num_experts = 7, .dense = {1}});
    model.tie_embeddings = tied;
    for (const testing::NamedPlan& named : testing::strategy_plans(model, cluster, testing::small_step())) {
      const std::vector<Unit> all = units(model);
      const Holders found = holders(named.plan, model);
      const std::vector<State> states = make_states(named.plan, model);
      for (std::size_t u = 0; u < all.size(); ++u)
        EXPECT_EQ(found[u], state_of(all[u], states).devices) << named.name << " " << to_string(all[u]);
    }
  }
}

}  // namespace
}  // namespace hetermoe
