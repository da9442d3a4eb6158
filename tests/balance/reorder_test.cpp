#include "hetermoe/balance/reorder.h"

#include <gtest/gtest.h>

#include <random>

namespace hetermoe {
namespace {

const std::vector<std::vector<double>> kThreeLayers = {
    {8, 19, 18, 5, 12, 30, 20, 16}, {21, 19, 3, 20, 1, 30, 27, 16}, {9, 18, 8, 7, 23, 16, 18, 27}};
const std::vector<i32> kLinear = {0, 0, 1, 1, 2, 2, 3, 3};

ReorderInput three(std::vector<double> speeds) {
  ReorderInput input;
  input.copies = kThreeLayers;
  input.speeds = std::move(speeds);
  input.nodes.assign(input.speeds.size(), 0);
  input.proposals = 3000;
  return input;
}

/// Over all owners with two experts on each of four devices.
double best_of_all(const ReorderInput& input) {
  std::vector<i32> owner = kLinear;
  double best = 1e30;
  do best = std::min(best, reorder_cost(input, owner));
  while (std::next_permutation(owner.begin(), owner.end()));
  return best;
}

TEST(Reorder, ReachesTheBestOfAllOwners) {
  const ReorderInput equal = three({1, 1, 1, 1}), mixed = three({2, 2, 1, 1});
  EXPECT_EQ(reorder_cost(equal, kLinear), 130);
  EXPECT_EQ(reorder_cost(mixed, kLinear), 130);
  EXPECT_EQ(best_of_all(equal), 120);
  EXPECT_EQ(best_of_all(mixed), 78);
  for (u64 seed = 1; seed <= 20; ++seed) {
    ReorderInput a = equal, b = mixed;
    a.seed = b.seed = seed;
    EXPECT_EQ(reorder_cost(equal, reorder(a, kLinear)), 120) << seed;
    EXPECT_EQ(reorder_cost(mixed, reorder(b, kLinear)), 78) << seed;
  }
}

/// Three microbatches of 128, 137 and 126 copies on two nodes of two devices.
TEST(Reorder, CountsTheBusiestPortOfEachMicrobatch) {
  ReorderInput input = three({1, 1, 1, 1});
  input.nodes = {0, 0, 1, 1};
  // Node 0 owns 50, 63 and 42 copies, so it sends half of the others: 39, 37 and 42, at two seconds each.
  input.ports = {{.node = 0, .copy_s = 2, .tokens = 0.5}, {.node = 1, .copy_s = 0.5, .tokens = 0.5}};
  EXPECT_EQ(reorder_cost(input, kLinear), 130 + 2 * (39 + 37 + 42));
  // All tokens start on a node that owns nothing: its port sends every copy, and the others get theirs.
  input.ports = {{.node = 0, .copy_s = 1}, {.node = 1, .copy_s = 1}, {.node = 5, .copy_s = 0.5, .tokens = 1}};
  EXPECT_EQ(reorder_cost(input, kLinear), 130 + 78 + 74 + 84);
  input.ports[2].copy_s = 1;
  EXPECT_EQ(reorder_cost(input, kLinear), 130 + 128 + 137 + 126);
}

TEST(Reorder, ReachesTheBestOfAllOwnersWithPorts) {
  ReorderInput input = three({1, 1, 1, 1});
  input.nodes = {0, 0, 1, 1};
  input.ports = {{.node = 0, .copy_s = 1}, {.node = 1, .copy_s = 0.25, .tokens = 1}};
  const double best = best_of_all(input);
  for (u64 seed = 1; seed <= 20; ++seed) {
    input.seed = seed;
    EXPECT_EQ(reorder_cost(input, reorder(input, kLinear)), best) << seed;
  }
  // The slow port has its node own less than half, which the devices alone would not.
  ReorderInput devices = input;
  devices.ports.clear();
  const auto owned = [&](const std::vector<i32>& owner) {
    double sum = 0;
    for (const std::vector<double>& copies : kThreeLayers) {
      for (std::size_t e = 0; e < owner.size(); ++e) sum += owner[e] < 2 ? copies[e] : 0;
    }
    return sum;
  };
  EXPECT_LT(owned(reorder(input, kLinear)), owned(reorder(devices, kLinear)));
}

TEST(Reorder, KeepsNumbersOfExpertsAndRepeats) {
  ReorderInput input = three({3, 2, 1, 1});
  const std::vector<i32> start = {0, 0, 0, 1, 1, 2, 2, 3};
  const std::vector<i32> got = reorder(input, start);
  EXPECT_EQ(got, reorder(input, start));
  std::vector<int> before(4, 0), after(4, 0);
  for (std::size_t e = 0; e < 8; ++e)
    ++before[static_cast<std::size_t>(start[e])], ++after[static_cast<std::size_t>(got[e])];
  EXPECT_EQ(before, after);
  EXPECT_LE(reorder_cost(input, got), reorder_cost(input, start));
}

TEST(Reorder, EvensOutNodesWhereGuestsDoTheRest) {
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> draw(0, 0.8);
  ReorderInput input;
  for (int m = 0; m < 8; ++m) {
    input.copies.emplace_back();
    for (int e = 0; e < 32; ++e) input.copies.back().push_back(100 * draw(random));
  }
  input.speeds.assign(8, 1);
  input.nodes = {0, 0, 0, 0, 1, 1, 1, 1};
  std::vector<i32> start;
  for (i32 e = 0; e < 32; ++e) start.push_back(e / 4);
  const std::vector<i32> devices = reorder(input, start);
  ReorderInput by_node = input;
  by_node.node_weight = 4;
  const std::vector<i32> nodes = reorder(by_node, start);
  EXPECT_LT(reorder_cost(input, devices), 0.9 * reorder_cost(input, start));
  EXPECT_LT(reorder_cost(by_node, nodes), reorder_cost(by_node, devices));
}

}  // namespace
}  // namespace hetermoe
