#include "hetermoe/plan/wire.h"

#include <gtest/gtest.h>

#include "hetermoe/plan/offload.h"
#include "tests/support/strategy_plans.h"

namespace hetermoe {
namespace {

TEST(Wire, RowsHaveTheBytesOfTheirNumbersAndScales) {
  EXPECT_EQ(row_bytes(Wire::kFp64, 100), 800);
  EXPECT_EQ(row_bytes(Wire::kFp32, 100), 400);
  EXPECT_EQ(row_bytes(Wire::kBf16, 100), 200);
  EXPECT_EQ(row_bytes(Wire::kFp16, 100), 200);
  EXPECT_EQ(row_bytes(Wire::kFp8Row, 100), 104);
  EXPECT_EQ(row_bytes(Wire::kFp8Group, 100), 103.125);
}

/// A number is a byte; each column of each group has a scale.
TEST(Wire, MessagesHaveWholeScalesOfTheirLastGroup) {
  EXPECT_EQ(rows_bytes(Wire::kBf16, 3, 100), 600);
  EXPECT_EQ(rows_bytes(Wire::kFp8Row, 3, 100), 312);
  EXPECT_EQ(rows_bytes(Wire::kFp8Group, 0, 100), 0);
  EXPECT_EQ(rows_bytes(Wire::kFp8Group, 1, 100), 100 + 400);
  EXPECT_EQ(rows_bytes(Wire::kFp8Group, 128, 100), 12800 + 400);
  EXPECT_EQ(rows_bytes(Wire::kFp8Group, 129, 100), 12900 + 800);
  EXPECT_EQ(rows_bytes(Wire::kFp8Group, 256, 100), 256 * row_bytes(Wire::kFp8Group, 100));
}

TEST(Wire, EveryDtypeIsAWireOfTheSameName) {
  for (const Dtype dtype : {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
    EXPECT_EQ(name_of(wire_of(dtype)), name_of(dtype));
    EXPECT_EQ(dtype_of(wire_of(dtype)), dtype);
    EXPECT_EQ(without_scales(wire_of(dtype)), wire_of(dtype));
    EXPECT_FALSE(has_scales(wire_of(dtype)));
  }
  for (const Wire wire : {Wire::kFp8Row, Wire::kFp8Group}) {
    EXPECT_TRUE(has_scales(wire));
    EXPECT_EQ(has_groups(wire), wire == Wire::kFp8Group);
    EXPECT_FALSE(dtype_of(wire));
    EXPECT_EQ(without_scales(wire), Wire::kBf16);
  }
}

TEST(Wire, APlanKeepsItInItsFile) {
  const Cluster cluster = testing::make_cluster(2);
  Plan plan = find_strategy("ep").make(testing::tiny_mixtral(), cluster, testing::small_step());
  EXPECT_EQ(to_json(plan).at("wire_forward"), "fp32");
  plan.wire_forward = Wire::kFp8Row, plan.wire_backward = Wire::kFp8Group;
  const Json json = to_json(plan);
  EXPECT_EQ(json.at("wire_forward"), "fp8_row");
  EXPECT_EQ(json.at("wire_backward"), "fp8_group");
  EXPECT_EQ(plan_from_json(json, "plan").wire_forward, Wire::kFp8Row);
  EXPECT_EQ(plan_from_json(json, "plan").wire_backward, Wire::kFp8Group);
  Json wrong = json;
  wrong["wire_forward"] = "fp8";
  EXPECT_THROW(plan_from_json(wrong, "plan"), ConfigError);
}

struct SummedPlan {
  Cluster cluster = testing::make_cluster(2);
  ModelConfig model = testing::tiny_mixtral();
  Plan plan = find_strategy("ep").make(model, cluster, testing::small_step());

  SummedPlan() {
    testing::use_dtype(plan, Dtype::kBf16);
    plan.wire_reduce = WireReduce::kBf16;
    plan.error_feedback = true;
  }
  /// What validate() says; "" = nothing.
  std::string fault() const {
    const std::vector<std::string> faults = validate(plan, model, cluster);
    return faults.empty() ? "" : faults[0];
  }
  void expect_fault(const std::string& words) const {
    EXPECT_NE(fault().find(words), std::string::npos) << fault();
  }
};

TEST(WireReduce, APlanThatAsksForNothingKeepsItsText) {
  SummedPlan c;
  const Json asked = to_json(c.plan);
  EXPECT_EQ(asked.at("wire_reduce"), "bf16");
  EXPECT_EQ(asked.at("error_feedback"), true);
  EXPECT_EQ(plan_from_json(asked, "plan").wire_reduce, WireReduce::kBf16);
  EXPECT_TRUE(plan_from_json(asked, "plan").error_feedback);
  c.plan.wire_reduce = WireReduce::kFp32, c.plan.error_feedback = false;
  EXPECT_FALSE(to_json(c.plan).contains("wire_reduce"));
  EXPECT_FALSE(to_json(c.plan).contains("error_feedback"));
  Json wrong = asked;
  wrong["wire_reduce"] = "fp16";
  EXPECT_THROW(plan_from_json(wrong, "plan"), ConfigError);
}

TEST(WireReduce, GradientsTravelInItAndElseAsTheyAreKept) {
  SummedPlan c;
  EXPECT_EQ(reduce_dtype_of(c.plan, 0), Dtype::kBf16);
  EXPECT_EQ(grad_dtype_of(c.plan, 0), Dtype::kFp32);
  c.plan.wire_reduce = WireReduce::kFp32;
  EXPECT_EQ(reduce_dtype_of(c.plan, 0), Dtype::kFp32);
  testing::use_fp64(c.plan);
  EXPECT_EQ(reduce_dtype_of(c.plan, 0), Dtype::kFp64);
}

TEST(WireReduce, WhatMakesNoSenseIsRefusedByName) {
  EXPECT_EQ(SummedPlan().fault(), "");
  SummedPlan narrow;
  narrow.plan.grad_dtype = Dtype::kBf16;
  narrow.expect_fault("[wire_reduce] got bf16, but device 0 keeps gradients in bf16");
  SummedPlan nothing_lost;
  nothing_lost.plan.wire_reduce = WireReduce::kFp32;
  nothing_lost.expect_fault("[error_feedback] got true, but gradients travel as they are kept");
  SummedPlan sharded;
  shard_weights(sharded.plan);
  sharded.expect_fault("[error_feedback] got true, but weights are sharded");
  sharded.plan.error_feedback = false;
  EXPECT_EQ(sharded.fault(), "");
  SummedPlan scaled;
  testing::use_dtype(scaled.plan, Dtype::kFp16);
  scaled.expect_fault("[error_feedback] got true, but device 0 computes in fp16");
}

}  // namespace
}  // namespace hetermoe
