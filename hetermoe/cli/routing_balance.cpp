#include <memory>

#include "hetermoe/cli/balance_rows.h"
#include "hetermoe/cli/routing.h"

namespace hetermoe {

std::function<int()> make_routing_balance(Flags& flags) {
  const auto options = std::make_shared<BalanceRowsOptions>();
  options->balancers = {"none", "lpt", "eplb"};
  options->knows = "history";
  flags
      .add_option("trace", options->trace,
                  "a routing trace with choices: a file, or a folder with one for each rank")
      ->required();
  flags.add_option("job", options->job,
                   "a job whose plan says which devices own experts; every key of it is also a flag");
  flags.add_option("--plan", options->plan, "a plan.json instead of what the job's strategy makes");
  flags
      .add_option(
          "--balancers", options->balancers,
          "rows of the table: none (the plan's own owners), lpt, eplb, lplb, relibra, locality, oracle (a "
          "bound: copies divided at will); +shares, +exact or +guests say how copies are divided within a "
          "step, as none+guests or eplb+exact [default: none,lpt,eplb]")
      ->delimiter(',');
  add_balance_options(flags, *options);
  flags.add_option("--steps", options->steps, "steps of the trace, as 10..20 [default: all]");
  flags.add_option("--output", options->output, "folder for balance.html");
  flags.add_flag("--json", options->json, "print the table as JSON");
  allow_overrides(flags);
  return [options, flags] { return run_balance_rows(*options, overrides_of(flags)); };
}

}  // namespace hetermoe
