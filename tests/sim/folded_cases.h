#pragma once
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "hetermoe/cost/roofline.h"
#include "hetermoe/schedule/builder.h"
#include "hetermoe/sim/folded_step.h"
#include "tests/property/random_plans.h"

namespace hetermoe::test {

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
inline std::map<Role, OpId> ops_by_role(const Schedule& schedule) {
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
inline Compared compare(const RandomCase& c, const CostModel& cost, const RoutingLoad& routing) {
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

/// Groups of the given devices; expert e of a layer belongs to devices[owner(e)].
inline RandomCase hand_made(const std::vector<i32>& node_sizes,
                            const std::vector<std::vector<DeviceId>>& groups,
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

inline Compared compare(const RandomCase& c) {
  return compare(c, RooflineCost(c.model, c.cluster, c.plan), ExpectedRouting(c.model));
}

}  // namespace hetermoe::test
