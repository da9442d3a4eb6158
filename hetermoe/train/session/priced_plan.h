#pragma once
#include <memory>

#include "hetermoe/cost/measured.h"
#include "hetermoe/placement/placement.h"
#include "hetermoe/train/job/job.h"

namespace hetermoe {

/// A plan of a run, as the emulated cluster runs it, and what its ops cost there.
struct PricedPlan {
  /// nominal_cluster: the cluster without devices that are slower than their type. Keeps references to all
  /// but the plan.
  PricedPlan(const Job& job, Plan its_plan, const ModelConfig& model, const Cluster& cluster,
             const Cluster& nominal_cluster, const ProfileSet& profiles);
  PricedPlan(const PricedPlan&) = delete;
  PricedPlan& operator=(const PricedPlan&) = delete;

  const Plan plan;
  const Plan emulated;        ///< with the dtypes of the emulated devices
  const Placement placement;  ///< of `emulated`
  const std::unique_ptr<CostModel> truth, nominal;
};

}  // namespace hetermoe
