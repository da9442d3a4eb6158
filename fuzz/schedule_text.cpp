#include "fuzz/small_plans.h"
#include "fuzz/target.h"
#include "hetermoe/schedule/schedule.h"

// An order written out, for a zebra plan.
namespace hetermoe::fuzz {
namespace {

Plan zebra_with(const std::string& order) {
  Plan plan = small_plan("zebra");
  plan.order = OrderPolicy::kExplicit;
  plan.explicit_order = order;
  return plan;
}

void run(const std::string& input) {
  const Schedule schedule = build_schedule(zebra_with(input), tiny_model());
  const std::string text = to_text(schedule);
  expect_same(text, to_text(build_schedule(zebra_with(text), tiny_model())), "an order");
}

std::vector<std::string> seeds() { return {to_text(build_schedule(small_plan("zebra"), tiny_model()))}; }

}  // namespace

extern const Target kScheduleText{"schedule_text", run, seeds};

}  // namespace hetermoe::fuzz
