#include "hetermoe/planner/search/neighbours.h"

#include <gtest/gtest.h>

namespace hetermoe {
namespace {

Sketch sketch_of(bool mixed) {
  Sketch sketch;
  sketch.groups.push_back({.first = {0, 0},
                           .count = {2, 3},
                           .attention = {2, 0},
                           .by_speed = false,
                           .mixed = mixed,
                           .sequences = 12,
                           .microbatches = 4});
  return sketch;
}

TEST(NeighbourCounts, AreTheNextDivisorsAndTheNextNumbers) {
  EXPECT_EQ(neighbour_counts(sketch_of(false).groups[0], 64), (std::vector<i64>{3, 6, 3, 5, 8, 2}));
  EXPECT_EQ(neighbour_counts(sketch_of(false).groups[0], 4), (std::vector<i64>{3, 3, 2}));
}

TEST(Neighbours, OfSeparateRolesChangeRoundingCountsAndAttentionDevices) {
  const std::vector<Sketch> all = neighbours(sketch_of(false), 64);
  ASSERT_EQ(all.size(), 9u);
  EXPECT_EQ(all[0].rounding, Rounding::kByDevice);
  EXPECT_EQ(all[1].groups[0].microbatches, 3);
  EXPECT_EQ(all[7].groups[0].attention, (std::vector<i64>{1, 0}));
  EXPECT_EQ(all[8].groups[0].attention, (std::vector<i64>{2, 1}));
  for (const Sketch& next : all) EXPECT_EQ(next.bias, 1);
}

TEST(Neighbours, OfMixedRolesAlsoChangeTheBias) {
  const std::vector<Sketch> all = neighbours(sketch_of(true), 64);
  ASSERT_EQ(all.size(), 13u);
  EXPECT_DOUBLE_EQ(all[0].bias, 0.97);
  EXPECT_DOUBLE_EQ(all[3].bias, 1.1);
}

TEST(Neighbours, AttentionNeverTakesAllDevicesFromSeparateExpertsNorLeavesNone) {
  Sketch sketch = sketch_of(false);
  sketch.groups[0].attention = {2, 2};
  for (const Sketch& next : neighbours(sketch, 64))
    EXPECT_NE(next.groups[0].attention, (std::vector<i64>{2, 3}));
  sketch.groups[0].attention = {1, 0};
  for (const Sketch& next : neighbours(sketch, 64))
    EXPECT_NE(next.groups[0].attention, (std::vector<i64>{0, 0}));
}

TEST(OtherDevices, OfASingleGroupAreOneFewerWholeNodesOrOneMore) {
  PlanRequest request;
  request.model = load_model("d1");
  request.cluster.types = {catalogue_device("A40", "test")};
  for (NodeId node = 0; node < 2; ++node) {
    request.cluster.nodes.push_back({fmt::format("n{}", node), 1e9, 1e-5, 1e9, 1e-6});
    for (int d = 0; d < 4; ++d) request.cluster.devices.push_back({0, node, 1});
  }
  request.seq_len = 1024, request.sequences = 12;
  const Rates rates(request);
  Sketch sketch;
  sketch.groups.push_back(
      {.first = {0}, .count = {7}, .attention = {2}, .mixed = false, .sequences = 12, .microbatches = 4});
  const auto counts = [&] {
    std::vector<i64> all;
    for (const Sketch& next : other_devices(rates, sketch)) {
      all.push_back(next.groups[0].count[0]);
      EXPECT_EQ(next.groups[0].attention[0], 2);
      EXPECT_EQ(next.groups[0].microbatches, 4);
    }
    return all;
  };
  EXPECT_EQ(counts(), (std::vector<i64>{4, 6, 8}));
  sketch.groups[0].count = {8};
  EXPECT_EQ(counts(), (std::vector<i64>{7}));
  sketch.groups[0].count = {3};
  EXPECT_EQ(counts(), (std::vector<i64>{4})) << "two are left with attention alone, or none at all";
}

TEST(OtherDevices, AFirstDeviceOfAClassHasExpertsAloneOrAttentionToo) {
  PlanRequest request;
  request.model = load_model("demo");
  request.cluster = load_cluster("o1");
  request.seq_len = 1024, request.sequences = 12;
  Sketch sketch = sketch_of(true);
  sketch.groups[0].count = sketch.groups[0].attention = {2, 0};
  std::set<i64> attention;
  for (const Sketch& next : other_devices(Rates(request), sketch))
    if (next.groups[0].count[1] == 1) attention.insert(next.groups[0].attention[1]);
  EXPECT_EQ(attention, (std::set<i64>{0, 1}));
}

TEST(Neighbours, GroupsThatAreAlikeChangeAlike) {
  Sketch sketch = sketch_of(false);
  sketch.groups.push_back(sketch.groups[0]);
  for (const Sketch& next : neighbours(sketch, 64)) {
    EXPECT_EQ(next.groups[0].attention, next.groups[1].attention);
    EXPECT_EQ(next.groups[0].microbatches, next.groups[1].microbatches);
  }
}

}  // namespace
}  // namespace hetermoe
