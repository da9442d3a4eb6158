#include "hetermoe/schedule/order_policy.h"
#include "hetermoe/schedule/waves.h"

// An order that tests/planted_kinds.py adds to a copy of the program: one microbatch after another.
namespace hetermoe {
namespace {

void append_planted(ScheduleBuilder& builder) {
  const Placement& placement = builder.placement();
  for (i32 g = 0; g < placement.num_groups(); ++g) {
    if (!builder.lists_group(g)) continue;
    WaveRunner runner(builder, g);
    const i32 last = placement.num_microbatches(g) - 1;
    for (i32 m = 0; m <= last; ++m) {
      for (const Wave& wave : make_waves(placement, g)) {
        runner.run(wave, m, m + 1);
        if (m == last) runner.report_done(wave);
      }
      runner.finish_returns();
    }
  }
}

}  // namespace

OrderPolicyTraits order_rows::planted_order() {
  return {.policy = OrderPolicy::kPlanted,
          .append = append_planted,
          .appends_end_of_step = false,
          .treats_equals_alike = true,
          .has_window = true,
          .zero_window_is_all = false,
          .windows_in_sequence = true,
          .has_stages = false,
          .has_rounds = false,
          .in_flight = in_flight_of_window,
          .plan_name = "planted"};
}

}  // namespace hetermoe
