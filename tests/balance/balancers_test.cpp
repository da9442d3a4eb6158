#include "hetermoe/balance/balancers.h"

#include <gtest/gtest.h>

#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

using Experts = std::vector<std::vector<ExpertId>>;

/// [device of the input] experts of a layer.
Experts held(const BalanceInput& input, const LayerOwners& owners) {
  Experts out(input.devices.size());
  for (std::size_t e = 0; e < owners.size(); ++e) {
    for (const ExpertOwner& owner : owners[e]) {
      for (std::size_t i = 0; i < input.devices.size(); ++i) {
        if (input.devices[i].id == owner.device) out[i].push_back(static_cast<ExpertId>(e));
      }
    }
  }
  return out;
}

Experts placed(const std::string& balancer, const BalanceInput& input, std::size_t layer = 0) {
  const std::vector<LayerOwners> layers = find_balancer(balancer).place(input);
  EXPECT_EQ(layers.size(), input.load.size());
  return held(input, layers.at(layer));
}

BalanceInput input_of(const std::vector<double>& speeds, i64 layers, i64 experts) {
  BalanceInput input;
  for (const double speed : speeds)
    input.devices.push_back({.id = 10 + static_cast<DeviceId>(input.devices.size()), .unit_s = 1 / speed});
  input.load = even_load(layers, experts);
  return input;
}

/// The latest finish in a layer over that of a perfect division.
double time_ratio(const BalanceInput& input, const Experts& experts, std::size_t layer) {
  double sum = 0, speeds = 0, latest = 0;
  for (const double load : input.load[layer]) sum += load;
  for (std::size_t i = 0; i < experts.size(); ++i) {
    double mine = 0;
    for (const ExpertId e : experts[i]) mine += input.load[layer][static_cast<std::size_t>(e)];
    latest = std::max(latest, mine * input.devices[i].unit_s);
    speeds += input.devices[i].speed();
  }
  return latest / (sum / speeds);
}

TEST(Balancers, AreFoundByNameWithEitherDash) {
  for (const Balancer& balancer : balancers()) EXPECT_EQ(&find_balancer(balancer.name), &balancer);
  EXPECT_EQ(find_balancer("level-by-part").name, "level_by_part");
  EXPECT_TRUE(error_of<ConfigError>([] { find_balancer("evem"); }).find("\"even\"") != std::string::npos);
}

// Claim (Balancers.PartsOfRelibraCanBeLeftOut, Locality.Samples*, RelibraRun.*, Mpi.ProbedRuns*): each part
// of `relibra` can be left out; sequences that change sources leave every exchange its copies and keep more
// of them in their node; losses, and the bits of resumed and repeated runs, are those of a run without
TEST(Balancers, PartsOfRelibraCanBeLeftOut) {
  const BalancerChoice all = balancer_choice("relibra");
  EXPECT_EQ(all.balancer, &find_balancer("relibra"));
  EXPECT_EQ(all.split, CopySplit::kGuests);
  EXPECT_EQ(all.order, SequenceOrder::kWithinMicrobatches);
  const BalancerChoice reorder = balancer_choice("relibra", "reorder");
  EXPECT_EQ(reorder.balancer, all.balancer);
  EXPECT_EQ(reorder.split, CopySplit::kShares);
  EXPECT_EQ(reorder.order, SequenceOrder::kAsTheyCome);
  const BalancerChoice samples = balancer_choice("relibra", "samples");
  EXPECT_EQ(samples.balancer, nullptr);
  EXPECT_EQ(samples.split, CopySplit::kShares);
  EXPECT_FALSE(samples.as_planned());
  const BalancerChoice guests = balancer_choice("relibra", "split,guests");
  EXPECT_EQ(guests.balancer, nullptr);
  EXPECT_EQ(guests.split, CopySplit::kGuests);
  EXPECT_EQ(balancer_choice("relibra", "reorder,split").split, CopySplit::kExact);
  EXPECT_TRUE(balancer_choice("relibra", "").as_planned());
  EXPECT_EQ(balancer_choice("relibra+shares").split, CopySplit::kShares);
  EXPECT_EQ(balancer_choice("lplb", "reorder").split, CopySplit::kExact);  // it has no parts
  const auto error = [](const char* parts) {
    return error_of<ConfigError>([&] { balancer_choice("relibra", parts); });
  };
  EXPECT_NE(error("reorder,guest")
                .find("[balancer.parts] unknown part \"guest\". Known: reorder, samples, guests, split. Did "
                      "you mean \"guests\"?"),
            std::string::npos)
      << error("reorder,guest");
  EXPECT_EQ(error("reorder,guests"),
            "[balancer.parts] got reorder,guests, expected split beside guests, whose copies are divided by "
            "it. Add split, or leave guests out");
}

TEST(Balancers, EveryOneGivesEveryExpertAnOwnerAndSharesThatAddUpToOne) {
  BalanceInput input = input_of({1, 2, 1.5}, 3, 7);
  for (auto& load : input.load) load = {0, 1, 3, 1, 0.5, 1, 0.5};
  input.devices.push_back({.id = 20, .owns = false});
  input.moved = {0, 1, 2};
  for (const Balancer& balancer : balancers()) {
    for (const i64 room : {kUnlimitedRoom, i64{7}, i64{2}}) {  // of 21 experts: plenty, exact, too little
      for (std::size_t i = 0; i < 3; ++i) input.devices[i].room = room;
      for (const LayerOwners& layer : balancer.place(input)) {
        ASSERT_EQ(layer.size(), 7u) << balancer.name;
        for (const ExpertOwners& owners : layer) {
          double sum = 0;
          for (const ExpertOwner& owner : owners) sum += owner.share;
          EXPECT_DOUBLE_EQ(sum, 1) << balancer.name;
        }
      }
    }
  }
}

TEST(Balancers, EvenIgnoresSpeedAndProportionalFollowsIt) {
  EXPECT_EQ(placed("even", input_of({1, 2}, 1, 6)), (Experts{{0, 1, 2}, {3, 4, 5}}));
  EXPECT_EQ(placed("proportional", input_of({1, 2}, 1, 6)), (Experts{{0, 1}, {2, 3, 4, 5}}));
}

TEST(Balancers, AsymEaMovesTheLastExpertsOfEveryRunToAttentionDevicesInTurn) {
  BalanceInput input = input_of({1, 1}, 2, 8);
  input.devices.push_back({.id = 20, .owns = false});
  input.devices.push_back({.id = 21, .owns = false});
  input.moved = {0, 3};
  EXPECT_EQ(placed("asym_ea", input, 0), (Experts{{0, 1, 2, 3}, {4, 5, 6, 7}, {}, {}}));
  EXPECT_EQ(placed("asym_ea", input, 1), (Experts{{0}, {4}, {1, 3, 6}, {2, 5, 7}}));
}

TEST(Balancers, LevelGivesABusyDeviceLess) {
  BalanceInput input = input_of({1, 1}, 2, 4);
  input.devices[0].busy = 4;
  EXPECT_EQ(placed("level_by_part", input), (Experts{{0}, {1, 2, 3}}));
  EXPECT_EQ(placed("level_by_device", input), (Experts{{0}, {1, 2, 3}}));
}

TEST(Balancers, LevelStaysWithinRoomAndOffDevicesThatOwnNothing) {
  BalanceInput input = input_of({1, 1, 9}, 2, 4);
  input.devices[0].room = 2;
  input.devices[2].owns = false;
  EXPECT_EQ(placed("level_by_part", input), (Experts{{0}, {1, 2, 3}, {}}));
}

TEST(Balancers, LevelByPartGivesEqualDevicesEquallyManyInALayer) {
  // Two devices that are half as fast as the other two: 4 and 8 experts over two layers of six.
  const BalanceInput input = input_of({1, 1, 2, 2}, 2, 6);
  EXPECT_EQ(placed("level_by_part", input, 0), (Experts{{0}, {1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(placed("level_by_part", input, 1), (Experts{{0}, {1}, {2, 3}, {4, 5}}));
}

TEST(Lpt, PutsTheHeaviestFirstToTheEarliestFinisherWithRoom) {
  const std::vector<std::vector<double>> microbatches = {
      {8, 19, 18, 5, 12, 30, 20, 16}, {21, 19, 3, 20, 1, 30, 27, 16}, {9, 18, 8, 7, 23, 16, 18, 27}};
  BalanceInput input = input_of({2, 2, 1, 1}, 1, 8);
  for (std::size_t e = 0; e < 8; ++e)
    input.load[0][e] = microbatches[0][e] + microbatches[1][e] + microbatches[2][e];
  for (BalanceDevice& device : input.devices) device.room = 2;
  EXPECT_EQ(placed("lpt", input), (Experts{{4, 5}, {0, 6}, {2, 7}, {1, 3}}));
}

TEST(Lpt, IsNoSlowerThanEvenOnSkewedLoads) {
  BalanceInput input = input_of({1, 1, 2}, 1, 9);
  input.load[0] = {4, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5};
  EXPECT_DOUBLE_EQ(time_ratio(input, placed("lpt", input), 0), 2.5 / (9.0 / 4));
  EXPECT_DOUBLE_EQ(time_ratio(input, placed("even", input), 0), 6 / (9.0 / 4));
}

TEST(Lpt, SpreadsRoomOverLayers) {
  BalanceInput input = input_of({100, 1}, 4, 4);
  input.devices[0].room = 10;
  input.devices[1].room = 6;
  i64 on_first = 0;
  for (std::size_t l = 0; l < 4; ++l) on_first += static_cast<i64>(placed("lpt", input, l)[0].size());
  EXPECT_EQ(on_first, 10);
  for (std::size_t l = 0; l < 4; ++l) EXPECT_LE(placed("lpt", input, l)[0].size(), 3u);
}

}  // namespace
}  // namespace hetermoe
