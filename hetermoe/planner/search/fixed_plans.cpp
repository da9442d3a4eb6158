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
  for (const i64 count : microbatch_counts(request)) {
    ask.microbatches = count;
    Plan plan = strategy.make(request.model, request.cluster, ask);
    take_dtypes(plan, blank_plan(request, plan.recompute));
    const Seconds bound = lane_bound(rates, plan);
    out.emplace_back(bound, std::move(plan));
  }
  return out;
}

}  // namespace hetermoe
