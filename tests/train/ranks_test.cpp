#include "hetermoe/train/session/ranks.h"

#include <gtest/gtest.h>

#include "hetermoe/report/table.h"
#include "tests/support/on_ranks.h"
#include "tests/train/tiny_run.h"

namespace hetermoe {
namespace {

constexpr Bytes kGib = 1024.0 * 1024 * 1024;

/// As the driver reports it: a part of the memory is the driver's own.
RankGpu a40(const std::string& host) { return {host, "NVIDIA A40", 86, 44.4 * kGib}; }
RankGpu v100(const std::string& host, double gib = 15.8) { return {host, "Tesla V100", 70, gib * kGib}; }

WantedGpu wants_a40(DeviceId device, NodeId node) {
  return {device, node, fmt::format("A40#{}", device), 86, 48 * kGib};
}
WantedGpu wants_v100(DeviceId device, NodeId node, double gib = 16) {
  return {device, node, fmt::format("V100#{}", device), 70, gib * kGib};
}

using Ranks = std::vector<i32>;

TEST(AssignRanks, RanksThatHaveWhatTheFileSaysKeepItsOrder) {
  EXPECT_EQ(
      assign_ranks({a40("n1"), a40("n2"), v100("n2")}, {wants_a40(0, 0), wants_a40(1, 0), wants_v100(2, 1)}),
      (Ranks{0, 1, 2}));
}

TEST(AssignRanks, RanksInTheOrderOfJoiningArePermuted) {
  EXPECT_EQ(assign_ranks({v100("n2"), v100("n2"), a40("n1")},
                         {wants_a40(0, 0), wants_v100(2, 1), wants_v100(3, 1)}),
            (Ranks{2, 0, 1}));
}

TEST(AssignRanks, TheDevicesOfANodeGoToOneHost) {
  const std::vector<RankGpu> found = {v100("a"), v100("b"), a40("a"), v100("b"), v100("a")};
  const std::vector<WantedGpu> wanted = {wants_a40(0, 0), wants_v100(1, 0), wants_v100(2, 0),
                                         wants_v100(3, 1), wants_v100(4, 1)};
  EXPECT_EQ(assign_ranks(found, wanted), (Ranks{2, 0, 4, 1, 3}));
}

TEST(AssignRanks, NodesThatAreSpreadOverHostsAreStillServed) {
  EXPECT_EQ(assign_ranks({v100("a"), a40("b")}, {wants_a40(0, 0), wants_v100(1, 0)}), (Ranks{1, 0}));
}

TEST(AssignRanks, ALargerCardServesOnlyWhereNoExactOneIsLeft) {
  EXPECT_EQ(assign_ranks({v100("a", 31.7), v100("a")}, {wants_v100(0, 0), wants_v100(1, 0, 32)}),
            (Ranks{1, 0}));
  EXPECT_EQ(assign_ranks({v100("a", 31.7), v100("a")}, {wants_v100(0, 0), wants_v100(1, 0)}), (Ranks{0, 1}));
}

TEST(AssignRanks, AMismatchIsRefusedWithBothLists) {
  const std::string error = error_of<ConfigError>([] {
    assign_ranks({v100("n1"), v100("n2")}, {wants_a40(0, 0), wants_v100(3, 1)});
  });
  const std::string has = format_bytes(15.8 * kGib), needs = format_bytes(48 * kGib);
  EXPECT_NE(error.find(fmt::format("got rank 0: Tesla V100 ({}, compute capability 7.0) on n1; rank 1: Tesla "
                                   "V100 ({}, compute capability 7.0) on n2",
                                   has, has)),
            std::string::npos)
      << error;
  EXPECT_NE(error.find(fmt::format("expected device 0: A40#0 ({}, compute capability 8.6); device 3: V100#3",
                                   needs)),
            std::string::npos)
      << error;
}

TEST(AssignRanks, ASmallerCardIsRefused) {
  EXPECT_NE(error_of<ConfigError>([] { assign_ranks({v100("a")}, {wants_v100(0, 0, 32)}); }), "no error");
}

TEST(AssignRanks, MoreGpusThanDevicesAreNoFault) {
  EXPECT_EQ(assign_ranks({v100("a"), v100("a"), a40("a")}, {wants_a40(0, 0), wants_v100(1, 0)}),
            (Ranks{2, 0}));
}

TEST(AssignGpus, OfOneKindAreTakenInTurn) {
  const std::vector<WantedGpu> three = {wants_a40(0, 0), wants_a40(1, 0), wants_v100(2, 0)};
  EXPECT_EQ(assign_gpus({a40(""), a40("")}, three, 0), (Ranks{0, 1, 0}));
  EXPECT_EQ(assign_gpus({a40(""), a40(""), a40(""), a40("")}, three, 3), (Ranks{3, 0, 1}));
}

TEST(AssignGpus, OfTwoKindsServeDevicesOfTheirOwn) {
  EXPECT_EQ(assign_gpus({v100(""), a40(""), v100("")}, {wants_a40(0, 0), wants_v100(1, 0)}, 0),
            (Ranks{1, 0}));
  const std::string fewer = error_of<ConfigError>([] {
    assign_gpus({v100(""), a40("")}, {wants_a40(0, 0), wants_v100(1, 0), wants_v100(2, 0)}, 0);
  });
  EXPECT_EQ(
      fewer,
      "[run.device] a process has 2 GPUs of two kinds (Tesla V100, NVIDIA A40) for 3 devices: expected a "
      "GPU for each device. Start more processes, or name one GPU: --run.device cuda:0");
  EXPECT_NE(error_of<ConfigError>([] {
              assign_gpus({v100(""), a40("")}, {wants_v100(0, 0), wants_v100(1, 0)}, 0);
            }),
            "no error");
}

TEST(RanksOfDevices, AnIdleDeviceHasNoRank) {
  const WorkFolder folder;
  const TinyRun rig(folder.path(), {{"plan.attention", "0"}, {"plan.experts", "2,3"}});
  EXPECT_EQ(ranks_of_devices(rig.plan, rig.cluster, 3), (Ranks{0, -1, 1, 2}));
  EXPECT_EQ(ranks_of_devices(rig.plan, rig.cluster, 2), (Ranks{0, -1, 1, 1}));  // a rank for each node
  EXPECT_NE(error_of<ConfigError>([&] {
              ranks_of_devices(rig.plan, rig.cluster, 4);
            }).find("4 processes for 3 devices"),
            std::string::npos);
}

/// Round robin lists devices that get no turn where they are slow.
TEST(RanksOfDevices, ADeviceOfAGroupWithoutAPartHasNoRank) {
  const WorkFolder folder;
  TinyRun rig(folder.path(), {{"plan.attention", "0"}, {"plan.experts", "2,3"}});
  rig.plan.groups[0].devices = {0, 1, 2, 3};
  EXPECT_EQ(ranks_of_devices(rig.plan, rig.cluster, 3), (Ranks{0, -1, 1, 2}));
}

TEST(GatherGpus, EveryRankKnowsWhatAllHave) {
  testing::on_ranks(2, [](const Processes& processes) {
    const std::vector<RankGpu> all = gather_gpus(processes, processes.rank() == 0 ? a40("n1") : v100("n2"));
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[0].name, "NVIDIA A40");
    EXPECT_EQ(all[1].host, "n2");
    EXPECT_EQ(all[1].capability, 70);
    EXPECT_EQ(all[1].memory, 15.8 * kGib);
  });
}

}  // namespace
}  // namespace hetermoe
