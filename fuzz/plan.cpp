#include "hetermoe/plan/plan.h"

#include "fuzz/small_plans.h"
#include "fuzz/target.h"
#include "hetermoe/schedule/schedule.h"

// A plan.json, and the schedule of the plan where it fits model and cluster.
namespace hetermoe::fuzz {
namespace {

void run(const std::string& input) {
  const Plan plan = plan_from_json(parse_json(input, "plan.json"), "plan.json");
  const Json written = to_json(plan);
  expect_same(written.dump(), to_json(plan_from_json(written, "written")).dump(), "a plan");
  if (!validate(plan, tiny_model(), demo_cluster()).empty()) return;
  for (const bool backward : {false, true}) {
    StepOptions options;
    options.backward = backward;
    options.balance = backward;
    build_schedule(plan, tiny_model(), options);
  }
}

std::vector<std::string> seeds() {
  std::vector<std::string> texts;
  for (const std::string& strategy : strategy_names()) {
    Plan plan = small_plan(strategy);
    texts.push_back(to_json(plan).dump());
    plan.explicit_order = to_text(build_schedule(plan, tiny_model()));
    plan.order = OrderPolicy::kExplicit;
    texts.push_back(to_json(plan).dump());
  }
  return texts;
}

}  // namespace

extern const Target kPlan{"plan", run, seeds};

}  // namespace hetermoe::fuzz
