#include "hetermoe/routing/exact_split.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace hetermoe {
namespace {

/// The least time, and that the split keeps it with all copies.
std::pair<i64, i64> least(const std::vector<i64>& copies, const Hosts& hosts,
                          const std::vector<i64>& speeds) {
  const ExactSplit split = exact_split(copies, hosts, speeds);
  std::vector<i64> load(speeds.size(), 0);
  for (std::size_t e = 0; e < copies.size(); ++e) {
    i64 sum = 0;
    for (std::size_t h = 0; h < hosts[e].size(); ++h) {
      EXPECT_GE(split.copies[e][h], 0);
      sum += split.copies[e][h];
      load[static_cast<std::size_t>(hosts[e][h])] += split.copies[e][h];
    }
    EXPECT_EQ(sum, copies[e] * split.den);
  }
  for (std::size_t d = 0; d < speeds.size(); ++d) EXPECT_LE(load[d], speeds[d] * split.num);
  return {split.num, split.den};
}

using Time = std::pair<i64, i64>;

TEST(ExactSplit, GivesTheLeastTime) {
  const Hosts three = {{0, 1}, {0}, {1, 2}};
  EXPECT_EQ(least({9, 3, 6}, three, {1, 1, 1}), (Time{6, 1}));
  EXPECT_EQ(least({9, 3, 6}, three, {3, 2, 1}), (Time{3, 1}));
  EXPECT_EQ(least({10, 4, 4, 2}, {{0, 1}, {1}, {2}, {2, 0}}, {2, 2, 1}), (Time{4, 1}));
  EXPECT_EQ(least({7, 5, 1}, {{0, 2}, {1}, {1, 2}}, {4, 2, 3}), (Time{5, 2}));
  const Hosts pairs = {{0, 3}, {0}, {1, 0}, {1}, {2, 1}, {2}, {3, 2}, {3}};
  EXPECT_EQ(least({30, 3, 28, 2, 9, 9, 1, 2}, pairs, {1, 1, 1, 1}), (Time{65, 3}));
  EXPECT_EQ(least({30, 3, 28, 2, 9, 9, 1, 2}, pairs, {2, 2, 1, 1}), (Time{14, 1}));
  EXPECT_EQ(least({40, 10, 20, 10, 5, 5, 6, 4}, pairs, {1, 1, 1, 1}), (Time{28, 1}));
  EXPECT_EQ(least({40, 10, 20, 10, 5, 5, 6, 4}, pairs, {2, 2, 1, 1}), (Time{18, 1}));
  EXPECT_EQ(least({0, 0}, {{0}, {1}}, {1, 1}), (Time{0, 1}));
}

/// The least time of whole copies, and that the split keeps it.
std::pair<i64, i64> least_whole(const std::vector<i64>& copies, const Hosts& hosts,
                                const std::vector<i64>& speeds) {
  const WholeSplit split = whole_split(copies, hosts, speeds);
  std::vector<i64> load(speeds.size(), 0);
  for (std::size_t e = 0; e < copies.size(); ++e) {
    i64 sum = 0;
    for (std::size_t h = 0; h < hosts[e].size(); ++h) {
      EXPECT_GE(split.copies[e][h], 0);
      sum += split.copies[e][h];
      load[static_cast<std::size_t>(hosts[e][h])] += split.copies[e][h];
    }
    EXPECT_EQ(sum, copies[e]);
  }
  for (std::size_t d = 0; d < speeds.size(); ++d) EXPECT_LE(load[d] * split.den, speeds[d] * split.num);
  return {split.num, split.den};
}

// Claim (WholeSplit.*, Guests.*, ExchangeSplit.*): copies are divided over hosts as well as can be: equal to
// brute force; guests are never later than none, keep slots and nodes
TEST(WholeSplit, GivesTheLeastTimeOfWholeCopies) {
  const Hosts three = {{0, 1}, {0}, {1, 2}};
  EXPECT_EQ(least_whole({9, 3, 6}, three, {1, 1, 1}), (Time{6, 1}));
  EXPECT_EQ(least_whole({9, 3, 6}, three, {3, 2, 1}), (Time{3, 1}));
  EXPECT_EQ(least_whole({10, 4, 4, 2}, {{0, 1}, {1}, {2}, {2, 0}}, {2, 2, 1}), (Time{4, 1}));
  EXPECT_EQ(least_whole({7, 5, 1}, {{0, 2}, {1}, {1, 2}}, {4, 2, 3}), (Time{5, 2}));
  const Hosts pairs = {{0, 3}, {0}, {1, 0}, {1}, {2, 1}, {2}, {3, 2}, {3}};
  EXPECT_EQ(least_whole({30, 3, 28, 2, 9, 9, 1, 2}, pairs, {1, 1, 1, 1}), (Time{22, 1}));
  EXPECT_EQ(least_whole({30, 3, 28, 2, 9, 9, 1, 2}, pairs, {2, 2, 1, 1}), (Time{14, 1}));
  EXPECT_EQ(least_whole({40, 10, 20, 10, 5, 5, 6, 4}, pairs, {1, 1, 1, 1}), (Time{28, 1}));
  EXPECT_EQ(least_whole({40, 10, 20, 10, 5, 5, 6, 4}, pairs, {2, 2, 1, 1}), (Time{18, 1}));
  EXPECT_EQ(least_whole({0, 0}, {{0}, {1}}, {1, 1}), (Time{0, 1}));
}

TEST(WholeSplit, LeavesCopiesAtTheFirstHostWhereThereIsRoom) {
  const WholeSplit split = whole_split({4, 2}, {{1, 0}, {0}}, {1, 1});
  EXPECT_EQ(split.copies, (std::vector<std::vector<i64>>{{3, 1}, {2}}));
}

/// The time that every set of experts needs on its hosts.
double bound(const std::vector<i64>& copies, const Hosts& hosts, const std::vector<i64>& speeds) {
  double most = 0;
  for (std::size_t set = 1; set < (std::size_t{1} << copies.size()); ++set) {
    i64 sum = 0;
    std::vector<bool> used(speeds.size(), false);
    for (std::size_t e = 0; e < copies.size(); ++e) {
      if ((set >> e & 1) == 0) continue;
      sum += copies[e];
      for (const i32 host : hosts[e]) used[static_cast<std::size_t>(host)] = true;
    }
    i64 speed = 0;
    for (std::size_t d = 0; d < speeds.size(); ++d) speed += used[d] ? speeds[d] : 0;
    most = std::max(most, static_cast<double>(sum) / static_cast<double>(speed));
  }
  return most;
}

/// All ways to divide copies of experts from `e` on; the least time of the slowest device.
double least_of_all(const std::vector<i64>& copies, const Hosts& hosts, const std::vector<i64>& speeds,
                    std::vector<i64>& load, std::size_t e, std::size_t h, i64 left) {
  if (e == copies.size()) {
    double slowest = 0;
    for (std::size_t d = 0; d < speeds.size(); ++d)
      slowest = std::max(slowest, static_cast<double>(load[d]) / static_cast<double>(speeds[d]));
    return slowest;
  }
  const bool last = h + 1 == hosts[e].size();
  double best = 1e30;
  for (i64 take = last ? left : 0; take <= left; ++take) {
    i64& mine = load[static_cast<std::size_t>(hosts[e][h])];
    mine += take;
    const bool more = e + 1 < copies.size();
    best = std::min(best, last ? least_of_all(copies, hosts, speeds, load, e + 1, 0, more ? copies[e + 1] : 0)
                               : least_of_all(copies, hosts, speeds, load, e, h + 1, left - take));
    mine -= take;
  }
  return best;
}

struct Instance {
  std::vector<i64> copies, speeds;
  Hosts hosts;
};
Instance random_instance(std::mt19937_64& random, std::size_t most_experts, std::size_t most_devices,
                         u64 most_copies) {
  const std::size_t num_experts = 1 + random() % most_experts, num_devices = 1 + random() % most_devices;
  Instance out{std::vector<i64>(num_experts), std::vector<i64>(num_devices), Hosts(num_experts)};
  for (i64& w : out.copies) w = static_cast<i64>(random() % most_copies);
  for (i64& v : out.speeds) v = static_cast<i64>(1 + random() % 5);
  for (auto& of_expert : out.hosts) {
    for (std::size_t d = 0; d < num_devices; ++d) {
      if (random() % 3 == 0) of_expert.push_back(static_cast<i32>(d));
    }
    if (of_expert.empty()) of_expert.push_back(static_cast<i32>(random() % num_devices));
  }
  return out;
}

TEST(WholeSplit, EqualsBruteForceOnRandomInstances) {
  std::mt19937_64 random(7);
  for (int instance = 0; instance < 400; ++instance) {
    const Instance i = random_instance(random, 4, 3, 9);
    const auto [num, den] = least_whole(i.copies, i.hosts, i.speeds);
    std::vector<i64> load(i.speeds.size(), 0);
    EXPECT_DOUBLE_EQ(static_cast<double>(num) / static_cast<double>(den),
                     least_of_all(i.copies, i.hosts, i.speeds, load, 0, 0, i.copies[0]));
  }
}

// Claim: shares of the exact split on unequal devices are the best there are: equal to the bound of every set
// of experts on 400 instances
TEST(ExactSplit, MeetsTheBoundOfEverySetOnRandomInstances) {
  std::mt19937_64 random(5);
  for (int instance = 0; instance < 400; ++instance) {
    const auto [copies, speeds, hosts] = random_instance(random, 7, 5, 40);
    const auto [num, den] = least(copies, hosts, speeds);
    EXPECT_NEAR(static_cast<double>(num) / static_cast<double>(den), bound(copies, hosts, speeds), 1e-12);
  }
}

}  // namespace
}  // namespace hetermoe
