#include "hetermoe/planner/strategies/allocation.h"

#include <gtest/gtest.h>

#include <random>

#include "hetermoe/cost/measured.h"
#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

using DeviceTimes = AllocationInput::Device;

AllocationInput equal_devices(std::size_t devices, i64 nics, Seconds attention, Seconds experts,
                              Seconds transfer) {
  return {
      .devices = std::vector<DeviceTimes>(devices, {attention, experts}), .transfer = transfer, .nics = nics};
}

TEST(Allocation, OfEqualDevicesIsThatOfThePaper) {
  struct Case {
    std::size_t devices;
    i64 nics;
    Seconds attention, experts, transfer;
    i64 of_attention, of_experts, attention_nics, expert_nics;
    Seconds attention_s, experts_s;
  };
  for (const Case& c : {Case{8, 8, 24, 8, 1, 6, 2, 4, 4, 4, 4}, Case{8, 8, 8, 24, 1, 2, 6, 4, 4, 4, 4},
                        Case{8, 8, 24, 8, 24, 6, 2, 4, 4, 6, 6},  // the network binds
                        Case{12, 12, 20, 30, 3, 5, 7, 6, 6, 4, 30.0 / 7},
                        Case{8, 4, 24, 8, 4, 6, 2, 2, 2, 4, 4}, Case{10, 10, 20, 20, 40, 5, 5, 5, 5, 8, 8}}) {
    const Allocation got = allocate(equal_devices(c.devices, c.nics, c.attention, c.experts, c.transfer));
    const auto name = testing::Message() << c.devices << " devices, " << c.attention << " " << c.transfer;
    EXPECT_EQ(got.attention, c.of_attention) << name;
    EXPECT_EQ(got.experts, c.of_experts) << name;
    EXPECT_EQ(got.attention_nics, c.attention_nics) << name;
    EXPECT_EQ(got.expert_nics, c.expert_nics) << name;
    EXPECT_DOUBLE_EQ(got.attention_s, c.attention_s) << name;
    EXPECT_DOUBLE_EQ(got.experts_s, c.experts_s) << name;
  }
}

/// The least time over all sets of devices with attention and all divisions of the ports.
Seconds least_of_all_sets(const AllocationInput& input) {
  Seconds least = std::numeric_limits<Seconds>::infinity();
  for (std::size_t set = 1; set + 1 < std::size_t{1} << input.devices.size(); ++set) {
    double attention = 0, experts = 0;
    for (std::size_t d = 0; d < input.devices.size(); ++d)
      (set >> d & 1 ? attention : experts) +=
          1 / (set >> d & 1 ? input.devices[d].attention : input.devices[d].experts);
    for (i64 nics = 1; nics < input.nics; ++nics)
      least = std::min(least, std::max({1 / attention, 1 / experts, input.transfer / real(nics),
                                        input.transfer / real(input.nics - nics)}));
  }
  return least;
}

AllocationInput random_input(std::mt19937& random, std::size_t types) {
  const auto number = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  std::vector<DeviceTimes> of_type;
  for (std::size_t t = 0; t < types; ++t) of_type.push_back({real(number(1, 30)), real(number(1, 30))});
  AllocationInput input{.devices = {}, .transfer = real(number(0, 12)), .nics = number(2, 6)};
  for (int d = number(2, 8); d > 0; --d)
    input.devices.push_back(of_type[static_cast<std::size_t>(number(0, static_cast<int>(types) - 1))]);
  return input;
}

TEST(Allocation, OfEqualDevicesIsTheBestOfAllSets) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const AllocationInput input = random_input(random, 1);
    EXPECT_NEAR(allocate(input).seconds(), least_of_all_sets(input), 1e-9) << "instance " << i;
  }
}

/// Sets by advantage are prefixes of one order, which of a few very unequal devices is not always the best.
TEST(Allocation, OfUnequalDevicesIsNearTheBestOfAllSets) {
  std::mt19937 random(2);
  double sum = 0, worst = 1;
  constexpr int kInstances = 300;
  for (int i = 0; i < kInstances; ++i) {
    const AllocationInput input = random_input(random, 3);
    const double ratio = allocate(input).seconds() / least_of_all_sets(input);
    EXPECT_GE(ratio, 1 - 1e-9) << "instance " << i;
    sum += ratio, worst = std::max(worst, ratio);
  }
  EXPECT_LE(sum / kInstances, 1.02);
  EXPECT_LE(worst, 1.9);
}

TEST(Allocation, TakesDevicesByTheirAdvantage) {
  const std::vector<DeviceTimes> devices = {{4, 4}, {2, 6}, {4, 4}, {3, 1}};
  EXPECT_EQ(by_advantage(devices), (std::vector<std::size_t>{1, 0, 2, 3}));
  const AllocatedRoles split = roles_of(AllocationInput{.devices = devices}, 3);
  EXPECT_EQ(split.roles.attention, (std::vector<DeviceId>{0, 1, 2})) << "in the order of the cluster";
  EXPECT_EQ(split.roles.experts, (std::vector<DeviceId>{3}));
  EXPECT_EQ(split.attention_weights, (std::vector<double>{0.25, 0.5, 0.25}));
  EXPECT_TRUE(split.expert_weights.empty());
}

TEST(Allocation, KeepsToItsLimits) {
  AllocationInput input = equal_devices(8, 8, 24, 8, 1);
  EXPECT_EQ(near_allocation(input), (std::vector<i64>{6, 5, 7, 4})) << "the ninth device is not there";
  input.least_experts = 3;
  EXPECT_EQ(near_allocation(input), (std::vector<i64>{5, 4, 3}));
  input.most_attention = 4;
  EXPECT_EQ(allocate(input).attention, 4);
}

TEST(Allocation, AsksTheCostModel) {
  const ModelConfig model = test::make_model({.num_layers = 2, .num_experts = 4});
  Cluster cluster = test::make_cluster({2, 2});
  cluster.devices[3].speed = 2;
  for (Node& node : cluster.nodes) node.nics = 3;
  Plan plan;
  plan.seq_len = 64;
  plan.dtype.assign(4, Dtype::kFp16);
  const auto cost = make_cost(model, cluster, plan, {});
  const AllocationInput one = allocation_input(model, cluster, *cost, plan, 1),
                        two = allocation_input(model, cluster, *cost, plan, 2);
  EXPECT_EQ(one.nics, 6);
  EXPECT_DOUBLE_EQ(two.transfer, 2 * one.transfer);
  EXPECT_GT(one.transfer, 0);
  EXPECT_EQ(one.devices[0].attention, one.devices[2].attention);
  EXPECT_LT(one.devices[3].attention, one.devices[0].attention);
  EXPECT_LT(one.devices[3].experts, one.devices[0].experts);
}

/// T_a and T_f of a plan that stands: of its own devices, with the best division of shared ports.
TEST(Allocation, OfAPlanIsThatOfItsDevices) {
  const ModelConfig model = load_model("d1");
  const Cluster cluster = load_cluster("o1");
  StrategyRequest request;
  request.seq_len = 4096, request.sequences = 24, request.microbatches = 4, request.dtype = Dtype::kFp16;
  request.depth_groups = {2};
  Plan plan = find_strategy("af-pipe").make(model, cluster, request);
  plan.dtype.assign(cluster.devices.size(), Dtype::kFp16);
  plan.wire_forward = plan.wire_backward = Wire::kFp16;
  const std::unique_ptr<CostModel> cost = make_cost(model, cluster, plan, {});
  const std::optional<Allocation> got = allocation_of_plan(plan, model, cluster, *cost);
  ASSERT_TRUE(got);
  const AllocationInput input = allocation_input(model, cluster, *cost, plan, 6);
  EXPECT_EQ(got->attention, 6);
  EXPECT_EQ(got->experts, 6);
  // Six A40 and six V100; the ports are divided so that the slower role is fastest.
  Seconds least = 1e9;
  for (i64 nics = 1; nics < input.nics; ++nics)
    least =
        std::min(least, std::max({input.devices[0].attention / 6, input.devices[11].experts / 6,
                                  input.transfer / real(nics), input.transfer / real(input.nics - nics)}));
  EXPECT_DOUBLE_EQ(got->seconds(), least);
  EXPECT_EQ(got->attention_travels, got->attention_s > input.devices[0].attention / 6 * (1 + 1e-9));
  EXPECT_FALSE(allocation_of_plan(find_strategy("ep").make(model, cluster, request), model, cluster, *cost));
}

TEST(Allocation, IsTheDefaultOfDepthGroupsOnEqualDevices) {
  // Wide experts, so that they need more than half of the devices.
  ModelConfig model = test::make_model({.num_layers = 2, .num_experts = 4});
  model.expert_hidden *= 64;
  const Cluster cluster = test::make_cluster({4, 4});
  StrategyRequest request;
  request.seq_len = 64, request.sequences = 16, request.microbatches = 2;
  const Roles roles = allocated_roles(model, cluster, request);
  EXPECT_EQ(roles.attention, (std::vector<DeviceId>{0, 1}));
  EXPECT_EQ(roles.experts.size(), 6U);
  const Plan plan = find_strategy("af-pipe").make(model, cluster, request);
  EXPECT_EQ(plan.groups[0].layers[0].attention[0].size() + plan.groups[0].layers[1].attention[0].size(), 2U);
  request.stage_attention = {2, 2}, request.stage_experts = {2, 2};
  EXPECT_EQ(allocated_roles(model, cluster, request).attention.size(), 4U) << "as the lists say";
}

}  // namespace
}  // namespace hetermoe
