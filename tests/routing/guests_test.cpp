#include "hetermoe/routing/guests.h"

#include <gtest/gtest.h>

#include <random>

namespace hetermoe {
namespace {

using Loads = std::vector<i64>;

Hosts two_each(std::size_t num_experts) {
  Hosts hosts;
  for (std::size_t e = 0; e < num_experts; ++e) hosts.push_back({static_cast<i32>(e / 2)});
  return hosts;
}

double time_of(const WholeSplit& split) {
  return static_cast<double>(split.num) / static_cast<double>(split.den);
}

const Loads kEight = {40, 10, 20, 10, 5, 5, 6, 4};

TEST(Guests, RelieveTheLatestDevice) {
  const GuestSplit out =
      split_with_guests(kEight, two_each(8), {1, 1, 1, 1}, {.slots = 1, .nodes = {0, 0, 0, 0}});
  EXPECT_EQ(time_of(out.split), 25);
  EXPECT_EQ(out.guests, (std::vector<Guest>{{0, 0, 2}, {0, 0, 3}, {2, 1, 0}}));
}

TEST(Guests, StayOnTheNode) {
  const GuestSplit out =
      split_with_guests(kEight, two_each(8), {1, 1, 1, 1}, {.slots = 1, .nodes = {0, 0, 1, 1}});
  EXPECT_EQ(time_of(out.split), 40);
  EXPECT_EQ(out.guests, (std::vector<Guest>{{0, 0, 1}}));
}

TEST(Guests, GoByTimeWhereDevicesDiffer) {
  const GuestSplit out =
      split_with_guests(kEight, two_each(8), {2, 2, 1, 1}, {.slots = 1, .nodes = {0, 0, 0, 0}});
  EXPECT_EQ(time_of(out.split), 17);
  EXPECT_EQ(out.guests, (std::vector<Guest>{{0, 0, 1}, {0, 0, 2}, {0, 0, 3}}));
  const GuestSplit three =
      split_with_guests({12, 30, 9, 3, 21, 6}, two_each(6), {3, 1, 2}, {.slots = 1, .nodes = {0, 0, 0}});
  EXPECT_EQ(std::pair(three.split.num, three.split.den), std::pair(i64{41}, i64{3}));
  EXPECT_EQ(three.guests, (std::vector<Guest>{{0, 0, 1}}));
}

TEST(Guests, NoneWhereTheyCostMoreThanTheySave) {
  const Hosts hosts = two_each(4);
  const GuestRoom dear = {.slots = 1, .nodes = {0, 0}, .cost = {6, 6}};
  EXPECT_TRUE(split_with_guests({10, 10, 8, 4}, hosts, {1, 1}, dear).guests.empty());
  GuestRoom cheap = dear;
  cheap.cost = {3, 3};
  const GuestSplit out = split_with_guests({10, 10, 8, 4}, hosts, {1, 1}, cheap);
  EXPECT_EQ(out.guests.size(), 1u);
  EXPECT_EQ(time_of(out.split), 16);
}

struct GuestInstance {
  Loads copies, speeds;
  Hosts hosts;
  GuestRoom room;
};
GuestInstance random_instance(std::mt19937_64& random) {
  const std::size_t num_devices = 2 + random() % 7;
  GuestInstance out;
  for (std::size_t d = 0; d < num_devices; ++d) {
    out.speeds.push_back(static_cast<i64>(1 + random() % 3));
    out.room.nodes.push_back(static_cast<NodeId>(d * 2 / num_devices));
    out.room.cost.push_back(static_cast<i64>(random() % 3));
    for (int e = 0; e < 2; ++e) {
      out.copies.push_back(static_cast<i64>(random() % 100));
      out.hosts.push_back({static_cast<i32>(d)});
    }
  }
  out.room.slots = static_cast<i64>(random() % 3);
  return out;
}

TEST(Guests, KeepSlotsNodesAndCopiesAndAreNeverLater) {
  std::mt19937_64 random(3);
  int with_guests = 0;
  for (int round = 0; round < 2000; ++round) {
    const GuestInstance i = random_instance(random);
    const GuestSplit out = split_with_guests(i.copies, i.hosts, i.speeds, i.room);
    Loads used(i.speeds.size(), 0);
    for (const Guest& guest : out.guests) {
      ++used[static_cast<std::size_t>(guest.to)];
      EXPECT_EQ(i.room.nodes[static_cast<std::size_t>(guest.from)],
                i.room.nodes[static_cast<std::size_t>(guest.to)]);
    }
    for (const i64 slots : used) EXPECT_LE(slots, i.room.slots);
    for (std::size_t e = 0; e < i.copies.size(); ++e) {
      i64 sum = 0;
      for (std::size_t h = 0; h < out.hosts[e].size(); ++h) {
        sum += out.split.copies[e][h];
        EXPECT_GE(out.split.copies[e][h], h > 0 ? 1 : 0);
      }
      EXPECT_EQ(sum, i.copies[e]);
    }
    EXPECT_LE(time_of(out.split), time_of(whole_split(i.copies, i.hosts, i.speeds)));
    with_guests += out.guests.empty() ? 0 : 1;
  }
  EXPECT_GT(with_guests, 500);
}

/// The least time over all sets of guests, copies divided exactly.
double best_of_all_sets(const GuestInstance& i) {
  std::vector<Guest> places;
  for (std::size_t e = 0; e < i.hosts.size(); ++e) {
    for (std::size_t d = 0; d < i.speeds.size(); ++d) {
      const auto home = static_cast<std::size_t>(i.hosts[e][0]);
      if (d != home && i.room.nodes[d] == i.room.nodes[home])
        places.push_back({static_cast<i32>(e), i.hosts[e][0], static_cast<i32>(d)});
    }
  }
  double best = 1e30;
  for (std::size_t set = 0; set < (std::size_t{1} << places.size()); ++set) {
    Hosts hosts = i.hosts;
    Loads used(i.speeds.size(), 0);
    bool fits = true;
    for (std::size_t p = 0; p < places.size() && fits; ++p) {
      if ((set >> p & 1) == 0) continue;
      hosts[static_cast<std::size_t>(places[p].expert)].push_back(places[p].to);
      fits = ++used[static_cast<std::size_t>(places[p].to)] <= i.room.slots;
    }
    if (fits) best = std::min(best, time_of(whole_split(i.copies, hosts, i.speeds)));
  }
  return best;
}

TEST(Guests, AreNearTheBestSetOnTinyInstances) {
  std::mt19937_64 random(11);
  double sum = 0, worst = 0;
  for (int round = 0; round < 60; ++round) {
    GuestInstance i = random_instance(random);
    while (i.speeds.size() != 3) i = random_instance(random);
    i.room = {.slots = 1, .nodes = {0, 0, 0}};
    const double best = best_of_all_sets(i);
    const double ratio = time_of(split_with_guests(i.copies, i.hosts, i.speeds, i.room).split) / best;
    EXPECT_GE(ratio, 1 - 1e-12);
    sum += ratio;
    worst = std::max(worst, ratio);
  }
  EXPECT_LT(sum / 60, 1.05);
  EXPECT_LT(worst, 1.6);
}

}  // namespace
}  // namespace hetermoe
