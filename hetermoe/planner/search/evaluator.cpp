#include "hetermoe/planner/search/evaluator.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/estimate/host_use.h"
#include "hetermoe/planner/estimate/lane_bound.h"
#include "hetermoe/planner/search/plan_key.h"
#include "hetermoe/planner/words/explain.h"
#include "hetermoe/schedule/order_policy.h"
#include "hetermoe/schedule/schedule_error.h"

namespace hetermoe {
namespace {

constexpr i64 kLeastBudget = 400'000;     ///< of small clusters
constexpr i64 kBudgetPerDevice = 15'000;  ///< of others,
constexpr i64 kMediumBudget = 6'000'000;  ///< up to this,
constexpr i64 kLargeBudget = 3'500;       ///< per device where that is more,
constexpr i64 kMostBudget = 12'000'000;   ///< up to this
constexpr i64 kDearest = 8;               ///< no simulation takes more than this part of the budget
constexpr double kNarrowly = 1.08;        ///< estimate over limit, of plans whose peak is asked for
constexpr double kToSpare = 0.97;         ///< of plans whose peak takes too long to find
constexpr i64 kEntriesPerVisit = 2;       ///< entries of a plan that take as long as an op-device visit

void scale(Prediction& prediction, double ratio) {
  prediction.step *= ratio;
  prediction.tokens_per_s /= ratio;
}

/// Nothing where the plan's order cannot be, for the reason in `why` if nothing else is there: other plans
/// can.
template <class Predict>
std::optional<Prediction> unless_refused(std::string& why, Predict predict) {
  try {
    return predict();
  } catch (const ScheduleError& refused) {
    if (why.empty()) why = refused.what();
    return {};
  }
}

}  // namespace

i64 num_entries(const Plan& plan) {
  i64 sum = 0;
  for (const Group& group : plan.groups) {
    for (const LayerPlacement& layer : group.layers) sum += static_cast<i64>(layer.experts.size());
  }
  return sum;
}

Evaluator::Evaluator(const PlanRequest& request)
    : request_(request),
      rates_(request),
      predictor_(predictor_of(request)),
      short_(request.model, request.cluster, request.software, request.trained, request.routing) {
  whole_budget_ = request.limits.simulation_budget;
  if (whole_budget_ == 0) {
    const auto devices = static_cast<i64>(request.cluster.num_devices());
    const i64 medium = std::min(kBudgetPerDevice * devices, kMediumBudget);
    whole_budget_ = std::clamp(std::max(medium, kLargeBudget * devices), kLeastBudget, kMostBudget);
  }
  add_budget(whole_budget_);
}

void Evaluator::add_budget(i64 more) {
  budget_ += more;
  budget_to_judge_ += more / 2;
}

std::optional<i64> Evaluator::known(u64 key, const Plan& plan, const std::vector<i64>& times,
                                    const std::function<Plan()>& whole) {
  const auto seen = seen_.find(key);
  if (seen != seen_.end()) return seen->second;
  // Where layers differ in what is trained of them, rates are means and bound nothing.
  const bool bounds =
      !reports_ && current_ >= 0 && rates_.trained().even() && request_.routing.load == nullptr;
  if (bounds && lane_bound(rates_, plan) >= step_of(current_)) return -1;
  seen_[key] = -1;
  budget_ -= num_entries(plan) / kEntriesPerVisit;
  const std::vector<Bytes> memory = estimate(plan, times);
  narrow_ = !overfill(memory).empty();
  if (narrow_ && !fits(memory, uses_hosts(plan) ? 1 : 1 / kNarrowly)) return -1;
  if (uses_hosts(plan) && !fits_hosts(whole ? whole() : plan)) return -1;
  return {};
}

i64 Evaluator::evaluate(Plan plan, const Sketch* sketch) {
  settle_homes(request_, plan);
  const u64 key = key_of(plan);
  if (const std::optional<i64> index = known(key, plan)) return *index;
  EvaluatedPlan next;
  next.candidate.plan = std::move(plan);
  if (sketch != nullptr) next.sketch = *sketch;
  // Only where windows go through all layers does each layer add the same time.
  if (!traits_of(next.candidate.plan.order).windows_in_sequence) return simulate_whole(key, next);
  return simulate(key, next, [&](i64 layers) { return ShortModel::cut(next.candidate.plan, layers); });
}

/// The result of an evaluation without a limit of the budget.
template <class F>
i64 Evaluator::at_any_cost(const F& evaluation) {
  const bool before = unlimited_;
  forget_budget();
  const i64 index = evaluation();
  unlimited_ = before;
  return index;
}

i64 Evaluator::evaluate_at_any_cost(Plan plan) {
  return at_any_cost([&] { return evaluate(std::move(plan)); });
}

i64 Evaluator::evaluate_settled(Plan plan) {
  const u64 key = key_of(plan);
  if (const std::optional<i64> index = known(key, plan)) return *index;
  EvaluatedPlan next;
  next.candidate.plan = std::move(plan);
  return simulate_whole(key, next);  // layers differ
}

i64 Evaluator::evaluate_known(const Plan& plan) {
  reports_ = true;
  const i64 index = at_any_cost([&] { return evaluate_settled(plan); });
  reports_ = false;
  return index;
}

i64 Evaluator::evaluate(const Sketch& sketch, double squeeze) {
  Plan kinds = blank_plan(request_, sketch.recompute);
  kinds.window = sketch.window, kinds.chunks = sketch.chunks;
  kinds.shard_optimizer = sketch.shard_optimizer;
  kinds.groups = realize_kinds(rates_, sketch, squeeze);
  settle_homes(request_, kinds);
  Fnv hash;
  hash.add(key_of(kinds));
  for (const SketchGroup& group : sketch.groups) hash.add(group.first.size()).add(group.sequences);
  const auto whole = [&] { return assemble(rates_, sketch, kinds.groups, request_.model.num_layers); };
  if (const std::optional<i64> index = known(hash.value(), kinds, groups_of_kinds(sketch), whole))
    return *index;
  // One of each kind is paid for; the others are copies of the layers that are simulated.
  budget_ -= num_entries(kinds) * static_cast<i64>(sketch.groups.size()) /
             static_cast<i64>(kinds.groups.size()) * short_.layers_simulated() /
             (request_.model.num_layers * kEntriesPerVisit);
  EvaluatedPlan next;
  next.sketch = sketch;
  next.squeeze = squeeze;
  return simulate(hash.value(), next,
                  [&](i64 layers) { return assemble(rates_, sketch, kinds.groups, layers); });
}

i64 Evaluator::evaluate(const Sketch& sketch) {
  for (const double squeeze : {1.0, 0.9, 0.75}) {
    too_dear_ = false;
    const i64 index = evaluate(sketch, squeeze);
    if (index >= 0) return index;
    if (too_dear_) break;
  }
  return -1;
}

i64 Evaluator::simulate(u64 key, EvaluatedPlan& next, const std::function<Plan(i64)>& make) {
  budget_ -= request_.cluster.num_devices() * short_.layers_simulated() / kEntriesPerVisit;
  next.exact = !short_.shortens();
  const i64 before = short_.work(), most = most_visits();
  Plan last;  // as much of the plan as was simulated
  std::optional<Prediction> prediction = unless_refused(last_overfill_, [&] {
    return short_.predict_within(most, [&](i64 layers) { return last = make(layers); });
  });
  if (prediction && current_ >= 0 && !next.exact) next.ratio = at(current_).ratio;
  return keep(key, next, last, std::move(prediction), short_.work() - before);
}

i64 Evaluator::simulate_whole(u64 key, EvaluatedPlan& next) {
  budget_ -= request_.cluster.num_devices() * request_.model.num_layers / kEntriesPerVisit;
  next.exact = true;
  const i64 before = predictor_.work();
  const Plan& plan = next.candidate.plan;
  std::optional<Prediction> prediction =
      unless_refused(last_overfill_, [&] { return predictor_.predict_within(most_visits(), plan); });
  return keep(key, next, plan, std::move(prediction), predictor_.work() - before);
}

i64 Evaluator::most_visits() const {
  return unlimited_ ? std::numeric_limits<i64>::max() : std::min(budget_, whole_budget_ / kDearest);
}

i64 Evaluator::keep(u64 key, EvaluatedPlan& next, const Plan& simulated, std::optional<Prediction> prediction,
                    i64 work) {
  too_dear_ = !prediction;
  if (!prediction) return -1;
  ++num_simulated_;
  next.work = work;
  budget_ -= work;
  scale(*prediction, next.ratio);
  set_prediction(next.candidate, simulated, std::move(*prediction));
  return seen_[key] = add(std::move(next));
}

Plan Evaluator::plan_of(i64 index) const {
  const EvaluatedPlan& plan = at(index);
  return plan.candidate.plan.groups.empty() ? realize(rates_, *plan.sketch, plan.squeeze)
                                            : plan.candidate.plan;
}

std::string Evaluator::overfill(std::vector<Bytes> memory, double scale) const {
  for (Bytes& bytes : memory) bytes = scale * bytes + (bytes > 0 ? request_.limits.memory_reserve : 0);
  return overfilled_device(memory, request_.cluster);
}

bool Evaluator::fits(const std::vector<Bytes>& memory, double scale) {
  const bool fits = overfill(memory, scale).empty();
  if (!fits) last_overfill_ = overfill(memory, 1);
  return fits;
}

bool Evaluator::fits_hosts(const Plan& plan) {
  const std::string over = overfilled_host(plan, request_.model, request_.cluster, request_.trained);
  if (!over.empty()) last_overfill_ = over;
  return over.empty();
}

bool Evaluator::leads(i64 index) const {
  const auto faster_than = [&](i64 other) { return other < 0 || step_of(index) < step_of(other); };
  return faster_than(best_) || (current_ >= 0 && faster_than(current_));
}

i64 Evaluator::add(EvaluatedPlan plan) {
  plans_.push_back(std::move(plan));
  const i64 index = static_cast<i64>(plans_.size()) - 1;
  const i64 work = work_to_judge(index);
  if ((leads(index) || reports_) &&
      (unlimited_ || work <= std::min(budget_to_judge_, whole_budget_ / kDearest))) {
    judge(index);
    budget_to_judge_ -= work;
  }
  if (at(index).overfull || (narrow_ && !at(index).judged)) {
    plans_.pop_back();
    overfills_.erase(index);
    return -1;
  }
  if (best_ < 0 || step_of(index) < step_of(best_)) best_ = index;
  if (current_ >= 0 && step_of(index) < step_of(current_)) current_ = index;
  return index;
}

i64 Evaluator::work_to_judge(i64 index) const {
  const EvaluatedPlan& plan = at(index);
  if (plan.judged) return 0;
  if (plan.exact) return plan.work;
  const std::size_t groups = plan.sketch ? plan.sketch->groups.size() : plan.candidate.plan.groups.size();
  const i64 entries = static_cast<i64>(groups) * request_.model.num_moe_layers() * request_.model.num_experts;
  return plan.work * request_.model.num_layers / short_.layers_simulated() + entries / kEntriesPerVisit;
}

void Evaluator::judge(i64 index) {
  if (at(index).judged) return;
  const Plan whole = plan_of(index);
  set_judgement(index, whole, *predictor_.judge_within(std::numeric_limits<i64>::max(), whole));
}

i64 Evaluator::simulate_all_windows(i64 index, i64 most) {
  if (!at(index).candidate.prediction.from_first_windows || at(index).overfull) return 0;
  const Plan whole = plan_of(index);
  const i64 before = predictor_.work();
  if (std::optional<Prediction> prediction = predictor_.whole_within(most, whole))
    set_judgement(index, whole, std::move(*prediction));
  return predictor_.work() - before;
}

void Evaluator::set_judgement(i64 index, const Plan& whole, Prediction prediction) {
  EvaluatedPlan& plan = plans_[idx(index)];
  const Seconds before = step_of(index);
  set_prediction(plan.candidate, whole, std::move(prediction));
  plan.ratio *= step_of(index) / before;
  plan.exact = plan.judged = true;
  plan.overfull = !fits(plan.candidate.prediction.memory, 1);
  if (plan.overfull) reject(index);
}

void Evaluator::reject(i64 index) {
  plans_[idx(index)].overfull = true;
  overfills_[index] = last_overfill_;
  if (index != best_) return;
  const std::vector<i64> others = by_step();
  best_ = others.empty() ? -1 : others[0];
}

void Evaluator::settle_best(i64 most) {
  while (best_ >= 0 && !at(best_).judged) {
    if (work_to_judge(best_) <= most)
      judge(best_);
    else if (!fits(estimate(plan_of(best_)), 1 / kToSpare))
      reject(best_);
    else
      return;
    const std::vector<i64> order = by_step();
    best_ = order.empty() ? -1 : order[0];
  }
}

Candidate Evaluator::take(i64 index) {
  Candidate candidate = std::move(plans_[idx(index)].candidate);
  candidate.extrapolated = !at(index).exact;
  if (candidate.plan.groups.empty()) candidate.plan = plan_of(index);
  candidate.plan.predicted_step_s = candidate.prediction.step;
  const bool sharded = std::exchange(candidate.plan.shard_optimizer, false);
  candidate.unsharded = estimate(candidate.plan);
  candidate.plan.shard_optimizer = sharded;
  candidate.memory = estimate(candidate.plan);
  for (std::size_t d = 0; at(index).judged && d < candidate.memory.size(); ++d) {
    if (candidate.memory[d] <= 0) continue;
    const Bytes peak = candidate.prediction.memory[d];
    candidate.unsharded[d] += peak - std::exchange(candidate.memory[d], peak);
  }
  describe(request_, candidate.plan, candidate);
  return candidate;
}

void Evaluator::set_prediction(Candidate& candidate, const Plan& plan, Prediction prediction) const {
  candidate.prediction = std::move(prediction);
  describe(request_, plan, candidate);
}

std::vector<i64> Evaluator::by_step() const {
  std::vector<i64> order(plans_.size());
  std::iota(order.begin(), order.end(), i64{0});
  std::erase_if(order, [&](i64 i) { return at(i).overfull; });
  std::stable_sort(order.begin(), order.end(), [&](i64 a, i64 b) { return step_of(a) < step_of(b); });
  return order;
}

}  // namespace hetermoe
