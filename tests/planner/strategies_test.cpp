#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/planner/strategies/depth_groups.h"

#include <gtest/gtest.h>

#include "tests/schedule/plans.h"
#include "tests/support/error_of.h"
#include "tests/support/page_block.h"

namespace hetermoe {
namespace {

using test::make_cluster, test::make_model, test::no_faults;

TEST(MakeShareRows, OneRowWhenMicrobatchesAreEqual) {
  EXPECT_EQ(make_share_rows({4, 7}, {2, 2}, {}).size(), 1u);
  const Shares shares = make_share_rows({4, 7}, {3, 2}, {});
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0], (ShareRow{{4, 2}, {7, 1}}));
  EXPECT_EQ(shares[1], (ShareRow{{4, 1}, {7, 1}}));
}

TEST(DefaultRoles, TheFastestTypeComputesAttention) {
  const Roles mixed = default_roles(make_cluster({4}, 2));  // type 1 is faster
  EXPECT_EQ(mixed.attention, (std::vector<DeviceId>{1, 3}));
  EXPECT_EQ(mixed.experts, (std::vector<DeviceId>{0, 2}));
  const Roles equal = default_roles(make_cluster({5}));
  EXPECT_EQ(equal.attention, (std::vector<DeviceId>{0, 1, 2}));
  EXPECT_EQ(equal.experts, (std::vector<DeviceId>{3, 4}));
  EXPECT_TRUE(default_roles(make_cluster({1})).experts.empty());
}

StrategyRequest step_request(i64 sequences, i64 microbatches) {
  StrategyRequest r;
  r.seq_len = 8;
  r.sequences = sequences;
  r.microbatches = microbatches;
  return r;
}

i64 num_owned(const Plan& plan, std::size_t layer, DeviceId device) {
  i64 count = 0;
  for (const auto& owners : plan.groups[0].layers[layer].experts) {
    for (const ExpertOwner& owner : owners) count += owner.device == device ? 1 : 0;
  }
  return count;
}

TEST(Strategies, EveryOneGivesAValidPlanOnEverySize) {
  for (i32 devices = 1; devices <= 8; ++devices) {
    const Cluster cluster = make_cluster({devices}, 2);
    const ModelConfig model = make_model({.num_layers = 3, .num_experts = 5, .dense = {0}});
    for (const Strategy& strategy : strategies()) {
      if (strategy.use == DeviceUse::kApart && devices == 1) continue;
      const Plan plan = strategy.make(model, cluster, step_request(7, 3));
      EXPECT_EQ(plan.strategy, strategy.name);
      EXPECT_EQ(total_sequences(plan), 7);
      EXPECT_TRUE(no_faults(validate(plan, model, cluster))) << strategy.name << " on " << devices;
      EXPECT_TRUE(no_faults(validate(build_schedule(plan, model), plan, model)))
          << strategy.name << " on " << devices;
    }
  }
}

TEST(Strategies, ZebraKeepsRolesApartUnlessExpertsMove) {
  const ModelConfig model = make_model({.num_layers = 2, .num_experts = 8});
  const Cluster cluster = make_cluster({4}, 2);
  StrategyRequest r = step_request(8, 4);
  EXPECT_EQ(find_strategy("zebra").make(model, cluster, r).window, 0);
  r.experts_moved = {0, 3};
  const Plan plan = find_strategy("zebra").make(model, cluster, r);
  EXPECT_EQ(num_owned(plan, 0, 0), 4);
  EXPECT_EQ(num_owned(plan, 0, 1), 0);
  EXPECT_EQ(num_owned(plan, 1, 0), 1);  // each expert device gives up three, in turn to 1 and 3
  EXPECT_EQ(num_owned(plan, 1, 1), 3);
  EXPECT_EQ(num_owned(plan, 1, 3), 3);
  EXPECT_EQ(num_owned(plan, 1, 2), 1);
}

TEST(Strategies, SharesFollowTheWeights) {
  const ModelConfig model = make_model({.num_layers = 1, .num_experts = 6});
  StrategyRequest r = step_request(8, 2);
  r.attention = {0, 1};
  r.experts = {2, 3};
  r.attention_weights = {3, 1};
  r.expert_weights = {1, 2};
  const Plan plan = find_strategy("zebra").make(model, make_cluster({4}), r);
  EXPECT_EQ(plan.groups[0].head, (Shares{{{0, 3}, {1, 1}}}));
  EXPECT_EQ(num_owned(plan, 0, 2), 2);
  EXPECT_EQ(num_owned(plan, 0, 3), 4);
}

TEST(Strategies, ABalancerMayPlaceExpertsByTheirLoad) {
  const ModelConfig model = make_model({.num_layers = 2, .num_experts = 4, .dense = {0}});
  StrategyRequest r = step_request(8, 2);
  r.balancer = "lpt";
  r.expert_load = {{}, {3, 0.4, 0.3, 0.3}};
  const Plan plan = find_strategy("zebra").make(model, make_cluster({4}), r);
  EXPECT_EQ(plan.groups[0].layers[1].experts[0], (ExpertOwners{{2, 1}}));
  EXPECT_EQ(num_owned(plan, 1, 2), 1);
  EXPECT_EQ(num_owned(plan, 1, 3), 3);
}

TEST(Strategies, WindowsTellThemApart) {
  const ModelConfig model = make_model({});
  const Cluster cluster = make_cluster({4}, 2);
  EXPECT_EQ(find_strategy("ep").make(model, cluster, step_request(4, 4)).window, 1);
  EXPECT_EQ(find_strategy("ep-overlap").make(model, cluster, step_request(4, 4)).window, 2);
  EXPECT_EQ(find_strategy("dist-ep").make(model, cluster, step_request(4, 4)).window, 1);
  StrategyRequest r = step_request(4, 4);
  r.window = 3;
  EXPECT_EQ(find_strategy("ep").make(model, cluster, r).window, 3);
}

TEST(Strategies, ImpossibleRequestsSayWhy) {
  const ModelConfig model = make_model({});
  const auto error = [&](const std::string& name, const Cluster& cluster, const StrategyRequest& r) {
    return error_of<ConfigError>([&] { find_strategy(name).make(model, cluster, r); });
  };
  EXPECT_EQ(error("zebra", make_cluster({1}), step_request(4, 4)),
            "[strategy zebra] no device owns experts in cluster test (1 devices). With one device use "
            "strategy single.");
  EXPECT_EQ(error("ep", make_cluster({2}), step_request(2, 4)),
            "[strategy ep] 4 microbatches need at least as many sequences, got 2");
  StrategyRequest r = step_request(4, 2);
  r.experts_moved = {1};
  EXPECT_EQ(error("zebra", make_cluster({2}), r),
            "[strategy zebra] experts_moved has 1 entries, expected one per layer (2)");
  r.experts_moved = {1, 1};
  r.balancer = "lpt";
  EXPECT_EQ(error("zebra", make_cluster({2}), r),
            "[strategy zebra] experts_moved and balancer asym_ea need each other, got balancer lpt");
  r = step_request(4, 2);
  r.expert_load = {{1, 1, 1, 1}, {1, 1}};
  EXPECT_EQ(error("zebra", make_cluster({2}), r),
            "[strategy zebra] expert_load[1] has 2 entries, expected one per expert (4)");
  const std::string hint = error("dist-e", make_cluster({2}), step_request(2, 2));
  EXPECT_TRUE(test::has_text(hint, "Did you mean \"dist-ep\"?")) << hint;
  EXPECT_TRUE(
      test::has_text(error("zebr", make_cluster({2}), step_request(2, 2)), "Did you mean \"zebra\"?"));
}

/// [layer] devices with attention.
std::vector<std::vector<DeviceId>> attention_of(const Plan& plan) {
  std::vector<std::vector<DeviceId>> all;
  for (const LayerPlacement& layer : plan.groups[0].layers) {
    all.emplace_back();
    for (const Share& share : layer.attention[0]) all.back().push_back(share.device);
  }
  return all;
}

TEST(Stages, AreRunsOfLayersOnDevicesOfTheirOwn) {
  const Cluster cluster = make_cluster({6}, 2);
  const ModelConfig model = make_model({.num_layers = 5, .num_experts = 4});
  StrategyRequest r = step_request(8, 4);
  r.stages = 3;
  const Plan ep = find_strategy("pp-ep").make(model, cluster, r);
  EXPECT_TRUE(no_faults(validate(ep, model, cluster)));
  EXPECT_EQ(ep.order, OrderPolicy::kOneFOneB);
  using Devices = std::vector<std::vector<DeviceId>>;
  EXPECT_EQ(attention_of(ep), (Devices{{0, 1}, {0, 1}, {2, 3}, {2, 3}, {4, 5}}));
  EXPECT_EQ(num_owned(ep, 2, 2), 2);
  EXPECT_EQ(num_owned(ep, 2, 0), 0) << "experts are with their stage";
  r.stages = 0;
  r.stage_layers = {1, 4}, r.stage_attention = {1, 2}, r.stage_experts = {2, 1};
  const Plan zebra = find_strategy("pp-zebra").make(model, cluster, r);  // odd devices compute attention
  EXPECT_TRUE(no_faults(validate(zebra, model, cluster)));
  EXPECT_EQ(zebra.window, 2);
  EXPECT_EQ(attention_of(zebra), (Devices{{1}, {3, 5}, {3, 5}, {3, 5}, {3, 5}}));
  EXPECT_EQ(num_owned(zebra, 0, 0), 2);
  EXPECT_EQ(num_owned(zebra, 4, 4), 4);
}

TEST(Stages, ThatCannotBeAreRefused) {
  const Cluster cluster = make_cluster({4}, 2);
  const ModelConfig model = make_model({.num_layers = 3});
  const auto error = [&](auto change) {
    StrategyRequest r = step_request(8, 4);
    change(r);
    return error_of<ConfigError>([&] { find_strategy("pp-zebra").make(model, cluster, r); });
  };
  EXPECT_EQ(
      error([](StrategyRequest& r) { r.stages = 3; }),
      "[strategy pp-zebra] 2 devices with attention are too few for 3 stages, each needs one: ask for fewer");
  EXPECT_EQ(error([](StrategyRequest& r) { r.stages = i64{1} << 60; }),
            "[strategy pp-zebra] 3 layers are too few for 1152921504606846976 stages, each needs one: "
            "ask for fewer");
  EXPECT_EQ(error([](StrategyRequest& r) {
              r.stage_layers = {1, 1};
            }),
            "[strategy pp-zebra] got 1, 1 for the layers, expected 2 numbers from 1 on that add up to 3");
  EXPECT_EQ(error([](StrategyRequest& r) {
              r.stage_experts = {2, 0};
            }),
            "[strategy pp-zebra] got 2, 0 for the devices with experts, expected 2 numbers from 1 on that "
            "add up to 2");
}

/// [layer] devices with experts.
std::vector<std::set<DeviceId>> owners_of(const Plan& plan) {
  std::vector<std::set<DeviceId>> all;
  for (const LayerPlacement& layer : plan.groups[0].layers) {
    all.emplace_back();
    for (const ExpertOwners& owners : layer.experts)
      for (const ExpertOwner& owner : owners) all.back().insert(owner.device);
  }
  return all;
}

TEST(DepthGroups, TakeLayersInTurn) {
  const Cluster cluster = make_cluster({6}, 2);  // odd devices compute attention
  const ModelConfig model = make_model({.num_layers = 5, .num_experts = 4});
  StrategyRequest r = step_request(8, 4);
  r.depth_groups = {2, 1};
  const Plan plan = find_strategy("af-pipe").make(model, cluster, r);
  EXPECT_TRUE(no_faults(validate(plan, model, cluster)));
  EXPECT_EQ(plan.order, OrderPolicy::kTimed);
  EXPECT_EQ(plan.window, 8);
  using Devices = std::vector<std::vector<DeviceId>>;
  EXPECT_EQ(attention_of(plan), (Devices{{1, 3}, {5}, {1, 3}, {5}, {1, 3}}));
  EXPECT_EQ(owners_of(plan), (std::vector<std::set<DeviceId>>(5, {0, 2, 4})));
  EXPECT_EQ(plan.groups[0].head[0].size(), 3) << "with the experts of the last layer";
  ASSERT_TRUE(plan.expected.has_value());
  EXPECT_EQ(plan.expected->attention.size(), 5) << "two devices are faster than one";
  EXPECT_GT(plan.expected->attention[1], plan.expected->attention[0]);
  r.head_on = HeadOn::kAttention;
  const Plan other = find_strategy("af-pipe").make(model, cluster, r);
  EXPECT_EQ(other.groups[0].head, other.groups[0].layers[1].attention)
      << "those that a sixth layer would have";
  r = step_request(8, 4);
  r.stage_attention = {1, 2}, r.stage_experts = {2, 1};
  EXPECT_EQ(attention_of(find_strategy("af-pipe").make(model, cluster, r)),
            (Devices{{1}, {3, 5}, {1}, {3, 5}, {1}}));
}

TEST(DepthGroups, AreDealtBySpeed) {
  using Parts = std::vector<std::vector<std::size_t>>;
  EXPECT_EQ(deal_devices({1, 1, 1, 1, 1}, 2), (Parts{{0, 1, 2}, {3, 4}})) << "equal ones stay together";
  EXPECT_EQ(deal_devices({1, 2, 1, 2, 1, 1}, 2), (Parts{{0, 1, 2}, {3, 4, 5}}));
  EXPECT_EQ(deal_devices({4, 1, 1, 1}, 2), (Parts{{0}, {1, 2, 3}}));
  EXPECT_EQ(deal_devices({1, 3}, 2), (Parts{{1}, {0}})) << "the fastest first";
}

TEST(DepthGroups, ThatCannotBeAreRefused) {
  const Cluster cluster = make_cluster({6}, 2);
  const ModelConfig model = make_model({.num_layers = 2});
  const auto error = [&](auto change) {
    StrategyRequest r = step_request(8, 4);
    change(r);
    return error_of<ConfigError>([&] { find_strategy("af-pipe").make(model, cluster, r); });
  };
  EXPECT_EQ(error([](StrategyRequest& r) { r.depth_groups = {3}; }),
            "[plan.depth_groups] got 3 groups, expected at most as many as layers of model (2)");
  EXPECT_EQ(
      error([](StrategyRequest& r) {
        r.depth_groups = {2};
        r.attention = {0}, r.experts = {1, 2};
      }),
      "[plan.depth_groups] got 2 groups of devices with attention, expected at most as many as devices (1)");
  EXPECT_EQ(error([](StrategyRequest& r) {
              r.depth_groups = {1, 1, 1};
            }),
            "[plan.depth_groups] got 3 numbers, expected one or two");
  EXPECT_EQ(error([](StrategyRequest& r) {
              r.stage_experts = {1, 1};
            }),
            "[plan.stage_experts] got 2 numbers that add up to 2, expected 2 for 3 devices");
}

// Claim: the list of strategies in docs/tour.md is their table
TEST(Strategies, TheListOfTheTourIsTheirTable) {
  std::string text = "| strategy | who does what |\n|---|---|\n";
  for (const Strategy& strategy : strategies())
    text += fmt::format("| `{}` | {} |\n", strategy.name, strategy.summary);
  testing::expect_block("tour.md", "strategies", text);
}

}  // namespace
}  // namespace hetermoe
