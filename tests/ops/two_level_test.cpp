#include "hetermoe/ops/two_level.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "hetermoe/base/index.h"
#include "tests/support/random_plan.h"

namespace hetermoe {
namespace {

/// Nodes of 1 to 5 devices each, and some of their devices as holders of a state.
struct Case {
  Cluster cluster;
  std::vector<PlaceId> holders;
};

Case random_case(u64 seed) {
  testing::Chooser choose(seed);
  Case c;
  const i64 num_nodes = choose.between(1, 6);
  for (i64 n = 0; n < num_nodes; ++n) {
    c.cluster.nodes.push_back({fmt::format("n{}", n), 10e9, 5e-6, 400e9, 2e-6});
    for (i64 d = choose.between(1, 5); d > 0; --d)
      c.cluster.devices.push_back({0, static_cast<NodeId>(n), 1});
  }
  c.holders.resize(c.cluster.devices.size());
  std::iota(c.holders.begin(), c.holders.end(), 0);
  c.holders = choose.some_of(c.holders);
  std::sort(c.holders.begin(), c.holders.end());
  return c;
}

TEST(TwoLevel, OnEveryNodeOneHolderStandsForEachPart) {
  for (u64 seed = 1; seed <= 300; ++seed) {
    const Case c = random_case(seed);
    const TwoLevel levels(c.cluster, c.holders);
    std::set<NodeId> nodes;
    for (const PlaceId holder : c.holders) nodes.insert(c.cluster.node_of(holder));
    ASSERT_EQ(levels.num_nodes(), nodes.size());
    std::vector<std::set<NodeId>> served(c.holders.size());  // [part]
    const std::vector<i64> num_parts = levels.num_parts();
    for (std::size_t i = 0; i < c.holders.size(); ++i) {
      const std::vector<std::size_t> parts = levels.parts_of(i);
      EXPECT_EQ(static_cast<i64>(parts.size()), num_parts[i]) << "seed " << seed << " holder " << i;
      EXPECT_TRUE(std::find(parts.begin(), parts.end(), i) != parts.end()) << "its own part";
      for (const std::size_t part : parts)
        EXPECT_TRUE(served[part].insert(c.cluster.node_of(c.holders[i])).second) << "seed " << seed;
      for (const std::size_t mate : levels.mates(i))
        EXPECT_EQ(c.cluster.node_of(c.holders[mate]), c.cluster.node_of(c.holders[i]));
    }
    for (const std::set<NodeId>& of_part : served) EXPECT_EQ(of_part, nodes) << "seed " << seed;
  }
}

/// Both sides of an exchange must know of each other, or one waits for ever.
TEST(TwoLevel, PartnersAgree) {
  for (u64 seed = 1; seed <= 300; ++seed) {
    const Case c = random_case(seed);
    const TwoLevel levels(c.cluster, c.holders);
    for (std::size_t i = 0; i < c.holders.size(); ++i) {
      const std::vector<std::size_t> partners = levels.partners(i);
      EXPECT_TRUE(std::is_sorted(partners.begin(), partners.end()));
      EXPECT_TRUE(std::binary_search(partners.begin(), partners.end(), i));
      std::set<NodeId> nodes;
      for (const std::size_t partner : partners) {
        const std::vector<std::size_t> theirs = levels.partners(partner);
        EXPECT_TRUE(std::binary_search(theirs.begin(), theirs.end(), i)) << "seed " << seed;
        nodes.insert(c.cluster.node_of(c.holders[partner]));
      }
      EXPECT_EQ(nodes.size(), levels.num_nodes()) << "each learns from every node that it has begun";
    }
  }
}

/// of_last: network of the last node, as a multiple of that of the others.
bool pays(double network, double local, const std::vector<i32>& on_nodes, double of_last = 1) {
  Case c;
  for (std::size_t n = 0; n < on_nodes.size(); ++n) {
    c.cluster.nodes.push_back({fmt::format("n{}", n), network, 5e-6, local, 2e-6});
    for (i32 d = 0; d < on_nodes[n]; ++d) {
      c.holders.push_back(c.cluster.num_devices());
      c.cluster.devices.push_back({0, static_cast<NodeId>(n), 1});
    }
  }
  c.cluster.nodes.back().network *= of_last;
  return pays_two_levels(c.cluster, c.holders);
}

TEST(TwoLevel, PaysWhereLinksInsideNodesAreFast) {
  EXPECT_TRUE(pays(50e9, 450e9, {8, 8, 8, 8}));
  EXPECT_FALSE(pays(400e9, 20e9, {8, 8})) << "the network is faster";
  EXPECT_FALSE(pays(50e9, 450e9, {8})) << "one node";
  EXPECT_FALSE(pays(50e9, 450e9, {1, 1, 1})) << "no node has two";
  EXPECT_TRUE(pays(50e9, 450e9, {7, 8, 1}));
}

/// The first node takes a sum for each of its two parts, as many bytes as without two levels.
TEST(TwoLevel, DoesNotPayWhereTheNodeWithMostHoldersHasTheSlowestPort) {
  EXPECT_FALSE(pays(25e9, 450e9, {2, 1}, 2));
  EXPECT_TRUE(pays(25e9, 450e9, {2, 2}, 2));
}

}  // namespace
}  // namespace hetermoe
