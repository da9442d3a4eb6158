#include "hetermoe/plan/wire.h"

#include <gtest/gtest.h>

#include "hetermoe/plan/plan.h"
#include "tests/support/strategy_plans.h"

namespace hetermoe {
namespace {

TEST(Wire, RowsHaveTheBytesOfTheirNumbersAndScales) {
  EXPECT_EQ(row_bytes(Wire::kFp64, 100), 800);
  EXPECT_EQ(row_bytes(Wire::kFp32, 100), 400);
  EXPECT_EQ(row_bytes(Wire::kBf16, 100), 200);
  EXPECT_EQ(row_bytes(Wire::kFp16, 100), 200);
  EXPECT_EQ(row_bytes(Wire::kFp8Row, 100), 104);
}

TEST(Wire, EveryDtypeIsAWireOfTheSameName) {
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
    EXPECT_EQ(name_of(wire_of(dtype)), name_of(dtype));
    EXPECT_EQ(dtype_of(wire_of(dtype)), dtype);
    EXPECT_EQ(without_scales(wire_of(dtype)), wire_of(dtype));
    EXPECT_FALSE(has_scales(wire_of(dtype)));
  }
  EXPECT_TRUE(has_scales(Wire::kFp8Row));
  EXPECT_FALSE(dtype_of(Wire::kFp8Row));
  EXPECT_EQ(without_scales(Wire::kFp8Row), Wire::kBf16);
}

TEST(Wire, APlanKeepsItInItsFile) {
  const Cluster cluster = testing::make_cluster(2);
  Plan plan = find_strategy("ep").make(testing::tiny_mixtral(), cluster, testing::small_step());
  EXPECT_EQ(to_json(plan).at("wire_forward"), "fp32");
  plan.wire_forward = Wire::kFp8Row, plan.wire_backward = Wire::kBf16;
  const Json json = to_json(plan);
  EXPECT_EQ(json.at("wire_forward"), "fp8_row");
  EXPECT_EQ(json.at("wire_backward"), "bf16");
  EXPECT_EQ(plan_from_json(json, "plan").wire_forward, Wire::kFp8Row);
  Json wrong = json;
  wrong["wire_forward"] = "fp8";
  EXPECT_THROW(plan_from_json(wrong, "plan"), ConfigError);
}

}  // namespace
}  // namespace hetermoe
