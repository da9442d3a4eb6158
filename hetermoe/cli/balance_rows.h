#pragma once
#include <string>
#include <vector>

#include "hetermoe/balance/balancers.h"
#include "hetermoe/cli/command.h"

namespace hetermoe {

/// Options of `routing balance` and `compare --balancers`.
struct BalanceRowsOptions {
  std::string trace, job, plan, steps, output, topology;
  std::string knows;  ///< empty = history where there are several steps
  std::string groups = "node", parts = kAllParts;
  std::vector<std::string> balancers;
  i64 replicas = 0, guests = 2, guest_cost = -1;
  double load_cap = 1.1;
  bool no_guard = false, padded = false, tuned = false, json = false;
};

/// How balancers are asked, but for trace, job and names.
void add_balance_options(Flags& flags, BalanceRowsOptions& options);

/// Every balancer on the steps of the trace, as a table or as JSON, and with `output` as balance.html there.
int run_balance_rows(const BalanceRowsOptions& options, Overrides overrides);

}  // namespace hetermoe
