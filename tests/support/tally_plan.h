#pragma once
#include <set>

#include "hetermoe/balance/balancers.h"
#include "hetermoe/plan/recompute.h"
#include "tests/support/strategy_plans.h"

namespace hetermoe::testing {

/// Turns tally on, with speeds that differ. False where a plan may not have it.
inline bool use_tally(Plan& plan, const ModelConfig& model) {
  plan.tally = true;
  plan.row_nodes.clear();
  plan.split_speeds.clear();
  for (std::size_t d = 0; d < plan.dtype.size(); ++d)
    plan.split_speeds.push_back(1 + static_cast<i64>(d % 3));
  for (Group& group : plan.groups) {
    for (std::size_t l = 0; l < group.layers.size(); ++l) {
      LayerPlacement& layer = group.layers[l];
      if (!model.is_moe(static_cast<i64>(l))) continue;
      if (!layer.attention_backward.empty()) return false;
      if (layer.recompute && resends_rows(*layer.recompute)) layer.recompute = Recompute::kLocal;
    }
  }
  if (resends_rows(plan.recompute)) plan.recompute = Recompute::kLocal;
  return true;
}

/// Owners of every layer by `lplb` on a ring of those that there are, and tally.
inline void use_lplb(Plan& plan, const ModelConfig& model) {
  for (Group& group : plan.groups) {
    for (std::size_t l = 0; l < group.layers.size(); ++l) {
      if (!model.is_moe(static_cast<i64>(l))) continue;
      std::set<DeviceId> owners;
      for (const ExpertOwners& of_expert : group.layers[l].experts) owners.insert(of_expert[0].device);
      BalanceInput input;
      for (const DeviceId owner : owners) input.devices.push_back({.id = owner});
      input.load = even_load(1, model.num_experts);
      input.topology = "ring";
      group.layers[l].experts = find_balancer("lplb").place(input)[0];
    }
  }
  use_tally(plan, model);
}

}  // namespace hetermoe::testing
