#include <gtest/gtest.h>

#include "hetermoe/plan/row_nodes.h"
#include "tests/sim/folded_cases.h"

// A folded step must give every op the times that it has when all devices are listed.
namespace hetermoe {
namespace {

using test::RandomCase, test::RandomPlans, test::Compared, test::compare, test::hand_made;

/// Plans in which devices of one type, and often whole groups, do the same.
class SymmetricPlans {
 public:
  explicit SymmetricPlans(unsigned seed) : random_(seed) {}

  RandomCase make() {
    RandomCase c;
    test::ModelShape shape;
    shape.num_layers = number(1, 3);
    shape.num_experts = 2 * number(1, 6);
    shape.top_k = number(1, 2);
    shape.hidden = 64;
    if (chance(0.3)) shape.dense = {0};
    c.model = test::make_model(shape);
    c.model.tie_embeddings = chance(0.3);
    num_groups_ = chance(0.5) ? number(2, 4) : 1;
    for (i64& count : of_type_) count = number(1, 4);
    make_cluster(c.cluster);
    Plan& plan = c.plan;
    plan.strategy = "random";
    plan.model = c.model.name;
    plan.seq_len = number(8, 64);
    plan.dtype.assign(c.cluster.devices.size(), Dtype::kFp16);
    plan.order = chance(0.2) ? OrderPolicy::kOneFOneB : OrderPolicy::kLayerMajor;
    plan.window = static_cast<i32>(number(0, 3));
    plan.chunks = static_cast<i32>(chance(0.6) ? 1 : 2);
    plan.queue_binding = static_cast<QueueBinding>(number(0, kEnumCount<QueueBinding> - 1));
    plan.recompute = static_cast<Recompute>(number(0, 2));
    plan.row_dedup = chance(0.5);
    make_groups(c);
    if (chance(0.4)) make_teams(c);
    c.options.backward = chance(0.9);
    return c;
  }
  i64 number(i64 low, i64 high) { return std::uniform_int_distribution<i64>(low, high)(random_); }
  bool chance(double p) { return std::bernoulli_distribution(p)(random_); }

 private:
  static constexpr std::size_t kTypes = 2;

  /// Type by type, so many for each group; nodes of any size, so that groups share them or not.
  void make_cluster(Cluster& cluster) {
    cluster.name = "symmetric";
    cluster.types = {catalogue_device("A40", "test"), catalogue_device("V100", "test")};
    const i64 node_size = number(1, 6);
    for (std::size_t t = 0; t < kTypes; ++t) {
      i64 left = 0;
      for (i64 d = 0; d < of_type_[t] * num_groups_; ++d, --left) {
        if (left == 0) {
          cluster.nodes.push_back({fmt::format("n{}", cluster.nodes.size()), 1e7, 1e-6, 1e8, 1e-7});
          left = node_size;
        }
        cluster.devices.push_back({static_cast<i32>(t), static_cast<NodeId>(cluster.nodes.size()) - 1, 1});
      }
    }
  }

  std::vector<DeviceId> devices_of(i64 group, std::size_t type) const {
    std::vector<DeviceId> out;
    const i64 begin = (type == 0 ? 0 : of_type_[0] * num_groups_) + group * of_type_[type];
    for (i64 d = 0; d < of_type_[type]; ++d) out.push_back(static_cast<DeviceId>(begin + d));
    return out;
  }

  /// The same draws for every group, but now and then another number of sequences for one of them.
  void make_groups(RandomCase& c) {
    const i64 num_microbatches = number(1, 3), each = number(0, 2), other = number(1, 3);
    const bool older_attend = chance(0.3), newer_own = chance(0.5), in_turn = chance(0.5);
    const i64 uneven = chance(0.3) ? number(1, 2) : 0;
    const i64 odd_group = chance(0.2) ? 0 : -1;
    const double replicas = chance(0.3) ? (chance(0.5) ? 0.5 : 1) : 0;
    std::vector<bool> replicated;
    for (i64 e = 0; e < c.model.num_experts; ++e) replicated.push_back(chance(replicas));
    for (i64 g = 0; g < num_groups_; ++g) {
      Group group;
      const std::vector<DeviceId> newer = devices_of(g, 0), older = devices_of(g, 1);
      group.devices = newer;
      group.devices.insert(group.devices.end(), older.begin(), older.end());
      ShareRow row;
      for (const DeviceId d : newer) row.push_back({d, other + (g == odd_group ? 1 : 0)});
      if (older_attend) {
        for (const DeviceId d : older) row.push_back({d, each});
      }
      row[0].sequences += uneven;
      i64 sequences = 0;
      for (const Share& share : row) sequences += share.sequences;
      group.microbatches.assign(static_cast<std::size_t>(num_microbatches), sequences);
      group.embed = group.head = {row};
      const std::vector<DeviceId>& owners = newer_own ? group.devices : older;
      for (i64 l = 0; l < c.model.num_layers; ++l) {
        group.layers.push_back({{row}, {}});
        if (!c.model.is_moe(l)) continue;
        for (i64 e = 0; e < c.model.num_experts; ++e) {
          const auto count = static_cast<i64>(owners.size());
          const i64 i = in_turn ? (e + l) % count : e * count / c.model.num_experts;
          const DeviceId first = owners[static_cast<std::size_t>(i)];
          const DeviceId second = owners[static_cast<std::size_t>((i + 1) % count)];
          if (replicated[static_cast<std::size_t>(e)] && count > 1)
            group.layers.back().experts.push_back({{first, 0.5}, {second, 0.5}});
          else
            group.layers.back().experts.push_back({{first, 1}});
        }
      }
      c.plan.groups.push_back(std::move(group));
    }
  }

  /// Devices with attention share sequences, in teams of one to three; every group in the same way, and now
  /// and then one layer in another.
  void make_teams(RandomCase& c) {
    c.model.num_heads = 12, c.model.num_kv_heads = chance(0.5) ? 12 : 4;
    c.model.head_dim = 8;
    const i64 size = number(1, 3), other = chance(0.2) ? number(1, 3) : size;
    const bool even = chance(0.6);
    const std::vector<i64> tokens = {number(0, 3), number(1, 3), number(1, 3)},
                           heads = {number(1, 3), number(0, 3), number(1, 3)};
    for (Group& group : c.plan.groups) {
      std::vector<DeviceId> devices;
      for (const Share& share : group.embed[0]) devices.push_back(share.device);
      const auto row_of = [&](i64 of_team) {
        ShareRow row;
        for (std::size_t i = 0, t = 0; i < devices.size(); i += static_cast<std::size_t>(of_team), ++t) {
          const std::size_t count = std::min(static_cast<std::size_t>(of_team), devices.size() - i);
          const auto split = [&](i64 total, const std::vector<i64>& weights) {
            std::vector<double> own(count, 1);
            for (std::size_t k = 0; !even && k < count && count > 1; ++k)
              own[k] = static_cast<double>(weights[k]);
            return proportional_split(total, own);
          };
          const std::vector<i64> of_tokens = split(c.plan.seq_len, tokens), of_heads = split(12, heads);
          for (std::size_t k = 0; k < count; ++k)
            row.push_back({devices[i + k], 1, of_tokens[k], of_heads[k], static_cast<i32>(t)});
        }
        return row;
      };
      const i64 sequences = row_of(size).back().team + 1;
      group.microbatches.assign(group.microbatches.size(), sequences);
      group.embed = group.head = {row_of(size)};
      for (LayerPlacement& layer : group.layers) layer.attention = group.embed;
      if (row_of(other).back().team + 1 == sequences) group.layers[0].attention = {row_of(other)};
    }
  }

  std::mt19937 random_;
  i64 num_groups_ = 1;
  i64 of_type_[kTypes] = {};
};

TEST(FoldedStep, ListsOneOfManyEqualDevices) {
  const Compared compared =
      compare(hand_made({4, 4}, {{0, 1, 2, 3, 4, 5, 6, 7}}, {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
  EXPECT_EQ(compared.num_listed, 1);
}

TEST(FoldedStep, DevicesThatDifferStandForThemselves) {
  RandomCase c = hand_made({4}, {{0, 1, 2, 3}}, {{0}, {1}, {2}, {3}});
  const auto listed = [&](auto change) {
    RandomCase changed = c;
    change(changed);
    return compare(changed).num_listed;
  };
  EXPECT_EQ(listed([](RandomCase&) {}), 1);
  EXPECT_EQ(listed([](RandomCase& x) { x.cluster.devices[1].speed = 0.5; }), 2);
  EXPECT_EQ(listed([](RandomCase& x) { x.plan.dtype[2] = Dtype::kFp32; }), 2);
  EXPECT_EQ(listed([](RandomCase& x) {
              x.cluster.types.push_back(x.cluster.types[0]);
              x.cluster.devices[3].type = 1;
            }),
            2);
  EXPECT_EQ(listed([](RandomCase& x) { x.plan.groups[0].layers[1].experts[0][0].device = 3; }), 3);
  EXPECT_EQ(listed([](RandomCase& x) {  // another share in one layer only
              ShareRow& row = x.plan.groups[0].layers[1].attention[0];
              --row[0].sequences, ++row[1].sequences;
            }),
            3);
  EXPECT_EQ(listed([](RandomCase& x) {  // listed without a sequence is not the same as absent
              ShareRow& row = x.plan.groups[0].layers[1].attention[0];
              row[0].sequences = 0;
              row[1].sequences = 2;
              row[2].sequences = 2;
              row.pop_back();
            }),
            3);
}

TEST(FoldedStep, FoldsNothingWhenTheRoutingDiffersByDevice) {
  const RandomCase c = hand_made({4}, {{0, 1, 2, 3}}, {{0}, {1}, {2}, {3}});
  const RooflineCost cost(c.model, c.cluster, c.plan);
  EXPECT_EQ(compare(c, cost, ExpectedRouting(c.model, zipf_popularity(4, 1))).num_listed, 4);
}

TEST(FoldedStep, ExplicitOrdersAreNotFolded) {
  RandomCase c = hand_made({4}, {{0, 1, 2, 3}}, {{0}, {1}, {2}, {3}});
  c.plan.explicit_order = to_text(build_schedule(c.plan, c.model, c.options));
  c.plan.order = OrderPolicy::kExplicit;
  EXPECT_EQ(compare(c).num_listed, 4);
}

TEST(FoldedStep, GroupsOnNodesOfTheirOwnFold) {
  const Compared compared = compare(hand_made({2, 2, 2}, {{0, 1}, {2, 3}, {4, 5}}, {{0}, {1}}));
  EXPECT_EQ(compared.num_listed, 1);
  EXPECT_EQ(compared.num_groups_folded, 2);
}

/// Group 0 has two devices on node 0 and one on node 1, group 1 the reverse: a transfer of either loads each
/// port with another amount, and each port carries both.
TEST(FoldedStep, PortsCarryTheLoadOfEveryGroup) {
  const Compared compared = compare(hand_made({3, 3}, {{0, 1, 3}, {4, 5, 2}}, {{0}, {1}, {2}, {2}}));
  EXPECT_EQ(compared.num_groups_folded, 1);
  EXPECT_EQ(compared.num_listed, 2);
}

/// Two groups share a node, the third has one of its own.
TEST(FoldedStep, GroupsThatShareTheirPortsUnevenlyAreNotFolded) {
  const Compared compared = compare(hand_made({2, 1, 1, 2}, {{0, 2}, {1, 3}, {4, 5}}, {{0}, {1}}));
  EXPECT_EQ(compared.num_groups_folded, 0);
}

/// Two nodes of four devices and four ports, each device with a half of a layer's experts on either node.
RandomCase with_nics(const std::vector<i64>& nics) {
  RandomCase c = hand_made({4, 4}, {{0, 1, 2, 3, 4, 5, 6, 7}}, {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}});
  for (Node& node : c.cluster.nodes) node.nics = 4;
  c.plan.nics = nics;
  return c;
}

TEST(FoldedStep, DevicesWithEqualNicsFold) {
  const Compared all = compare(with_nics({})), each = compare(with_nics({1, 1, 1, 1, 1, 1, 1, 1})),
                 some = compare(with_nics({2, 1, 0, 0, 2, 1, 0, 0})),
                 few = compare(with_nics({0, 2, 1, 0, 0, 2, 1, 0}));
  EXPECT_EQ(each.num_listed, all.num_listed);
  EXPECT_EQ(few.num_listed, 3) << "with 2, with 1, with none";
  // As much goes through each port as through all of them together: equal bytes, a part of the rate each.
  EXPECT_NEAR(each.step, all.step, 1e-12 * all.step);
  EXPECT_GT(some.step, all.step) << "two devices share one port, and another has two";
}

TEST(FoldedStep, GroupsWithOtherSharesAreNotFolded) {
  RandomCase c = hand_made({2, 2}, {{0, 1}, {2, 3}}, {{0}, {1}});
  Group& group = c.plan.groups[1];
  group.embed[0][0].sequences = 2;
  group.head = group.embed;
  for (LayerPlacement& layer : group.layers) layer.attention = group.embed;
  group.microbatches = {3};
  EXPECT_EQ(compare(c).num_groups_folded, 0);
}

/// Gradients of an expert are summed by one device of each group: of two kinds, and as many of each kind.
TEST(FoldedStep, GroupsOfTwoKindsFold) {
  RandomCase c = hand_made({2, 2, 2, 2, 2}, {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}}, {{0}, {1}, {0}, {1}});
  for (const std::size_t g : {3U, 4U}) {
    Group& group = c.plan.groups[g];
    for (Share& share : group.embed[0]) share.sequences = 2;
    group.head = group.embed;
    for (LayerPlacement& layer : group.layers) layer.attention = group.embed;
    group.microbatches = {4};
  }
  const Compared compared = compare(c);
  EXPECT_EQ(compared.num_groups_folded, 3);
  EXPECT_EQ(compared.num_listed, 2);
}

/// Transfers that load no port tell nothing about who may be folded.
struct LatencyCost : CostModel {
  Seconds compute(const ComputeWork&) const override { return 1; }
  TransferCost transfer(const TransferWork&) const override { return {1, {}}; }
};

/// The reduces of a ring of replicas wait for each other around the ring.
TEST(FoldedStep, ReplicasInARingAreNotFolded) {
  const std::vector<std::vector<std::size_t>> ring = {{0, 1}, {1, 2}, {2, 0}}, pairs = {{0, 1}, {2, 3}};
  EXPECT_EQ(compare(hand_made({3}, {{0, 1, 2}}, ring)).num_listed, 3);
  const RandomCase two_rings = hand_made({3, 3}, {{0, 1, 2}, {3, 4, 5}}, ring);
  EXPECT_EQ(compare(two_rings).num_groups_folded, 0);
  EXPECT_EQ(compare(two_rings, LatencyCost{}, ExpectedRouting(two_rings.model)).num_groups_folded, 0);
  EXPECT_EQ(compare(hand_made({4, 4}, {{0, 1, 2, 3}, {4, 5, 6, 7}}, pairs)).num_groups_folded, 1);
}

TEST(FoldedStep, GivesTheTimesOfTheFullSchedule) {
  i64 num_folded = 0, num_with_groups = 0, num_not = 0, num_teams = 0, num_teams_folded = 0, num_by_node = 0;
  for (unsigned seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    SymmetricPlans random(seed);
    RandomCase c = random.make();
    if (random.chance(0.5)) c.plan.row_nodes = nodes_of_devices(c.cluster);
    if (!row_node_faults(c.plan, c.cluster).empty()) c.plan.row_nodes.clear();
    const bool by_node = !c.plan.row_nodes.empty() && may_pass_rows_on(c.plan, c.cluster);
    ASSERT_EQ(validate(c.plan, c.model, c.cluster), std::vector<std::string>{});
    const RooflineCost cost(c.model, c.cluster, c.plan);
    const bool even = random.chance(0.8);
    const ExpectedRouting routing(c.model,
                                  even ? std::vector<double>{} : zipf_popularity(c.model.num_experts, 1));
    const Compared compared = compare(c, cost, routing);
    if (HasFailure()) return;
    num_folded += compared.num_listed < compared.num_devices;
    num_by_node += by_node && compared.num_listed < compared.num_devices ? 1 : 0;
    num_with_groups += compared.num_groups_folded > 0;
    num_not += compared.num_listed == compared.num_devices;
    num_teams += has_teams(c.plan) ? 1 : 0;
    num_teams_folded += has_teams(c.plan) && compared.num_listed < compared.num_devices ? 1 : 0;
  }
  EXPECT_GT(num_folded, 200);
  EXPECT_GT(num_by_node, 30);
  EXPECT_GT(num_with_groups, 50);
  EXPECT_GT(num_not, 10);
  EXPECT_GT(num_teams, 100);
  EXPECT_GT(num_teams_folded, 50);
}

TEST(FoldedStep, GivesTheTimesOfTheFullScheduleForPlansOfEveryKind) {
  i64 num_folded = 0;
  for (unsigned seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomPlans random(seed);
    const RandomCase c = random.make();
    test::PortCost cost(c.cluster);
    cost.slowdown = random.chance(0.3) ? 0.3 : 0;
    const Compared compared = compare(c, cost, ExpectedRouting(c.model));
    if (HasFailure()) return;
    num_folded += compared.num_listed < compared.num_devices;
  }
  EXPECT_GT(num_folded, 20);
}

}  // namespace
}  // namespace hetermoe
