#include "hetermoe/cost/hiding.h"

#include <gtest/gtest.h>

namespace hetermoe {
namespace {

TEST(Hiding, IsTheRatioOfTheClosedForm) {
  constexpr FlopsPerSecond kPeak = 989e12;
  EXPECT_NEAR(compute_over_transfer(14336, 400e9, kPeak, 8), 9.940, 1e-3);
  EXPECT_NEAR(compute_over_transfer(1536, 400e9, kPeak, 8), 1.065, 1e-3);
  EXPECT_NEAR(compute_over_transfer(1408, 400e9, kPeak, 8), 0.976, 1e-3);
  EXPECT_NEAR(compute_over_transfer(14336, 50e9, kPeak, 8), 1.2425, 1e-3);
}

TEST(Hiding, NamesTheWidthForEachKindOfLink) {
  const Cluster cluster = parse_cluster(
      parse_yaml(
          "{name: pair, nodes: [{count: 2, network_gbit_s: 400, local_gb_s: 400, devices: [H100 x8]}]}",
          "test"),
      "test ");
  const std::vector<LinkHiding> links = hiding_links(cluster);
  ASSERT_EQ(links.size(), 2U);  // both nodes are alike
  EXPECT_EQ(links[0].link, "inside");
  EXPECT_EQ(links[0].devices, "H100 x8");
  EXPECT_NEAR(compute_over_transfer(links[0].width, 400e9, links[0].peak, 8), 1, 1e-12);
  // 8 devices share the port of their node, and half of the rows leave it.
  EXPECT_EQ(links[1].link, "network");
  EXPECT_NEAR(links[1].width, 8 * links[0].peak / (1.5 * 50e9) / 2, 1e-6);
  EXPECT_TRUE(hiding_links(load_cluster("one")).empty());
  ModelConfig model = load_model("mixtral-8x7b");
  model.expert_hidden = 14336;
  EXPECT_NEAR(links[0].of(model), compute_over_transfer(14336, 400e9, links[0].peak, 8), 1e-9);
  EXPECT_EQ(to_json(links[0]).at("type"), "H100");
}

/// 989 TFLOP/s on 8 devices of a node.
TEST(Hiding, IsOneAtTheWidthsOfTheClosedForm) {
  const auto width = [](BytesPerSecond link, i64 places) {
    return 1 / compute_over_transfer(1, link, 989e12, places);
  };
  EXPECT_NEAR(width(400e9, 8), 1442.3, 0.05);
  EXPECT_NEAR(width(50e9, 8), 11538, 0.5);
  // Without n / (n - 1).
  EXPECT_NEAR(width(400e9, 1 << 30), 1648, 0.5);
  EXPECT_NEAR(width(50e9, 1 << 30), 13187, 0.5);
}

TEST(Hiding, NamesEachTypeOfDeviceOfANode) {
  const Cluster cluster = parse_cluster(
      parse_yaml("{name: mixed, nodes: [{network_gbit_s: 100, local_gb_s: 50, devices: [A40 x2, V100 x2]}]}",
                 "test"),
      "test ");
  const std::vector<LinkHiding> links = hiding_links(cluster);
  ASSERT_EQ(links.size(), 2U);
  EXPECT_EQ(links[0].type, "A40");
  EXPECT_EQ(links[1].type, "V100");
  EXPECT_EQ(links[0].places, 4);
  EXPECT_NEAR(links[0].width / links[1].width, links[0].peak / links[1].peak, 1e-12);
}

}  // namespace
}  // namespace hetermoe
