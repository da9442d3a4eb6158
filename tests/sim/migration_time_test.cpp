#include <gtest/gtest.h>

#include "hetermoe/cost/price_migration.h"
#include "hetermoe/cost/roofline.h"
#include "hetermoe/sim/simulator.h"
#include "tests/schedule/plans.h"

// How long a change of plan takes: the transfers of a migration, priced and simulated as those of a step.
namespace hetermoe {
namespace {

constexpr Bytes kMega = 1e6;

/// Two nodes with two devices each, 1 GB/s between the nodes, 10 GB/s inside.
struct TimeCase {
  Cluster cluster = test::make_cluster({2, 2});
  ModelConfig model = test::make_model({});
  Plan plan = test::make_zebra_plan(model, cluster, {.attention = 2, .experts = 2});
  SoftwareConstants constants;
  RooflineCost cost{model, cluster, plan, constants};
  Seconds latency = cluster.nodes[0].latency + cluster.nodes[0].peer;  // of two participants

  Seconds network(Bytes bytes) const { return bytes / (1e9 * constants.network_efficiency); }

  OpTimes run(const Migration& migration) const {
    return Simulator().run(migration.schedule, price(migration, cluster, cost));
  }
};

UnitMove move(i32 layer, DeviceId from, DeviceId to, Bytes bytes = kMega) {
  return {.unit = {.layer = layer, .part = UnitPart::kAttention},
          .from = from,
          .to = to,
          .bytes = bytes,
          .dtype = Dtype::kFp32};
}

TEST(MigrationTime, OfOneMoveIsThatOfItsBytesOnTheNetwork) {
  const TimeCase c;
  EXPECT_DOUBLE_EQ(c.run(make_migration({move(0, 0, 2)}, 4)).step, c.latency + c.network(kMega));
}

TEST(MigrationTime, LayersOfTheSameDevicesFollowEachOther) {
  const TimeCase c;
  const OpTimes times = c.run(make_migration({move(0, 0, 2), move(1, 0, 2)}, 4));
  EXPECT_DOUBLE_EQ(times.start[1], times.end[0]);
  EXPECT_DOUBLE_EQ(times.step, 2 * (c.latency + c.network(kMega)));
}

TEST(MigrationTime, LayersOfOtherDevicesRunAtTheSameTimeAndShareThePortOfTheirNode) {
  const TimeCase c;
  const OpTimes times = c.run(make_migration({move(0, 0, 2), move(1, 1, 3)}, 4));
  EXPECT_EQ(times.start[1], 0);
  EXPECT_NEAR(times.step, c.latency + 2 * c.network(kMega), 1e-12);
}

TEST(MigrationTime, MovesOfALayerInOppositeDirectionsDoNotWaitForEachOther) {
  const TimeCase c;
  const OpTimes times = c.run(make_migration({move(0, 0, 2), move(0, 2, 0)}, 4));
  EXPECT_DOUBLE_EQ(times.step, c.latency + c.network(kMega));
}

TEST(MigrationTime, OfNoMovesIsNothing) { EXPECT_EQ(TimeCase().run(make_migration({}, 4)).step, 0); }

TEST(MigrationTime, IsDrawnAsATimelineOfMigrateOpsOnQueueMove) {
  const TimeCase c;
  const Migration migration = make_migration({move(0, 0, 2), move(1, 1, 3)}, 4);
  const Timeline timeline =
      make_timeline(migration.schedule, c.run(migration), c.plan, c.cluster, "simulated");
  ASSERT_EQ(timeline.ops.size(), 2U);
  EXPECT_EQ(timeline.ops[1].kind, "migrate");
  EXPECT_EQ(timeline.ops[1].phase, "");
  EXPECT_EQ(timeline.ops[1].layer, 1);
  EXPECT_EQ(timeline.ops[1].queue, "move");
  ASSERT_EQ(timeline.spans.size(), 4U);
  EXPECT_EQ(timeline.spans[3].device, 3);
  EXPECT_EQ(to_json(timeline_from_json(to_json(timeline), "")).dump(), to_json(timeline).dump());
}

}  // namespace
}  // namespace hetermoe
