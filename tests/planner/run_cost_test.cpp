#include "hetermoe/planner/run_cost.h"

#include <gtest/gtest.h>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// Two types: a fast one for 4 an hour and 500 W, a slow one for 0.5 and 200 W.
Cluster two_types(double price_of_slow = 0.5) {
  Cluster cluster;
  cluster.types = {catalogue_device("H100", "test"), catalogue_device("V100", "test")};
  cluster.types[0].price_per_hour = 4, cluster.types[0].tdp_w = 500;
  cluster.types[1].price_per_hour = price_of_slow, cluster.types[1].tdp_w = 200;
  return cluster;
}

Candidate candidate(double tokens_per_s, i64 fast, i64 slow) {
  Candidate out;
  out.prediction.tokens_per_s = tokens_per_s;
  out.types = {{.type = "H100", .devices = 4, .used = fast, .role = "both"},
               {.type = "V100", .devices = 8, .used = slow, .role = "both"}};
  return out;
}

TEST(RunCost, CountsUsedDevices) {
  const RunCost cost = run_cost_of(two_types(), candidate(1000, 2, 4));
  EXPECT_DOUBLE_EQ(*cost.per_hour, 2 * 4 + 4 * 0.5);
  EXPECT_DOUBLE_EQ(*cost.kilowatts, 1.8);
  EXPECT_DOUBLE_EQ(cost.seconds(7.2e6), 7200);
  EXPECT_DOUBLE_EQ(*cost.money(7.2e6), 20);
  EXPECT_DOUBLE_EQ(*cost.kilowatt_hours(7.2e6), 3.6);
  EXPECT_DOUBLE_EQ(*cost.tokens_per_unit(), 3.6e5);
}

TEST(RunCost, IsUnknownWhereAUsedTypeHasNoPrice) {
  const Cluster cluster = two_types(0);
  EXPECT_TRUE(run_cost_of(cluster, candidate(1000, 2, 0)).per_hour.has_value());
  const RunCost cost = run_cost_of(cluster, candidate(1000, 2, 1));
  EXPECT_FALSE(cost.per_hour || cost.money(1) || cost.tokens_per_unit());
  EXPECT_EQ(cost.unpriced, std::vector<std::string>{"V100"});
  EXPECT_TRUE(to_json(cost, 1)["money"].is_null());
}

TEST(RunCost, TypesWithoutAFigureAreNamed) {
  Cluster cluster = two_types(0);
  for (DeviceType& type : cluster.types) type.tdp_w = type.name == "V100" ? 0 : type.tdp_w;
  const RunCost cost = run_cost_of(cluster, candidate(1000, 2, 1));
  EXPECT_FALSE(cost.kilowatts);
  const Json json = to_json(cost, 1);
  EXPECT_EQ(json["types_without_price"], Json::parse(R"(["V100"])"));
  EXPECT_EQ(json["types_without_tdp"], Json::parse(R"(["V100"])"));
  EXPECT_TRUE(to_json(run_cost_of(cluster, candidate(1000, 2, 0)), 1)["types_without_tdp"].empty());
}

TEST(TimeAndMoney, KeepsPlansThatNoOtherBeatsInBoth) {
  PlanResult result;
  result.tried = {candidate(1000, 4, 8), candidate(990, 4, 8), candidate(900, 4, 0), candidate(100, 1, 0),
                  candidate(150, 0, 8)};
  result.tried.emplace_back().infeasible = "no room";
  // Tokens for a unit: 1000 / 20, 990 / 20, 900 / 16, 100 / 4, 150 / 4.
  EXPECT_EQ(time_and_money(two_types(), result), (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(time_and_money(two_types(0.01), result), (std::vector<std::size_t>{0, 4}));
  EXPECT_EQ(time_and_money(two_types(0), result), (std::vector<std::size_t>{2}));
}

TEST(TimeAndMoney, KeepsTheFastestAndTheCheapestOfMany) {
  PlanResult result;
  for (i64 slow = 8; slow > 0; --slow) result.tried.push_back(candidate(100 + 10.0 * real(slow), 0, slow));
  EXPECT_EQ(time_and_money(two_types(), result), (std::vector<std::size_t>{0, 1, 7}));
}

}  // namespace
}  // namespace hetermoe
