#include "hetermoe/sim/migration_memory.h"

#include <gtest/gtest.h>

#include "hetermoe/model/lora.h"
#include "hetermoe/model/op_cost.h"
#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

/// Two layers with four experts each on two devices; embedding, attention and head on device 0.
struct MemoryCase {
  ModelConfig model = test::make_model({.num_layers = 2, .num_experts = 4});
  Cluster cluster = test::make_cluster({2});
  double expert = real_of({.layer = 0, .part = UnitPart::kExperts, .expert = 0});
  double rest = real_of({}) + 2 * real_of({.layer = 0, .part = UnitPart::kAttention}) +
                real_of({.layer = 2, .part = UnitPart::kHead});

  /// fp32: value, gradient and two moments.
  double real_of(const Unit& unit) const { return 16 * static_cast<double>(num_parameters(model, unit)); }

  /// owners: [layer][expert].
  Plan plan(const std::vector<std::vector<DeviceId>>& owners) const {
    Plan plan = test::make_zebra_plan(model, cluster, {});
    for (std::size_t l = 0; l < 2; ++l) {
      for (std::size_t e = 0; e < 4; ++e) plan.groups[0].layers[l].experts[e] = {{owners[l][e], 1}};
    }
    return plan;
  }
  std::vector<Bytes> memory(const Plan& before, const Plan& after) const {
    return migration_memory(before, after, model, cluster);
  }
};

TEST(MigrationMemory, WithoutAChangeIsWhatThePlanHolds) {
  const MemoryCase c;
  const Plan plan = c.plan({{1, 1, 1, 1}, {1, 1, 1, 1}});
  EXPECT_EQ(c.memory(plan, plan), (std::vector<Bytes>{c.rest, 8 * c.expert}));
}

TEST(MigrationMemory, HoldsTheNewStoragesOfOneLayerBesideTheOldOnes) {
  const MemoryCase c;
  // One expert of each layer goes from 1 to 0: 12 of its 16 bytes a parameter arrive.
  const Plan before = c.plan({{1, 1, 1, 1}, {1, 1, 1, 1}}), after = c.plan({{0, 1, 1, 1}, {0, 1, 1, 1}});
  const std::vector<Bytes> got = c.memory(before, after);
  EXPECT_DOUBLE_EQ(got[0], c.rest + 2 * c.expert + 0.75 * c.expert);
  EXPECT_DOUBLE_EQ(got[1], 8 * c.expert + 3 * c.expert);
}

TEST(MigrationMemory, ALayerThatStaysOnADeviceCostsNothing) {
  const MemoryCase c;
  const Plan before = c.plan({{1, 1, 1, 1}, {0, 1, 1, 1}}), after = c.plan({{1, 1, 1, 1}, {1, 1, 1, 1}});
  const std::vector<Bytes> got = c.memory(before, after);
  EXPECT_DOUBLE_EQ(got[1], 7 * c.expert + 4 * c.expert + 0.75 * c.expert);
}

TEST(MigrationMemory, FrozenMatricesOnHostsTakeNothingOfADevice) {
  const MemoryCase c;
  Plan plan = c.plan({{1, 1, 1, 1}, {1, 1, 1, 1}});
  for (LayerPlacement& layer : plan.groups[0].layers)
    layer.experts_home = Home{.weights = Residence::kHost, .optimizer = Residence::kHost};
  std::vector<std::string> targets;
  for (const ParamInfo& parameter : parameters(c.model))
    if (parameter.expert >= 0 && can_have_adapter(parameter)) targets.push_back(parameter.name);
  MoveOptions options;
  const auto lora = std::make_shared<const Lora>(make_lora(c.model, 2, 2, targets));
  options.lora = lora;
  double adapters = 0;
  for (i32 l = 0; l < 2; ++l)
    for (i32 e = 0; e < 4; ++e)
      adapters += 16 * static_cast<double>(lora->numbers_of({l, UnitPart::kExperts, e}));
  ASSERT_GT(adapters, 0);
  EXPECT_DOUBLE_EQ(migration_memory(plan, plan, c.model, c.cluster, options)[1], adapters);
}

}  // namespace
}  // namespace hetermoe
