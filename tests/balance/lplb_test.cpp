#include "hetermoe/balance/lplb.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "hetermoe/balance/eplb.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

TEST(Topology, KnownOnesHaveTheirColumns) {
  EXPECT_EQ(topology_columns("cube", 8),
            (TopologyColumns{{3, 0, 1, 2, 7, 4, 5, 6}, {6, 7, 4, 5, 0, 1, 2, 3}}));
  EXPECT_EQ(topology_columns("hypercube", 16),
            (TopologyColumns{{3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14},
                             {12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}));
  EXPECT_EQ(topology_columns("ring", 4), (TopologyColumns{{1, 2, 3, 0}}));
  EXPECT_EQ(topology_columns("torus:2x3", 6), (TopologyColumns{{3, 4, 5, 0, 1, 2}, {1, 2, 0, 4, 5, 3}}));
  EXPECT_EQ(topology_columns("[[1,0]]", 4), (TopologyColumns{{1, 0}}));
  EXPECT_EQ(topology_columns("", 12), topology_columns("torus:4x3", 12));
  EXPECT_EQ(topology_columns("", 10), topology_columns("ring", 10));
  EXPECT_EQ(topology_columns("cube", 16), topology_columns("cube", 8));
}

TEST(Topology, RefusesWhatCopiesNothing) {
  const auto error = [](const std::string& name, i64 devices) {
    return error_of<ConfigError>([&] { topology_columns(name, devices); });
  };
  EXPECT_EQ(error("torus:100000x100000", 8),
            "[topology] got 10000000000 devices in torus:100000x100000, expected a divisor of the 8 that own "
            "experts");
  EXPECT_EQ(
      error("[[1,4294967296]]", 2),
      "[topology] got [[1,4294967296]], expected columns of equally many device numbers, as [[1,2,3,0]]");
  EXPECT_EQ(error("[[1,1]]", 2), "[topology] column 0: got [1,1], expected each device from 0 to 1 once");
  EXPECT_EQ(error("[[1,0],[0,1]]", 2), "[topology] column 1: device 0 would copy an expert of its own");
  EXPECT_EQ(
      error("cube", 12),
      "[topology] got groups of 8 devices, expected a divisor of the 12 that own experts: 4 would be over");
  EXPECT_EQ(error("torus", 10),
            "[topology] got torus for 10 devices, expected a number with two divisors above 2. Use ring");
  EXPECT_TRUE(error("cuba", 8).find("\"cube\"") != std::string::npos);
  EXPECT_TRUE(error("[[1,0],[1]]", 2).find("expected columns of equally many device numbers") !=
              std::string::npos);
  EXPECT_TRUE(error("ring", 1).find("expected at least 2") != std::string::npos);
}

TEST(Topology, RingOfFour) {
  const auto hosts = topology_hosts({{0, 1}, {2, 3}, {4, 5}, {6, 7}}, topology_columns("ring", 4), 1);
  EXPECT_EQ(hosts, (Hosts{{0, 3}, {0}, {1, 0}, {1}, {2, 1}, {2}, {3, 2}, {3}}));
}

BalanceInput input_of(i64 devices, std::vector<double> load, i64 replicas, const std::string& topology) {
  BalanceInput input;
  for (i64 d = 0; d < devices; ++d) input.devices.push_back({.id = static_cast<DeviceId>(d)});
  input.load = {std::move(load)};
  input.replicas = replicas;
  input.topology = topology;
  return input;
}

// Claim (Lplb.*, Reorder.*, TraceBalance.MadeTraces*): `lplb` balances its own test loads, `relibra` reaches
// the best owners of small instances, made traces give an independent prototype's figures
TEST(Lplb, CopiesTheBusiestExpertsAndRefusesOtherNumbers) {
  const std::vector<double> load = {40, 10, 20, 10, 5, 5, 6, 4};
  const LayerOwners owners = find_balancer("lplb").place(input_of(4, load, 4, "ring"))[0];
  i64 copied = 0;
  for (const ExpertOwners& of_expert : owners) copied += of_expert.size() == 2 ? 1 : 0;
  EXPECT_EQ(copied, 4);
  EXPECT_EQ(owners[0].size(), 2u);
  EXPECT_EQ(error_of<ConfigError>([&] { find_balancer("lplb").place(input_of(4, load, 6, "ring")); }),
            "[replicas] got 6, expected a multiple of 4: 4 devices with 1 columns of the topology each");
  EXPECT_EQ(error_of<ConfigError>([&] { find_balancer("lplb").place(input_of(4, load, 12, "ring")); }),
            "[replicas] device 0 has 2 experts of a layer, and others copy 3 of them: expected replicas of "
            "at most 8");
}

/// Largest over mean load of LPLB's own test loads. ordered: experts go to devices by an estimate first.
double balance(const std::string& topology, i64 devices, bool ordered, u64 seed) {
  constexpr std::size_t kExperts = 256;
  std::mt19937_64 random(seed);
  std::normal_distribution<double> loads(1, 0.3), history(1, 0.15);
  std::vector<double> estimate(kExperts);
  std::vector<i64> copies(kExperts);
  for (std::size_t e = 0; e < kExperts; ++e) {
    copies[e] = std::llround(1e4 * std::max(0.0, loads(random)));
    estimate[e] = std::max(0.0, history(random));
  }
  std::vector<std::vector<i32>> hosts;
  const std::vector<double> known = ordered ? estimate : std::vector<double>(kExperts, 1);
  const LayerOwners placed = find_balancer("lplb").place(input_of(devices, known, 2 * devices, topology))[0];
  for (const ExpertOwners& owners : placed) {
    hosts.emplace_back();
    for (const ExpertOwner& owner : owners) hosts.back().push_back(owner.device);
  }
  const WholeSplit split = whole_split(copies, hosts, std::vector<i64>(static_cast<std::size_t>(devices), 1));
  const i64 sum = std::accumulate(copies.begin(), copies.end(), i64{0});
  return static_cast<double>(split.num) / static_cast<double>(split.den) * static_cast<double>(devices) /
         static_cast<double>(sum);
}

TEST(Lplb, BalancesItsOwnTestLoads) {
  // Means of 20 draws on the torus go from 1.005 to 1.016, so this is the mean of 200.
  constexpr u64 kDraws = 200;
  double cube = 0, torus = 0, hypercube = 0;
  for (u64 seed = 1; seed <= kDraws; ++seed) {
    cube += balance("cube", 32, true, seed) / kDraws;
    torus += balance("torus:8x4", 32, false, seed) / kDraws;
    hypercube += balance("hypercube", 16, true, seed) / kDraws;
  }
  std::printf("cube %.4f, torus 8x4 %.4f, hypercube %.4f\n", cube, torus, hypercube);
  EXPECT_LT(cube, 1.07);
  EXPECT_LT(torus, 1.01);
  EXPECT_LT(hypercube, 1.03);
}

}  // namespace
}  // namespace hetermoe
