#include "hetermoe/planner/evaluator.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/base/index.h"
#include "hetermoe/planner/explain.h"
#include "hetermoe/planner/lane_bound.h"
#include "hetermoe/planner/memory_estimate.h"
#include "hetermoe/planner/plan_key.h"

namespace hetermoe {
namespace {

constexpr i64 kSmallBudget = 120000;  ///< of small clusters, where devices are told apart by node
constexpr i64 kDearest = 8;           ///< no simulation takes more than this part of the budget
constexpr i64 kEntriesPerVisit = 2;   ///< entries of a plan that take as long as an op-device visit

/// Making, checking and copying the entries of a plan takes time too.
i64 num_entries(const Plan& plan) {
  i64 sum = 0;
  for (const Group& group : plan.groups) {
    for (const LayerPlacement& layer : group.layers) sum += static_cast<i64>(layer.experts.size());
  }
  return sum;
}

}  // namespace

Evaluator::Evaluator(const PlanRequest& request)
    : request_(request),
      rates_(request),
      predictor_(request.model, request.cluster, request.software),
      short_(request.model, request.cluster, request.software) {
  whole_budget_ = request.limits.simulation_budget;
  if (whole_budget_ == 0) {
    const auto devices = static_cast<i64>(request.cluster.num_devices());
    whole_budget_ = devices <= kSmallCluster ? kSmallBudget : 24000 + 2000 * devices;
  }
  budget_ = whole_budget_;
}

i64 Evaluator::evaluate(Plan plan, const Sketch* sketch) {
  const u64 key = key_of(plan);
  const auto seen = seen_.find(key);
  if (seen != seen_.end()) return seen->second;
  if (current_ >= 0 && lane_bound(rates_, plan) >= step_of(current_)) return -1;
  seen_[key] = -1;
  const i64 devices = static_cast<i64>(request_.cluster.num_devices());
  budget_ -= (num_entries(plan) + devices * short_.layers_simulated()) / kEntriesPerVisit;
  std::vector<Bytes> memory = estimate_memory(plan, request_.model);
  if (!fits(memory)) return -1;
  EvaluatedPlan next;
  next.candidate.plan = std::move(plan);
  next.candidate.memory = std::move(memory);
  if (sketch != nullptr) next.sketch = *sketch;
  next.exact = !short_.shortens();
  const i64 before = short_.work();
  const i64 most = best_ < 0 ? whole_budget_ : std::min(budget_, whole_budget_ / kDearest);
  std::optional<Prediction> prediction = short_.predict_within(most, next.candidate.plan);
  if (!prediction) return -1;
  ++num_simulated_;
  next.work = short_.work() - before;
  budget_ -= next.work;
  set_prediction(next.candidate, std::move(*prediction));
  return seen_[key] = add(std::move(next));
}

i64 Evaluator::evaluate(const Sketch& sketch) {
  for (const double squeeze : {1.0, 0.9, 0.75}) {
    const i64 index = evaluate(realize(rates_, sketch, squeeze), &sketch);
    if (index >= 0) return index;
  }
  return -1;
}

bool Evaluator::fits(const std::vector<Bytes>& memory) {
  std::vector<Bytes> with_reserve = memory;
  for (Bytes& bytes : with_reserve) bytes += bytes > 0 ? request_.limits.memory_reserve : 0;
  const std::string over = overfilled_device(with_reserve, request_.cluster);
  if (!over.empty()) last_overfill_ = over;
  return over.empty();
}

i64 Evaluator::add(EvaluatedPlan plan) {
  plans_.push_back(std::move(plan));
  const i64 index = static_cast<i64>(plans_.size()) - 1;
  if (best_ < 0 || step_of(index) < step_of(best_)) best_ = index;
  if (current_ >= 0 && step_of(index) < step_of(current_)) current_ = index;
  return index;
}

i64 Evaluator::work_to_confirm(i64 index) const {
  const EvaluatedPlan& plan = at(index);
  return plan.exact ? 0 : plan.work * request_.model.num_layers / short_.layers_simulated();
}

void Evaluator::confirm(i64 index) {
  EvaluatedPlan& plan = plans_[idx(index)];
  if (plan.exact) return;
  plan.exact = true;
  set_prediction(plan.candidate, predictor_.predict(plan.candidate.plan));
}

void Evaluator::set_prediction(Candidate& candidate, Prediction prediction) const {
  candidate.prediction = std::move(prediction);
  candidate.plan.predicted_step_s = candidate.prediction.step;
  describe(request_, candidate);
}

std::vector<i64> Evaluator::by_step() const {
  std::vector<i64> order(plans_.size());
  std::iota(order.begin(), order.end(), i64{0});
  std::stable_sort(order.begin(), order.end(), [&](i64 a, i64 b) { return step_of(a) < step_of(b); });
  return order;
}

}  // namespace hetermoe
