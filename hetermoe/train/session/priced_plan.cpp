#include "hetermoe/train/session/priced_plan.h"

#include "hetermoe/train/session/start.h"

namespace hetermoe {

PricedPlan::PricedPlan(const Job& job, Plan its_plan, const ModelConfig& model, const Cluster& cluster,
                       const Cluster& nominal_cluster, const ProfileSet& profiles)
    : plan(std::move(its_plan)),
      emulated(emulated_plan(job, plan)),
      placement(emulated, model, step_options(job, model)),
      truth(make_cost(model, cluster, emulated, profiles)),
      nominal(make_cost(model, nominal_cluster, emulated, profiles)) {}

}  // namespace hetermoe
