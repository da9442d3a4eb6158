#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "hetermoe/plan/migration.h"
#include "hetermoe/planner/balance/trace_balance.h"
#include "hetermoe/train/job.h"
#include "hetermoe/train/priced_plan.h"

namespace hetermoe {

/// Other owners for the experts, and what they promise.
struct BalancedOwners {
  std::optional<Plan> plan;       ///< none: the owners in force are kept
  Seconds before = 0, after = 0;  ///< steps of the routing known, simulated
  Seconds move = 0;               ///< of what changes its device, simulated
  std::string why_not;            ///< why no plan, in words; empty = owners are as good as they can be
  bool held = false;              ///< the guard did not take what was chosen, or gave up copies
};

/// Chooses owners of experts between the steps of a run by what the routers chose in the steps before. The
/// same steps lead to the same owners.
class StepBalancer {
 public:
  /// first: the plan of the first step. Throws ConfigError when the job's plan cannot change in a run. Keeps
  /// references to all but the plan.
  StepBalancer(const Job& job, const ModelConfig& model, const Cluster& cluster, const Plan& first,
               const ProfileSet& profiles);

  /// Copies [num_layers][experts] of a step that has ended.
  void add(const std::vector<std::vector<double>>& copies);
  /// How slow devices were in a step that has ended: [num_devices], see health.h.
  void add_slowness(const std::vector<double>& slowness);
  /// Owners are looked at before step `step` (0 = the first of the run).
  bool is_due(i64 step) const {
    return step % options_.every == 0 && (foresees() || (!history_.empty() && step > 0));
  }
  bool foresees() const { return options_.knows == Knows::kForesight; }
  /// Copies [num_layers][experts] and choices of the step that comes, by which owners are chosen then. That
  /// step must have them: add() fails for others.
  void foresee(const std::vector<std::vector<double>>& copies, TraceRouting step);
  /// [places of the step] which sequence of the foreseen step is at each, under the plan in force; empty = as
  /// they come.
  std::vector<i64> order(const Plan& in_force) const;
  /// Owners for the steps that come, if what they save until owners are looked at again pays for the move.
  BalancedOwners choose(const PricedPlan& in_force) const;

  /// For checkpoints: [layers with experts][experts] mean copies; empty before the first step.
  const std::vector<std::vector<double>>& history() const { return history_; }
  /// For checkpoints: [num_devices] mean over steps of how many times as long as the fastest device of its
  /// kind a device takes, beyond what the cluster file says; empty before the first.
  const std::vector<double>& slowness() const { return slowness_; }
  void restore(std::vector<std::vector<double>> history, std::vector<double> slowness);
  /// A plan that a run of this job may have come to: as the first but for owners.
  bool may_go_on_with(const Plan& plan) const;

 private:
  using Loads = std::vector<std::vector<double>>;
  Seconds simulated_step(const TraceBalance& balance, const Plan& emulated) const;
  void weigh(const TraceBalance& balance, const PricedPlan& in_force, Plan next, BalancedOwners& out) const;
  Seconds move_time(const PricedPlan& in_force, const Plan& next) const;
  MoveOptions move_options() const;
  TraceBalanceOptions balance_options() const;
  Cluster measured_cluster() const;
  const Loads& loads() const { return foreseen_.empty() ? history_ : foreseen_; }
  Loads with_experts(const Loads& of_all_layers) const;

  const BalancerOptions& options_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  const Plan first_;
  const StepOptions step_;
  const std::vector<i64> layers_;         // with experts
  const std::vector<std::string> kinds_;  // [num_devices] type and role
  const BalancerChoice choice_;
  const bool orders_;  // sequences, by which neither the load-balancing loss nor noise may go
  const ProfileSet& profiles_;
  const Plan emulated_;  // first_, as the cost model prices it
  Loads history_;
  std::vector<double> slowness_;
  Loads foreseen_;  // of the step that comes or runs; empty = nobody knows
  std::unique_ptr<TraceRouting> foreseen_step_;
};

}  // namespace hetermoe
