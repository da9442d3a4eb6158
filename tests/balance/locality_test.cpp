#include "hetermoe/balance/locality.h"

#include <gtest/gtest.h>

#include <random>

#include "hetermoe/balance/sequence_order.h"
#include "hetermoe/balance/trace_balance.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/routing/clusters.h"
#include "hetermoe/routing/synthetic.h"
#include "tests/schedule/plans.h"
#include "tests/support/error_of.h"
#include "tests/support/nodes_of_eight.h"

namespace hetermoe {
namespace {

const Usage kTwo = {{40, 30, 5, 5, 10, 2}, {6, 28, 35, 4, 9, 20}};
const Usage kThree = {{15, 8, 16, 11, 4, 12}, {0, 11, 15, 8, 20, 14}, {19, 7, 17, 0, 19, 4}};

// Claim (Locality.*): placement by use: golden values, exact equal to brute force, the cap kept, volumes of
// made traces within 1.5 % of an independent prototype
TEST(Locality, PlacementsAreThoseOfAnIndependentScript) {
  const std::vector<i32> two = {0, 0, 1, 0, 1, 1};
  EXPECT_EQ(place_greedy(kTwo, {3, 3}), two);
  EXPECT_EQ(copies_outside(kTwo, place_greedy(kTwo, {3, 3})), 55);
  EXPECT_EQ(copies_outside(kTwo, place_exact(kTwo, {3, 3})), 55);
  EXPECT_EQ(copies_outside(kTwo, {0, 0, 0, 1, 1, 1}), 86);
  EXPECT_EQ(place_greedy(kThree, {2, 2, 2}), (std::vector<i32>{2, 0, 2, 0, 1, 1}));
  EXPECT_EQ(copies_outside(kThree, place_greedy(kThree, {2, 2, 2})), 111);
  EXPECT_EQ(copies_outside(kThree, place_exact(kThree, {2, 2, 2})), 110);
  EXPECT_EQ(copies_outside(kThree, {0, 0, 1, 1, 2, 2}), 131);
}

Usage random_usage(std::mt19937& random, std::size_t groups, std::size_t experts) {
  Usage usage(groups, std::vector<double>(experts));
  for (auto& row : usage) {
    for (double& x : row) x = static_cast<double>(random() % 30);
  }
  return usage;
}

std::vector<i64> counts_of(const std::vector<i32>& group, std::size_t num_groups) {
  std::vector<i64> out(num_groups, 0);
  for (const i32 g : group) ++out[static_cast<std::size_t>(g)];
  return out;
}

double best_by_force(const Usage& usage, const std::vector<i64>& room) {
  const std::size_t groups = usage.size(), experts = usage[0].size();
  std::vector<i32> group(experts, 0);
  double best = 1e300;
  for (;;) {
    if (counts_of(group, groups) == room) best = std::min(best, copies_outside(usage, group));
    std::size_t e = 0;
    while (e < experts && ++group[e] == static_cast<i32>(groups)) group[e++] = 0;
    if (e == experts) return best;
  }
}

TEST(Locality, ExactEqualsBruteForceAndIsNeverWorseThanGreedy) {
  std::mt19937 random(1);
  for (int round = 0; round < 1000; ++round) {
    const std::size_t groups = 2 + random() % 2, experts = 4 + random() % 4;
    const Usage usage = random_usage(random, groups, experts);
    std::vector<i64> room(groups, static_cast<i64>(experts / groups));
    for (std::size_t i = 0; i < experts % groups; ++i) ++room[i];
    const std::vector<i32> exact = place_exact(usage, room);
    ASSERT_EQ(counts_of(exact, groups), room);
    ASSERT_EQ(counts_of(place_greedy(usage, room), groups), room);
    ASSERT_LE(copies_outside(usage, exact), copies_outside(usage, place_greedy(usage, room)));
    if (round < 100) {
      ASSERT_EQ(copies_outside(usage, exact), best_by_force(usage, room));
    }
  }
}

std::vector<double> sum_of(const Usage& usage) {
  std::vector<double> load(usage[0].size(), 0);
  for (const auto& row : usage) {
    for (std::size_t e = 0; e < load.size(); ++e) load[e] += row[e];
  }
  return load;
}

TEST(Locality, TheCapIsKeptWhereLoadAloneCanKeepIt) {
  std::mt19937 random(2);
  int capped = 0;
  for (int round = 0; round < 200; ++round) {
    const Usage usage = random_usage(random, 4, 32);
    const std::vector<double> speeds =
        round % 2 == 0 ? std::vector<double>{1, 1, 1, 1} : std::vector<double>{3, 2, 1, 1};
    const std::vector<i64> room = group_room(32, speeds);
    const CappedPlacement placed = place_capped(usage, room, speeds, 1.1);
    ASSERT_EQ(counts_of(placed.group, 4), room);
    ASSERT_DOUBLE_EQ(placed.ratio, group_ratio(sum_of(usage), speeds, placed.group));
    if (placed.capped) {
      ++capped;
      ASSERT_LE(placed.ratio, 1.1 + 1e-9);
    } else {
      ASSERT_GT(group_ratio(sum_of(usage), speeds, place_by_load(usage, room, speeds)), 1.1);
    }
  }
  EXPECT_GT(capped, 180);
}

/// Sequences of one domain are alike, and long ones have values at which a sum of four loses more than any
/// fixed bound: exchanging two of them must not look like a gain, now and again for ever.
TEST(Locality, OrderingLongSequencesThatAreAlikeEnds) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> part(0, 1);
  for (int i = 0; i < 200; ++i) {
    const double all = 65536.0 * 8 * 48, here = all * part(random);
    const std::vector<double> row = {here, all - here};
    EXPECT_EQ(order_sequences({row, row, row, row}, {2, 2}).size(), 4U);
  }
}

TEST(Locality, SequencesGoWhereTheirValuesAre) {
  EXPECT_EQ(order_sequences({{5, 1}, {4, 3}, {2, 2}, {0, 6}}, {2, 2}), (std::vector<i32>{0, 0, 1, 1}));
}

TEST(Locality, OrdersNearTheBestOfAllOnSmallCases) {
  std::mt19937 random(3);
  double got = 0, best_sum = 0;
  for (int round = 0; round < 100; ++round) {
    std::vector<std::vector<double>> values(6, std::vector<double>(3));
    for (auto& row : values) {
      for (double& x : row) x = static_cast<double>(random() % 20);
    }
    const auto sum = [&](const std::vector<i32>& kinds) {
      double out = 0;
      for (std::size_t s = 0; s < kinds.size(); ++s) out += values[s][static_cast<std::size_t>(kinds[s])];
      return out;
    };
    std::vector<i32> kinds = {0, 0, 1, 1, 2, 2};
    double best = 0;
    do best = std::max(best, sum(kinds));
    while (std::next_permutation(kinds.begin(), kinds.end()));
    const double here = sum(order_sequences(values, {2, 2, 2}));
    ASSERT_LE(here, best);
    got += here, best_sum += best;
  }
  EXPECT_GT(got, 0.99 * best_sum);
}

/// 7 domains on 8 groups, sequences with those of their domain: copies that change groups, of linear.
struct Volumes {
  double greedy = 0, exact = 0, capped = 0, load = 0, capped_load = 0;
};
Volumes volumes(double spread, i64 seeds) {
  Volumes out;
  for (i64 seed = 1; seed <= seeds; ++seed) {
    TraceHeader header;
    header.layers = {0};
    header.num_experts = 256;
    header.top_k = 8;
    SyntheticOptions options;
    options.seq_len = 256;
    options.sequences = 112;
    options.spread = 0.6;
    options.domains = 7;
    options.domain_spread = spread;
    options.seed = static_cast<u64>(seed);
    const TraceStep step = SyntheticTrace(header, options).step(0);
    const Activations rows = activations(header, step, -1, 0, "made");
    std::vector<i32> domains;
    for (const TraceSequence& s : step.sequences) domains.push_back(static_cast<i32>(s.domain));
    const Clusters clusters = labelled(rows, domains, 7);
    const Usage usage = usage_of(rows, clusters, groups_of_clusters(rows, clusters, 8), 8);
    const std::vector<double> speeds(8, 1);
    const std::vector<i64> room = group_room(256, speeds);
    std::vector<i32> linear;
    for (i32 e = 0; e < 256; ++e) linear.push_back(e / 32);
    const double all = copies_outside(usage, linear) * static_cast<double>(seeds);
    const std::vector<i32> greedy = place_greedy(usage, room);
    const CappedPlacement capped = place_capped(usage, room, speeds, 1.1);
    out.greedy += copies_outside(usage, greedy) / all;
    out.exact += copies_outside(usage, place_exact(usage, room)) / all;
    out.capped += copies_outside(usage, capped.group) / all;
    out.load += group_ratio(sum_of(usage), speeds, greedy) / static_cast<double>(seeds);
    out.capped_load = std::max(out.capped_load, capped.ratio);
  }
  return out;
}

TEST(Locality, MadeTracesGiveTheVolumesOfAnIndependentPrototype) {
  for (const auto& [spread, volume] : {std::pair{0.2, 0.959}, std::pair{0.6, 0.860}, std::pair{1.0, 0.734}}) {
    const Volumes got = volumes(spread, 10);
    EXPECT_NEAR(got.greedy / volume, 1, 0.015) << spread;
    EXPECT_LE(got.exact, got.greedy + 1e-12);
    EXPECT_LE(got.capped_load, 1.1 + 1e-9);
    EXPECT_LT(got.capped - got.exact, (1 - got.exact) / 3) << spread;
    std::printf("spread %.1f: greedy %.3f, exact %.3f, capped %.3f; load of greedy %.2f\n", spread,
                got.greedy, got.exact, got.capped, got.load);
  }
}

TEST(Locality, DomainsThatAreAlikeGainNothing) {
  const Volumes got = volumes(0, 2);
  EXPECT_NEAR(got.greedy, 1, 0.03);
}

TEST(Locality, GroupsAreNodesDevicesOrLists) {
  const Cluster cluster = testing::nodes_of_eight({{"H100", 16}});
  const std::vector<DeviceId> devices = {0, 1, 8, 9};
  EXPECT_EQ(device_groups("node", cluster, devices), (std::vector<std::vector<DeviceId>>{{0, 1}, {8, 9}}));
  EXPECT_EQ(device_groups("device", cluster, devices).size(), 4u);
  EXPECT_EQ(device_groups("[[0,8],[1,9]]", cluster, devices),
            (std::vector<std::vector<DeviceId>>{{0, 8}, {1, 9}}));
  const auto error = [&](const std::string& text) {
    return error_of<ConfigError>([&] { device_groups(text, cluster, devices); });
  };
  EXPECT_NE(error("[[0,1],[1,8,9]]").find("device 1 is in it twice"), std::string::npos);
  EXPECT_NE(error("[[0,1],[8]]").find("device 9 (H100#9) of the plan is in no group"), std::string::npos)
      << error("[[0,1],[8]]");
  EXPECT_NE(error("[[0,99]]").find("99 is no device of cluster"), std::string::npos);
  EXPECT_NE(error("nodes").find("expected node, device or lists of devices"), std::string::npos);
}

/// Two nodes of eight, experts of two kinds of sequences.
struct TwoNodes {
  ModelConfig model = test::make_model({.num_layers = 2, .num_experts = 32, .top_k = 2, .hidden = 64});
  Cluster cluster = testing::nodes_of_eight({{"H100", 16}});
  Plan plan;
  std::vector<TraceRouting> steps;

  explicit TwoNodes(double domain_spread) {
    model.max_positions = 4096;
    StrategyRequest request;
    request.seq_len = 128;
    request.sequences = 64;
    request.microbatches = 2;
    plan = find_strategy("ep").make(model, cluster, request);
    TraceHeader header;
    header.layers = {0, 1};
    header.num_experts = 32;
    header.top_k = 2;
    SyntheticOptions options;
    options.seq_len = request.seq_len;
    options.sequences = request.sequences;
    options.microbatches = request.microbatches;
    options.spread = 0.3;
    options.domains = 2;
    options.domain_spread = domain_spread;
    const SyntheticTrace trace(header, options);
    for (i64 s = 0; s < 3; ++s) steps.emplace_back(trace.header(), trace.step(s), model, "made");
  }
  TraceBalanceResult run(const std::string& balancer, Knows knows,
                         const std::string& parts = kAllParts) const {
    return TraceBalance(model, cluster, plan, {}, {})
        .run({.balancer = balancer, .parts = parts, .knows = knows}, steps);
  }
};

TEST(Locality, FewerRowsChangeNodesAndTheLoadStaysEven) {
  const TwoNodes c(1.5);
  for (const Knows knows : {Knows::kForesight, Knows::kHistory}) {
    const TraceBalanceResult none = c.run("none", knows), lpt = c.run("lpt", knows),
                             local = c.run("locality", knows);
    EXPECT_LT(local.node_rows, 0.75 * none.node_rows) << name_of(knows);
    EXPECT_LT(local.rank_ratio.mean, 1.35 * lpt.rank_ratio.mean) << name_of(knows);
  }
  const TwoNodes alike(0);
  EXPECT_NEAR(
      alike.run("locality", Knows::kForesight).node_rows / alike.run("none", Knows::kForesight).node_rows, 1,
      0.1);
}

TEST(Locality, SamplesOfRelibraKeepCopiesHomeAndLeaveEveryLoadAsItIs) {
  const TwoNodes c(1.5);
  for (const Knows knows : {Knows::kForesight, Knows::kHistory}) {
    const TraceBalanceResult none = c.run("none", knows), samples = c.run("relibra", knows, "samples"),
                             reorder = c.run("relibra", knows, "reorder"),
                             both = c.run("relibra", knows, "reorder,samples"),
                             in_step = c.run("relibra", knows, "reorder,guests,split"),
                             all = c.run("relibra", knows);
    // By history sequences go by their domains, which do not prefer owners that ignore domains.
    const double most = knows == Knows::kForesight ? 0.97 : 1.02;
    EXPECT_LT(samples.node_rows, most * none.node_rows) << name_of(knows);
    EXPECT_LT(both.node_rows, most * reorder.node_rows) << name_of(knows);
    EXPECT_LT(all.node_rows, most * in_step.node_rows) << name_of(knows);
    // Sequences stay in their microbatches, so that no exchange has other copies.
    EXPECT_DOUBLE_EQ(samples.rank_ratio.mean, none.rank_ratio.mean);
    EXPECT_DOUBLE_EQ(both.rank_ratio.mean, reorder.rank_ratio.mean);
    EXPECT_DOUBLE_EQ(all.rank_ratio.mean, in_step.rank_ratio.mean);
    EXPECT_DOUBLE_EQ(all.guests, in_step.guests);
    EXPECT_EQ(samples.moved, 0);
  }
}

TEST(Locality, SequencesOfAMicrobatchStayInIt) {
  const TwoNodes c(1.5);
  const TraceBalance balance(c.model, c.cluster, c.plan, {}, {});
  const TraceRouting& step = c.steps[0];
  const std::vector<i64> from = balance.order({.balancer = "relibra"}, c.plan, chosen_rows(step));
  std::vector<i64> sorted = from;
  std::sort(sorted.begin(), sorted.end());
  bool changed = false;
  ASSERT_EQ(from.size(), 64u);
  for (i64 place = 0; place < 64; ++place) {
    EXPECT_EQ(sorted[static_cast<std::size_t>(place)], place);
    EXPECT_EQ(from[static_cast<std::size_t>(place)] / 32, place / 32) << place;
    changed = changed || from[static_cast<std::size_t>(place)] != place;
  }
  EXPECT_TRUE(changed);
}

TEST(Locality, APlanWithoutSourcesBesideOwnersIsPlacedByLoad) {
  TwoNodes c(1.5);
  StrategyRequest request;
  request.seq_len = 128;
  request.sequences = 64;
  request.microbatches = 2;
  for (DeviceId d = 0; d < 8; ++d) request.attention.push_back(d), request.experts.push_back(d + 8);
  c.plan = find_strategy("zebra").make(c.model, c.cluster, request);
  EXPECT_EQ(c.run("locality", Knows::kForesight).rank_ratio.mean,
            c.run("lpt", Knows::kForesight).rank_ratio.mean);
}

}  // namespace
}  // namespace hetermoe
