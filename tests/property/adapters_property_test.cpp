#include <gtest/gtest.h>

#include <map>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/price.h"
#include "hetermoe/ops/buffer_sizes.h"
#include "hetermoe/ops/two_level.h"
#include "hetermoe/schedule/builder.h"
#include "tests/support/random_plan.h"

// What travels of a model whose adapters are trained while its frozen weights are on hosts.
namespace hetermoe::testing {
namespace {

std::vector<PlaceId> places_of_op(const Schedule& schedule, OpId op) {
  std::vector<PlaceId> places;
  for (const LaneId lane : schedule.lanes_of(op)) places.push_back(device_of(lane));
  return places;
}

/// Of the matrices of a state, and of its router's bias, which visits with them.
i64 matrix_numbers(const ModelConfig& model, const State& state) {
  i32 layer = state.layer;
  if (state.part == UnitPart::kHead) layer = static_cast<i32>(model.num_layers);
  if (!state.experts.empty())
    return static_cast<i64>(state.experts.size()) *
           num_parameters(model, {layer, state.part, state.experts[0]});
  const bool bias = state.part == UnitPart::kAttention && model.is_moe(layer) && model.router_bias;
  return num_parameters(model, {layer, state.part, -1}) + (bias ? model.num_experts : 0);
}

i64 adapter_numbers(const Lora& lora, const State& state) {
  if (state.experts.empty()) return lora.numbers_of({state.layer, state.part, -1});
  return static_cast<i64>(state.experts.size()) *
         lora.numbers_of({state.layer, state.part, state.experts[0]});
}

/// Frozen weights go to the devices, a whole state for each visit. Of gradients those of adapters alone
/// travel, and between devices.
TEST(AdaptersOnHosts, BytesOfEachQueueAreThoseOfTheClosedForm) {
  i64 fetches = 0, sums = 0;
  for (u64 seed = 0; seed < 200; ++seed) {
    RandomCase c = random_case(seed);
    adapt_on_hosts(c);
    const Placement placement(c.plan, c.model, c.step);
    const Schedule schedule = build_schedule(placement);
    ASSERT_EQ(validate(schedule, c.plan, c.model, c.step), std::vector<std::string>{}) << describe(c);
    const WorkModel work(placement, c.model, c.cluster);
    std::map<Queue, double> carried, expected;
    for (OpId id = 0; id < schedule.num_ops(); ++id) {
      const Op& op = schedule.ops[idx(id)];
      if (op.state < 0 || is_compute(op.kind)) continue;
      const State& state = schedule.states[idx(op.state)];
      const std::vector<PlaceId> places = places_of_op(schedule, id);
      const bool whole = op.kind == OpKind::kReduce && !pays_two_levels(c.cluster, state.reducers());
      if (op.kind != OpKind::kFetch && op.kind != OpKind::kStore && !whole) continue;
      const Queue queue = queue_of(schedule.lanes_of(id)[0]);
      for (const PortBytes& port : work.port_bytes(op, places, nullptr))
        carried[queue] += port.host_in + port.net_out + port.local_out;
      if (op.kind == OpKind::kFetch) {
        expected[queue] += 8.0 * real(matrix_numbers(c.model, state));
        ++fetches;
      } else {
        EXPECT_EQ(op.kind, OpKind::kReduce) << describe(c) << to_string(op);  // nothing is stored
        expected[queue] += 8.0 * 2 * real(places.size() - 1) * real(adapter_numbers(*c.step.lora, state));
        ++sums;
      }
      for (const PlaceId place : places)
        EXPECT_TRUE(op.kind == OpKind::kFetch || place < placement.num_devices()) << describe(c);
    }
    for (const auto& [queue, bytes] : expected)
      EXPECT_NEAR(carried[queue], bytes, 1e-6 * bytes) << describe(c);
  }
  EXPECT_GT(fetches, 1000);
  EXPECT_GT(sums, 100);
}

/// Each place updates what it trains: devices their adapters, hosts nothing.
TEST(AdaptersOnHosts, HostsUpdateNothing) {
  for (u64 seed = 0; seed < 200; ++seed) {
    RandomCase c = random_case(seed);
    adapt_on_hosts(c);
    const Placement placement(c.plan, c.model, c.step);
    const Schedule schedule = build_schedule(placement);
    const ExpectedRouting routing(c.model);
    BufferSizes sizes(placement, c.model, c.cluster, routing);
    for (OpId id = 0; id < schedule.num_ops(); ++id) {
      if (schedule.ops[idx(id)].kind == OpKind::kUpdate) {
        EXPECT_LT(places_of_op(schedule, id)[0], placement.num_devices()) << describe(c);
      }
    }
    for (const PlaceId host : hosts_of(schedule)) {
      const MemoryUse use = sizes.state(host);
      double numbers = 0;
      for (const i32 state : placement.states().on(host))
        numbers += real(matrix_numbers(c.model, schedule.states[idx(state)]));
      EXPECT_EQ(use.gradients + use.optimizer, 0) << describe(c);
      EXPECT_EQ(use.weights, 8 * numbers) << describe(c);
    }
  }
}

}  // namespace
}  // namespace hetermoe::testing
