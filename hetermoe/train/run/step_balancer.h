#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "hetermoe/balance/trace_balance.h"
#include "hetermoe/plan/migration.h"
#include "hetermoe/train/checkpoint/balancer_history.h"
#include "hetermoe/train/job/job.h"
#include "hetermoe/train/session/priced_plan.h"

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
  /// first: the plan of the first step; num_domains: of the text, 0 = it has none. Throws ConfigError when
  /// the job's plan cannot change in a run. Keeps references to all but the plan.
  StepBalancer(const Job& job, const ModelConfig& model, const Cluster& cluster, const Plan& first,
               const ProfileSet& profiles, i64 num_domains = 0);

  /// Copies [num_layers][experts] of a step that has ended.
  void add(const std::vector<std::vector<double>>& copies);
  /// How slow devices were in a step that has ended: [num_devices], see health.h.
  void add_slowness(const std::vector<double>& slowness);
  /// Owners are looked at before step `step` (0 = the first of the run).
  bool is_due(i64 step) const {
    return step % options_.every == 0 && (foresees() || (!history_.loads.empty() && step > 0));
  }
  bool foresees() const { return options_.knows == Knows::kForesight; }
  /// Copies [num_layers][experts] and choices of the step that comes, by which owners are chosen then. That
  /// step must have them: add() fails for others.
  void foresee(const std::vector<std::vector<double>>& copies, TraceRouting step);
  /// By history: it goes by the domains of sequences, and must hear of them.
  bool goes_by_domains() const { return by_domain_; }
  /// [sequences] domains of those of the step that comes, before its owners and its order are asked for.
  void expect(std::vector<i32> domains) { domains_ = std::move(domains); }
  /// Adds the choices of the domains in a step that has ended.
  void add_use(const DomainUse& newest);
  /// [places of the step] which sequence of the step that comes is at each, under the plan in force; empty =
  /// as they come.
  std::vector<i64> order(const Plan& in_force) const;
  /// Owners for the steps that come, if what they save until owners are looked at again pays for the move.
  BalancedOwners choose(const PricedPlan& in_force) const;

  /// For checkpoints.
  const BalancerHistory& history() const { return history_; }
  /// Restores the history. Parts that do not fit are left out, because another job wrote them.
  void restore(BalancerHistory history);
  /// A plan that a run of this job may have come to: as the first but for owners.
  bool may_go_on_with(const Plan& plan) const;

 private:
  using Loads = std::vector<std::vector<double>>;
  void check_first_look() const;
  Activations rows() const;
  Seconds expected_step(const TraceBalance& balance, const Plan& emulated) const;
  Seconds simulated_step(const TraceBalance& balance, const Plan& emulated) const;
  void weigh(const TraceBalance& balance, const PricedPlan& in_force, Plan next, BalancedOwners& out) const;
  Seconds move_time(const PricedPlan& in_force, const Plan& next) const;
  MoveOptions move_options() const;
  TraceBalanceOptions balance_options() const;
  Cluster measured_cluster() const;
  const Loads& loads() const { return foreseen_.empty() ? history_.loads : foreseen_; }
  Loads with_experts(const Loads& of_all_layers) const;

  const BalancerOptions& options_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  const Plan first_;
  const StepOptions step_;
  const std::vector<i64> layers_;         // with experts
  const std::vector<std::string> kinds_;  // [num_devices] type and role
  const BalancerChoice choice_;
  const std::size_t num_domains_;
  const bool by_domain_;  // by history it goes by what each domain chose
  const bool orders_;     // sequences, by which neither the load-balancing loss nor noise may go
  const ProfileSet& profiles_;
  const Plan emulated_;  // first_, as the cost model prices it
  BalancerHistory history_;
  std::vector<i32> domains_;  // [sequences] of the step that comes
  Loads foreseen_;            // of the step that comes or runs; empty = nobody knows
  std::unique_ptr<TraceRouting> foreseen_step_;
};

}  // namespace hetermoe
