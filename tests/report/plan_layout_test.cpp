#include "hetermoe/report/plan_layout.h"

#include <gtest/gtest.h>

#include "hetermoe/planner/strategies/strategies.h"
#include "tests/report/count.h"

namespace hetermoe {
namespace {

/// Devices 0 and 1 of the demo are newer, 2 and 3 older; four layers of eight experts.
PlanLayout layout_of(const char* strategy, const char* name = "demo") {
  const ModelConfig model = load_model(name);
  const Cluster cluster = load_cluster("demo");
  StrategyRequest request;
  request.seq_len = 64;
  request.sequences = 8;
  return plan_layout(find_strategy(strategy).make(model, cluster, request), model, cluster);
}

TEST(PlanLayout, SaysWhoComputesWhat) {
  const PlanLayout zebra = layout_of("zebra");
  ASSERT_EQ(zebra.devices,
            (std::vector<std::string>{"A40/1000#0", "A40/1000#1", "V100/1000#2", "V100/1000#3"}));
  for (std::size_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(zebra.attention[0][layer], 0.5);
    EXPECT_EQ(zebra.attention[2][layer], 0);
    EXPECT_EQ(zebra.experts[0][layer], 0);
    EXPECT_EQ(zebra.experts[3][layer], 4);
  }
  EXPECT_EQ(zebra.embed[0], 0.5);
  EXPECT_EQ(zebra.head[2], 0);
  EXPECT_EQ(zebra.sentences.at(0), "zebra: 1 group of 4 devices, 8 sequences of 64 tokens in a step.");
  EXPECT_EQ(
      zebra.sentences.at(1),
      "2 A40/1000 (attention) compute the attention part of every layer, each of 50 % of the sequences.");
  EXPECT_EQ(zebra.sentences.at(2), "2 V100/1000 (expert) own each 4 of the 8 experts of every layer.");
}

TEST(PlanLayout, SaysWhichLayersADepthGroupHas) {
  const PlanLayout plan = layout_of("af-pipe");
  EXPECT_EQ(plan.sentences.at(1), "1 A40/1000 (attention) computes the attention part of layers 0, 2.");
  EXPECT_EQ(plan.sentences.at(2), "1 A40/1000 (attention) computes the attention part of layers 1, 3.");
  EXPECT_EQ(plan.sentences.at(3), "1 V100/1000 (expert) owns 8 of the 8 experts of layers 0, 2.");
}

TEST(PlanLayout, ADeviceAloneComputesAll) {
  const PlanLayout single = layout_of("single");
  EXPECT_EQ(single.devices.size(), 1u);
  EXPECT_EQ(
      single.sentences.at(1),
      "1 A40/1000 (both) computes the attention part of every layer and owns 8 of the 8 experts of every "
      "layer.");
}

TEST(PlanLayout, ThePictureHasTwoHalvesForEachLayerOfADevice) {
  const std::string svg = plan_svg(layout_of("zebra"));
  EXPECT_EQ(count(svg, "<title>"), 4u * (2 * 4 + 2));
  EXPECT_EQ(count(svg, "<title>V100/1000#3, layer 2: 4 of 8 experts</title>"), 1u);
  EXPECT_EQ(count(svg, "<title>A40/1000#1, layer 0: attention part of 50.0 % of the sequences</title>"), 1u);
  EXPECT_EQ(count(svg, "<title>A40/1000#0: head of 50.0 % of the sequences</title>"), 1u);
}

TEST(PlanLayout, WithoutExpertsThePictureHasOnePartForEachLayerOfADevice) {
  const PlanLayout dense = layout_of("ep", "tiny-llama");
  const std::string svg = plan_svg(dense);
  EXPECT_EQ(count(svg, "<title>"), dense.devices.size() * static_cast<std::size_t>(dense.num_layers + 2));
  EXPECT_EQ(count(svg, "expert"), 0u);
}

TEST(PlanSvg, ManyDevicesThatAreAlikeAreARow) {
  PlanLayout layout;
  layout.num_layers = 1, layout.num_experts = 40;
  for (int d = 0; d < 40; ++d) {
    layout.devices.push_back("H100#" + std::to_string(d));
    layout.attention.push_back({1.0 / 40});
    layout.experts.push_back({d < 30 ? 1.0 : 2.0});
    layout.embed.push_back(0), layout.head.push_back(0);
  }
  const std::string svg = plan_svg(layout);
  EXPECT_EQ(count(svg, ">30 x as H100#0</text>"), 1u) << svg;
  EXPECT_EQ(count(svg, ">10 x as H100#30</text>"), 1u);
  EXPECT_EQ(count(svg, "<title>"), 2u * 4);
}

}  // namespace
}  // namespace hetermoe
