#include "hetermoe/planner/search/fixed_plans.h"

#include <algorithm>

#include "hetermoe/model/op_cost.h"
#include "hetermoe/planner/estimate/lane_bound.h"
#include "hetermoe/planner/search/group_choice.h"

namespace hetermoe {
namespace {

constexpr i64 kLargeCluster = 512;
constexpr std::size_t kCounts = 9;      ///< of microbatches
constexpr std::size_t kFewCounts = 3;   ///< in a large cluster, where fixed strategies do not win
constexpr i64 kMostShares = 2'000'000;  ///< of a plan in a large cluster, about 50 MiB

std::vector<i64> microbatch_counts(const PlanRequest& request) {
  std::vector<i64> counts = microbatch_choices(request.sequences, request.limits.max_microbatches);
  const bool large = request.cluster.num_devices() > kLargeCluster;
  // Microbatches that share their sequences out differently have a row each, in every layer.
  const auto row = static_cast<i64>(request.cluster.num_devices()) * request.model.num_layers;
  if (large) {
    std::erase_if(counts, [&](i64 count) {
      return count > 1 && (request.sequences % count != 0 || count * row > kMostShares);
    });
  }
  return thin(counts, large ? kFewCounts : kCounts);
}

/// As the strategy makes it. In a small cluster also with more microbatches at once: closed forms leave out
/// some that there is room for.
void add_plans(const Rates& rates, const Strategy& strategy, const StrategyRequest& ask,
               std::vector<std::pair<Seconds, Plan>>& out) {
  const PlanRequest& request = rates.request();
  Plan plan = strategy.make(request.model, request.cluster, ask);
  take_dtypes(plan, blank_plan(request, plan.recompute));
  const auto add = [&] { out.emplace_back(lane_bound(rates, plan), plan); };
  add();
  if (request.cluster.num_devices() > kSmallCluster) return;
  plan.shard_optimizer = request.limits.shard_optimizer;
  plan.window =
      traits_of(plan.order).zero_window_is_all ? 0 : std::min<i32>(2, static_cast<i32>(ask.microbatches));
  for (const Recompute recompute : {Recompute::kOff, Recompute::kLocal}) plan.recompute = recompute, add();
}

}  // namespace

std::vector<std::pair<Seconds, Plan>> fixed_plans(const Rates& rates, const Strategy& strategy) {
  const PlanRequest& request = rates.request();
  std::vector<std::pair<Seconds, Plan>> out;
  if (request.cluster.num_devices() < 2 && strategy.name != "single") return out;
  StrategyRequest ask;
  ask.seq_len = request.seq_len;
  ask.sequences = request.sequences;
  ask.dtype = request.dtype;
  ask.trained = rates.trained();
  const bool staged = strategy.cut == Cut::kStages;
  const i64 most_stages = staged ? std::min<i64>(request.cluster.num_devices(), request.model.num_layers) : 0;
  for (const i64 count : microbatch_counts(request)) {
    ask.microbatches = count;
    for (ask.stages = staged ? 2 : 0; ask.stages <= most_stages; ++ask.stages)
      add_plans(rates, strategy, ask, out);
  }
  return out;
}

}  // namespace hetermoe
