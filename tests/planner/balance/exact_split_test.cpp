#include "hetermoe/planner/balance/exact_split.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace hetermoe {
namespace {

using Hosts = std::vector<std::vector<i32>>;

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

TEST(ExactSplit, MeetsTheBoundOfEverySetOnRandomInstances) {
  std::mt19937_64 random(5);
  for (int instance = 0; instance < 400; ++instance) {
    const std::size_t num_experts = 1 + random() % 7, num_devices = 1 + random() % 5;
    std::vector<i64> copies(num_experts), speeds(num_devices);
    Hosts hosts(num_experts);
    for (i64& w : copies) w = static_cast<i64>(random() % 40);
    for (i64& v : speeds) v = static_cast<i64>(1 + random() % 5);
    for (auto& of_expert : hosts) {
      for (std::size_t d = 0; d < num_devices; ++d) {
        if (random() % 3 == 0) of_expert.push_back(static_cast<i32>(d));
      }
      if (of_expert.empty()) of_expert.push_back(static_cast<i32>(random() % num_devices));
    }
    const auto [num, den] = least(copies, hosts, speeds);
    EXPECT_NEAR(static_cast<double>(num) / static_cast<double>(den), bound(copies, hosts, speeds), 1e-12);
  }
}

}  // namespace
}  // namespace hetermoe
