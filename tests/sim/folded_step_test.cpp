#include <gtest/gtest.h>

#include <map>

#include "hetermoe/cost/roofline.h"
#include "hetermoe/schedule/builder.h"
#include "hetermoe/sim/folded_step.h"
#include "tests/property/random_plans.h"

// A folded step must give every op the times that it has when all devices are listed.
namespace hetermoe {
namespace {

using test::RandomCase, test::RandomPlans;

/// What an op is to a device: equal for counterparts of different groups. An update is named by its place
/// among the updates of its device.
struct Role {
  OpKind kind;
  Phase phase;
  i32 layer, place, chunk;  ///< place: microbatch
  DeviceId device;
  auto operator<=>(const Role&) const = default;
};

/// [role] the op. Reduces are left out: those of counterparts differ in their state.
std::map<Role, OpId> ops_by_role(const Schedule& schedule) {
  std::map<Role, OpId> ops;
  std::map<DeviceId, i32> updates;
  for (OpId id = 0; id < schedule.num_ops(); ++id) {
    const Op& op = schedule.ops[static_cast<std::size_t>(id)];
    if (op.kind == OpKind::kReduce) continue;
    for (const LaneId lane : schedule.lanes_of(id)) {
      const DeviceId device = device_of(lane);
      const i32 place = op.kind == OpKind::kUpdate ? updates[device]++ : op.microbatch;
      ops[{op.kind, op.phase, op.layer, place, op.chunk, device}] = id;
    }
  }
  return ops;
}

struct Compared {
  i64 num_devices = 0, num_listed = 0, num_groups_folded = 0;
  Seconds step = 0;
};

/// Asserts that both give the same.
Compared compare(const RandomCase& c, const CostModel& cost, const RoutingLoad& routing) {
  const Schedule all = build_schedule(c.plan, c.model, c.options);
  const Placement placement(c.plan, c.model, c.options);
  Simulator simulator, folded_simulator;
  const OpTimes& times = simulator.run(all, price(all, placement, c.model, c.cluster, cost, routing));
  const FoldedStep folded = make_folded_step(c.plan, c.model, c.cluster, cost, routing, c.options);
  const OpTimes& folded_times = folded_simulator.run(folded.schedule, folded.costs);
  const Seconds tolerance = 1e-9 * times.step;
  EXPECT_NEAR(folded_times.step, times.step, tolerance);
  const Timeline timeline = listed_timeline(folded, folded_times, c.cluster);
  EXPECT_EQ(timeline.spans.size(), folded.schedule.lanes.size());
  EXPECT_LE(static_cast<i64>(timeline.devices.size()), folded.fold.num_listed());
  EXPECT_EQ(timeline.spans.back().device + 1, static_cast<DeviceId>(timeline.devices.size()));
  const std::map<Role, OpId> listed = ops_by_role(folded.schedule);
  for (const auto& [role, id] : ops_by_role(all)) {
    Role representative = role;
    representative.device = folded.fold.device[static_cast<std::size_t>(role.device)];
    const auto found = listed.find(representative);
    if (found == listed.end()) {
      ADD_FAILURE() << to_string(all.ops[static_cast<std::size_t>(id)]) << " has no counterpart";
      break;
    }
    const auto a = static_cast<std::size_t>(id), b = static_cast<std::size_t>(found->second);
    EXPECT_NEAR(folded_times.start[b], times.start[a], tolerance) << to_string(all.ops[a]);
    EXPECT_NEAR(folded_times.end[b], times.end[a], tolerance) << to_string(all.ops[a]);
    if (::testing::Test::HasFailure()) break;
  }
  std::vector<Seconds> busy(c.cluster.devices.size(), 0);
  for (OpId op = 0; op < all.num_ops(); ++op) {
    const auto i = static_cast<std::size_t>(op);
    if (is_compute(all.ops[i].kind))
      busy[static_cast<std::size_t>(device_of(all.lanes_of(op)[0]))] += times.end[i] - times.start[i];
  }
  const std::vector<Seconds> folded_busy = folded.busy_seconds(folded_times);
  for (std::size_t d = 0; d < busy.size(); ++d) EXPECT_NEAR(folded_busy[d], busy[d], tolerance);
  Compared out{c.cluster.num_devices(), folded.fold.num_listed(), 0, times.step};
  for (std::size_t g = 0; g < folded.fold.group.size(); ++g)
    out.num_groups_folded += folded.fold.group[g] != static_cast<i32>(g);
  return out;
}

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

  std::mt19937 random_;
  i64 num_groups_ = 1;
  i64 of_type_[kTypes] = {};
};

/// Groups of the given devices; expert e of a layer belongs to devices[owner(e)].
RandomCase hand_made(const std::vector<i32>& node_sizes, const std::vector<std::vector<DeviceId>>& groups,
                     const std::vector<std::vector<std::size_t>>& owners, i64 sequences_each = 1) {
  RandomCase c;
  test::ModelShape shape;
  shape.num_experts = static_cast<i64>(owners.size());
  shape.top_k = 1;
  shape.hidden = 64;
  c.model = test::make_model(shape);
  c.cluster = test::make_cluster(node_sizes);
  c.plan.model = c.model.name;
  c.plan.seq_len = 32;
  c.plan.dtype.assign(c.cluster.devices.size(), Dtype::kFp16);
  for (const std::vector<DeviceId>& devices : groups) {
    Group group;
    group.devices = devices;
    ShareRow row;
    for (const DeviceId d : devices) row.push_back({d, sequences_each});
    group.microbatches = {sequences_each * static_cast<i64>(devices.size())};
    group.embed = group.head = {row};
    LayerPlacement layer{{row}, {}};
    for (const std::vector<std::size_t>& of_expert : owners) {
      layer.experts.emplace_back();
      for (const std::size_t o : of_expert)
        layer.experts.back().push_back({devices[o], 1.0 / static_cast<double>(of_expert.size())});
    }
    group.layers.assign(static_cast<std::size_t>(c.model.num_layers), layer);
    c.plan.groups.push_back(std::move(group));
  }
  return c;
}

Compared compare(const RandomCase& c) {
  return compare(c, RooflineCost(c.model, c.cluster, c.plan), ExpectedRouting(c.model));
}

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
  i64 num_folded = 0, num_with_groups = 0, num_not = 0;
  for (unsigned seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    SymmetricPlans random(seed);
    const RandomCase c = random.make();
    ASSERT_EQ(validate(c.plan, c.model, c.cluster), std::vector<std::string>{});
    const RooflineCost cost(c.model, c.cluster, c.plan);
    const bool even = random.chance(0.8);
    const ExpectedRouting routing(c.model,
                                  even ? std::vector<double>{} : zipf_popularity(c.model.num_experts, 1));
    const Compared compared = compare(c, cost, routing);
    if (HasFailure()) return;
    num_folded += compared.num_listed < compared.num_devices;
    num_with_groups += compared.num_groups_folded > 0;
    num_not += compared.num_listed == compared.num_devices;
  }
  EXPECT_GT(num_folded, 200);
  EXPECT_GT(num_with_groups, 50);
  EXPECT_GT(num_not, 10);
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
