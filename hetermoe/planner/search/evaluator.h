#pragma once
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/estimate/estimate.h"
#include "hetermoe/planner/estimate/short_model.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {

/// A plan that was simulated.
struct EvaluatedPlan {
  Candidate candidate;           ///< without groups when `sketch` says all of them
  std::optional<Sketch> sketch;  ///< that it was rounded from
  double squeeze = 1;            ///< of the rounding
  bool exact = false;            ///< the prediction is of all layers
  bool judged = false;           ///< and has peaks of memory
  bool overfull = false;         ///< which are too high
  double ratio = 1;              ///< of the step to that extrapolated from the first layers
  i64 work = 0;                  ///< op-device visits of the prediction
};

/// Rows of expert owners of all groups and layers: making, checking and copying them takes time too.
i64 num_entries(const Plan& plan);

/// Checks and simulates plans within a budget, and remembers all of them. An index below is one into this
/// memory, -1 = none.
class Evaluator {
 public:
  explicit Evaluator(const PlanRequest& request);

  /// Plans that are far too large by estimate_memory() are not simulated. Returns -1 when the plan is
  /// rejected, the earlier index when it was seen before. A plan that would be the best or the current one is
  /// judged first, as far as the budget allows. Plans that are compared with it are corrected by the same
  /// ratio. A plan that is a little too large by the estimate is rejected unless it is judged.
  i64 evaluate(Plan plan, const Sketch* sketch = nullptr);
  /// evaluate() without a limit of the budget.
  i64 evaluate_at_any_cost(Plan plan);
  /// Evaluates a plan that has its own settings, layer by layer, of divided parts and parts on hosts.
  i64 evaluate_settled(Plan plan);
  /// The same without a limit of the budget, and judged even where it cannot be faster than the best one.
  i64 evaluate_known(const Plan& plan);
  /// Memory alone, of devices.
  bool has_room(const Plan& plan) const { return overfill(plan).empty(); }
  /// Estimates of memory are a little lower than the check: a second try leaves experts less room.
  i64 evaluate(const Sketch& sketch);

  /// Op-device visits of a prediction of all layers with peaks of memory; 0 when there is one.
  i64 work_to_judge(i64 index) const;
  /// Replaces a prediction by that of all layers with peaks of memory, which decide whether the plan fits.
  void judge(i64 index);
  /// Replaces a prediction from the first windows of microbatches by that of all of them, where this takes at
  /// most so many op-device visits. Returns those that it took.
  i64 simulate_all_windows(i64 index, i64 most);
  /// Judges the best plan, until one fits. One whose judgement takes longer than `most` visits has to fit by
  /// the estimate with room to spare.
  void settle_best(i64 most);

  /// From here on plans that cannot be faster than that of `index` are rejected at once; current() becomes
  /// every faster one. -1 ends it.
  void start_from(i64 index) { current_ = index; }
  i64 current() const { return current_; }
  i64 best() const { return best_; }  ///< of all
  /// From here on a simulation may take as long as it will: for requests with dear plans only.
  void forget_budget() {
    unlimited_ = true;
    seen_.clear();
  }

  bool empty() const { return best_ < 0; }
  std::size_t size() const { return plans_.size(); }  ///< those that turned out to be overfull among them
  const EvaluatedPlan& at(i64 index) const { return plans_[static_cast<std::size_t>(index)]; }
  Plan plan_of(i64 index) const;
  bool is_pipeline(i64 index) const { return traits_of(at(index).candidate.plan.order).has_stages; }
  Seconds step_of(i64 index) const { return at(index).candidate.prediction.step; }
  /// A confirmed candidate with its plan and the memory of all devices.
  Candidate take(i64 index);
  /// Indices of all plans, the fastest first.
  std::vector<i64> by_step() const;

  const Rates& rates() const { return rates_; }
  /// By which plans are simulated.
  std::unique_ptr<CostModel> cost(const Plan& plan) const { return predictor_.cost(plan); }
  bool shortens() const { return short_.shortens(); }
  i64 whole_budget() const { return whole_budget_; }  ///< op-device visits of all simulations
  i64 budget() const { return budget_; }              ///< what is left of them
  void add_budget(i64 more);                          ///< and half as much to judge plans
  /// What is left to simulate and to judge plans, to be given back after tries that are to take nothing.
  std::pair<i64, i64> budgets() const { return {budget_, budget_to_judge_}; }
  void give_back(const std::pair<i64, i64>& budgets) { std::tie(budget_, budget_to_judge_) = budgets; }
  i64 num_simulated() const { return num_simulated_; }
  const std::string& last_overfill() const { return last_overfill_; }  ///< of the last plan without room
  const std::string& overfill_of(i64 index) const {
    return overfills_.at(index);
  }  ///< of one that is overfull

 private:
  template <class F>
  i64 at_any_cost(const F& evaluation);
  i64 evaluate(const Sketch& sketch, double squeeze);
  /// times: as in estimate_memory(). The index of a plan that was seen before, -1 when it has no room or
  /// cannot win; nothing when it is to be simulated.
  /// times: how many groups each of the plan's stands for; then `whole` gives the plan with all of them,
  /// which share hosts.
  std::optional<i64> known(u64 key, const Plan& plan, const std::vector<i64>& times = {},
                           const std::function<Plan()>& whole = {});
  /// make: the plan with so many of its first layers.
  i64 simulate(u64 key, EvaluatedPlan& next, const std::function<Plan(i64)>& make);
  i64 simulate_whole(u64 key, EvaluatedPlan& next);
  i64 most_visits() const;  ///< of one simulation
  /// Remembers what was predicted, of all layers or of the first ones in `simulated`; nothing = it was too
  /// dear.
  i64 keep(u64 key, EvaluatedPlan& next, const Plan& simulated, std::optional<Prediction> prediction,
           i64 work);
  std::vector<Bytes> estimate(const Plan& plan, const std::vector<i64>& times = {}) const {
    return estimate_memory(plan, request_.model, times, rates_.trained(), request_.routing.margin);
  }
  /// scale: of the memory.
  std::string overfill(std::vector<Bytes> memory, double scale = 1) const;
  std::string overfill(const Plan& plan) const { return overfill(estimate(plan)); }
  bool fits(const std::vector<Bytes>& memory, double scale);
  bool leads(i64 index) const;
  void set_judgement(i64 index, const Plan& whole, Prediction prediction);
  void reject(i64 index);
  bool fits_hosts(const Plan& plan);
  void set_prediction(Candidate& candidate, const Plan& plan, Prediction prediction) const;
  i64 add(EvaluatedPlan plan);

  const PlanRequest& request_;
  Rates rates_;
  Predictor predictor_;
  ShortModel short_;
  i64 whole_budget_ = 0, budget_ = 0, budget_to_judge_ = 0;
  i64 num_simulated_ = 0;
  std::deque<EvaluatedPlan> plans_;  // references to them stay valid
  std::map<u64, i64> seen_;          // key of a plan -> its index, -1 = rejected
  std::map<i64, std::string> overfills_;
  bool reports_ = false;  ///< a plan is judged whether or not it can win
  bool unlimited_ = false, too_dear_ = false;
  bool narrow_ = false;  ///< the estimate of the plan at hand is a little too large
  i64 current_ = -1, best_ = -1;
  std::string last_overfill_;
};

}  // namespace hetermoe
