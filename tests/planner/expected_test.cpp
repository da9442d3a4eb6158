#include "hetermoe/planner/expected.h"

#include <gtest/gtest.h>

#include "hetermoe/planner/planner.h"
#include "tests/support/nodes_of_eight.h"

namespace hetermoe {
namespace {

/// One node with a device of each of these types.
Cluster cluster_of(const std::vector<DeviceType>& types) {
  Cluster cluster;
  cluster.name = "by hand";
  cluster.types = types;
  cluster.nodes.push_back({"a", 1e10, 1e-5, 1e11, 5e-6});
  for (std::size_t t = 0; t < types.size(); ++t) cluster.devices.push_back({static_cast<i32>(t), 0, 1});
  return cluster;
}

DeviceType with_profile(DeviceType type) {
  type.profile = "some.json";
  return type;
}

const DeviceType& type(const char* name) { return catalogue_device(name, "test"); }

const Deviation& row(const std::string& of) {
  const auto& all = deviations();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Deviation& d) { return d.of == of; });
  EXPECT_NE(found, all.end()) << of;
  return *found;
}

TEST(Deviations, EveryRowHasASourceAndContainsNoImpossibleRate) {
  ASSERT_EQ(deviations().size(), 4U);
  for (const Deviation& row : deviations()) {
    EXPECT_GT(row.low, 0) << row.of;
    EXPECT_LE(row.low, row.high) << row.of;
    EXPECT_FALSE(row.source.empty()) << row.of;
  }
}

TEST(Expected, OneDeviceOfEachClassHasItsRow) {
  const auto expect_row = [](const DeviceType& type, const std::string& of, const std::string& text) {
    const Expected expected = expected_of(cluster_of({type}), {0}, true);
    EXPECT_EQ(expected.low, row(of).low) << of;
    EXPECT_EQ(expected.high, row(of).high) << of;
    EXPECT_EQ(constants_text(expected), text);
  };
  expect_row(with_profile(type("H100")), "measured", "H100 measured");
  expect_row(type("H100"), "calibrated", "H100 calibrated");
  expect_row(type("P100"), "assumed", "P100 assumed (data sheet)");
}

TEST(Expected, SeveralDevicesAddLinks) {
  const Cluster cluster = cluster_of({type("H100"), type("A100-80"), type("P100")});
  const Expected two = expected_of(cluster, {0, 1}, false);
  EXPECT_EQ(constants_text(two), "A100-80 calibrated, H100 calibrated, links calibrated");
  EXPECT_EQ(two.low, std::min(row("calibrated").low, row("several devices").low));
  EXPECT_EQ(two.high, std::max(row("calibrated").high, row("several devices").high));
  const Expected three = expected_of(cluster, {0, 1, 2}, false);
  EXPECT_EQ(constants_text(three),
            "A100-80 calibrated, H100 calibrated, P100 assumed (data sheet), links calibrated");
  EXPECT_EQ(three.low, row("assumed").low);
  EXPECT_EQ(three.high, row("assumed").high);
}

TEST(Expected, LinksAreMeasuredInsideOneNodeAlone) {
  Cluster cluster = cluster_of({with_profile(type("H100")), with_profile(type("A40"))});
  EXPECT_EQ(expected_of(cluster, {0, 1}, true).constants.at("links"), Evidence::kMeasured);
  cluster.nodes.push_back(cluster.nodes[0]);
  cluster.devices[1].node = 1;
  EXPECT_EQ(expected_of(cluster, {0, 1}, true).constants.at("links"), Evidence::kAssumed);
  EXPECT_EQ(expected_of(cluster, {0, 1}, false).constants.at("links"), Evidence::kCalibrated);
  EXPECT_FALSE(expected_of(cluster, {0}, true).constants.contains("links"));
}

TEST(Expected, KnowingLessNeverNarrowsTheRange) {
  const std::vector<DeviceType> known = {with_profile(type("H100")), type("H100"), type("P100")};
  for (std::size_t i = 1; i < known.size(); ++i) {
    const Expected more = expected_of(cluster_of({known[i - 1]}), {0}, false);
    const Expected less = expected_of(cluster_of({known[i]}), {0}, false);
    EXPECT_LE(less.low, more.low);
    EXPECT_GE(less.high, more.high);
  }
}

TEST(Expected, RatesAreInTwoDigits) {
  const Expected half_to_twice{0.5, 2, {}};
  EXPECT_EQ(range_text(104'682, half_to_twice), "52,000 to 210,000");
  EXPECT_EQ(range_text(14'397'968, half_to_twice), "7,200,000 to 29,000,000");
  EXPECT_EQ(range_text(1'999, half_to_twice), "1,000 to 4,000");
  EXPECT_EQ(range_text(12.3, half_to_twice), "6.2 to 25");
}

TEST(Expected, APlanSaysItInWordsAndInJson) {
  PlanRequest request;
  request.model = load_model("olmoe-1b-7b");
  request.cluster = testing::nodes_of_eight({{"H100", 4}});
  request.seq_len = 1024, request.sequences = 16;
  request.dtype = Dtype::kBf16;
  request.links_assumed = true;
  const PlanResult result = find_plan(request);
  ASSERT_TRUE(result.feasible());
  const std::string line = fmt::format("Expect {} tokens/s: H100 calibrated, links assumed.",
                                       range_text(result.best().prediction.tokens_per_s, result.expected));
  EXPECT_NE(std::find(result.explanation.begin(), result.explanation.end(), line), result.explanation.end())
      << line;
  const Json json = to_json(result);
  EXPECT_EQ(json["constants"].dump(), R"({"H100":"calibrated","links":"assumed"})");
  const double rate = result.best().prediction.tokens_per_s;
  EXPECT_EQ(json["tokens_per_s_range"], Json({rate * row("assumed").low, rate * row("assumed").high}));
}

TEST(Expected, NoPlanHasNoRange) {
  PlanResult result;
  result.infeasible = "no room";
  EXPECT_TRUE(to_json(result).at("tokens_per_s_range").is_null());
  EXPECT_TRUE(to_json(result).at("constants").is_null());
}

}  // namespace
}  // namespace hetermoe
