#include "hetermoe/planner/estimate/rates.h"

#include <gtest/gtest.h>

#include "hetermoe/schedule/schedule.h"
#include "tests/support/strategy_plans.h"

namespace hetermoe::testing {
namespace {

TEST(Rates, ExchangesOfABackwardPassAreThoseOfASchedule) {
  const ModelConfig model = load_model("tiny");
  for (const std::string& name : EnumNames<Recompute>::names()) {
    Plan plan = find_strategy("zebra").make(model, load_cluster("demo"), small_step());
    plan.recompute = enum_from<Recompute>(name, "test");
    double forward = 0, backward = 0;
    for (const Op& op : build_schedule(plan, model).ops) {
      if (op.kind != OpKind::kDispatch && op.kind != OpKind::kCombine) continue;
      (op.phase == Phase::kForward ? forward : backward) += 1;
    }
    EXPECT_EQ(backward_exchanges(plan.recompute), backward / forward) << name;
  }
}

}  // namespace
}  // namespace hetermoe::testing
