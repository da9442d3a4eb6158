#include "hetermoe/planner/search/climb.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/planner/search/neighbours.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {
namespace {

constexpr double kMaxEstimateRatio = 1.1;  ///< of a neighbour worth rounding, to that of the current sketch
constexpr i32 kMostChunks = 8;
constexpr DeviceId kFewDevicesByLayer = 8;  ///< of a cluster in which experts of single layers move
constexpr DeviceId kMostByLayer = 16;       ///< of one in which those of the winner do
constexpr i64 kWinnerPart = 2;              ///< such a part of the budget is added for the winner
constexpr i64 kLayerPart = 8;            ///< such a part of it is for climbs from others than the best plan
constexpr std::size_t kLayerKinds = 8;   ///< from so many kinds of them,
constexpr double kLayerStepRatio = 1.1;  ///< whose step over the best one is no more
constexpr std::size_t kFewGroups = 4;    ///< plans of more are changed as sketches alone

/// Figures of a plan that leave the work where it is.
struct OrderFigures {
  i32 window, chunks;
  Recompute recompute;
  bool shard_optimizer;
};

/// Parts of an exchange, microbatches in flight, recomputation, sharding of the optimizer: one of them
/// changed.
std::vector<OrderFigures> neighbour_orders(const Plan& plan, const PlanLimits& limits) {
  std::vector<OrderFigures> all;
  const bool sharded = plan.shard_optimizer;
  if (limits.shard_optimizer && (plan.groups.size() > 1 || plan.groups[0].devices.size() > 1))
    all.push_back({plan.window, plan.chunks, plan.recompute, !sharded});
  // Stages of a pipeline have chosen by layer.
  const bool by_layer = traits_of(plan.order).has_stages;
  for (const Recompute recompute :
       {Recompute::kOff, Recompute::kSelect, Recompute::kLocal, Recompute::kResend}) {
    if (recompute != plan.recompute && !by_layer)
      all.push_back({plan.window, plan.chunks, recompute, sharded});
  }
  for (const i32 chunks : {plan.chunks * 2, plan.chunks / 2}) {
    if (chunks >= 1 && chunks <= kMostChunks) all.push_back({plan.window, chunks, plan.recompute, sharded});
  }
  const auto microbatches = static_cast<i32>(plan.groups[0].microbatches.size());
  for (const i32 window : {0, 1, 2, 3, plan.window * 2}) {
    const bool same = window == plan.window || (window == 0 && !traits_of(plan.order).zero_window_is_all);
    if (!same && window < microbatches) all.push_back({window, plan.chunks, plan.recompute, sharded});
  }
  return all;
}

/// False when `from` has none of its own in the layer.
bool move_expert(Group& group, std::size_t layer, DeviceId from, DeviceId to) {
  LayerOwners& experts = group.layers[layer].experts;
  const auto last = std::find_if(experts.rbegin(), experts.rend(), [&](const ExpertOwners& owners) {
    return owners.size() == 1 && owners[0].device == from;
  });
  if (last == experts.rend()) return false;
  (*last)[0].device = to;
  const auto place = std::lower_bound(group.devices.begin(), group.devices.end(), to);
  if (place == group.devices.end() || *place != to) group.devices.insert(place, to);
  return true;
}

}  // namespace

void Climb::run(i64 start) {
  evaluator_.start_from(start);
  while (may_go_on() && (improve_sketch() || improve_order() || improve_blocks())) {
  }
  evaluator_.start_from(-1);
}

void Climb::run_by_layer(i64 start) {
  evaluator_.start_from(start);
  while (may_go_on() && (improve_layers() || improve_order())) {
  }
  evaluator_.start_from(-1);
}

bool Climb::try_sketches(const Sketch& current, std::vector<Sketch> sketches) {
  const i64 before = evaluator_.current();
  const Rates& rates = evaluator_.rates();
  const Seconds most = kMaxEstimateRatio * estimate(rates, current).step;
  std::vector<std::pair<Seconds, Sketch>> all;
  for (Sketch& next : sketches) {
    const Estimate e = estimate(rates, next);
    if (e.feasible() && e.step < most) all.emplace_back(e.step, std::move(next));
  }
  std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.first < b.first; });
  for (const auto& [step, next] : all) {
    if (!may_go_on()) break;
    evaluator_.evaluate(next);
  }
  return evaluator_.current() != before;
}

/// Neighbours of the current plan's sketch.
bool Climb::improve_sketch() {
  if (!evaluator_.at(evaluator_.current()).sketch) return false;
  const Sketch sketch = *evaluator_.at(evaluator_.current()).sketch;
  return try_sketches(sketch, neighbours(sketch, request_.limits.max_microbatches)) ||
         try_sketches(sketch, other_devices(evaluator_.rates(), sketch));
}

/// Other groups: some or some of their devices left out, taken in, split or joined.
bool Climb::improve_blocks() {
  if (!evaluator_.at(evaluator_.current()).sketch) return false;
  const Sketch sketch = *evaluator_.at(evaluator_.current()).sketch;
  const Rates& rates = evaluator_.rates();
  std::vector<Sketch> sketches;
  for (const Blocks& blocks : neighbours(rates, blocks_of(sketch))) {
    std::optional<Sketch> next = make_sketch(rates, choice_, order_of(sketch), blocks);
    if (!next) continue;
    next->bias = sketch.bias, next->rounding = sketch.rounding, next->chunks = sketch.chunks;
    sketches.push_back(std::move(*next));
  }
  return try_sketches(sketch, std::move(sketches));
}

bool Climb::improve_order() {
  const i64 before = evaluator_.current();
  const Plan plan = evaluator_.plan_of(before);
  const std::optional<Sketch> sketch = evaluator_.at(before).sketch;
  if (!traits_of(plan.order).has_window) return false;
  for (const OrderFigures& figures : neighbour_orders(plan, request_.limits)) {
    if (!may_go_on()) break;
    Plan next = plan;
    Sketch next_sketch = sketch.value_or(Sketch{});
    next.window = next_sketch.window = figures.window;
    next.chunks = next_sketch.chunks = figures.chunks;
    next.recompute = next_sketch.recompute = figures.recompute;
    next.shard_optimizer = next_sketch.shard_optimizer = figures.shard_optimizer;
    if (sketch && next.groups.size() > kFewGroups)
      evaluator_.evaluate(next_sketch);
    else
      evaluator_.evaluate(std::move(next), sketch ? &next_sketch : nullptr);
  }
  return evaluator_.current() != before;
}

/// An expert of all layers, or of one layer, on another device of a small cluster: sketches give all layers
/// as many by estimate. The busiest device gives to the least busy one first. Where the first layers stand
/// for all, single ones say nothing.
bool Climb::improve_layers() {
  const i64 before = evaluator_.current();
  if (evaluator_.plan_of(before).groups.size() > 1) return false;
  const std::vector<double> busy = evaluator_.at(before).candidate.prediction.busy;
  std::vector<DeviceId> devices(busy.size());
  std::iota(devices.begin(), devices.end(), 0);
  std::ranges::stable_sort(devices, std::greater{}, [&](DeviceId d) { return busy[idx(d)]; });
  const std::size_t layers = evaluator_.shortens() ? 0 : idx(request_.model.num_layers);
  for (const DeviceId from : devices) {
    for (const DeviceId to : devices | std::views::reverse) {
      if (from == to) continue;
      move_experts(0, idx(request_.model.num_layers), from, to);
      for (std::size_t l = 0; l < layers && layers > 1; ++l) move_experts(l, l + 1, from, to);
    }
  }
  return evaluator_.current() != before;
}

void Climb::move_experts(std::size_t first, std::size_t end, DeviceId from, DeviceId to) {
  if (!may_go_on()) return;
  Plan next = evaluator_.plan_of(evaluator_.current());
  bool moved = false;
  for (std::size_t l = first; l < end; ++l) moved = move_expert(next.groups[0], l, from, to) || moved;
  if (moved) evaluator_.evaluate(std::move(next));
}

namespace {

/// What tells plans to climb from apart: microbatches, whether all are in flight, devices with attention.
using LayerKind = std::tuple<std::size_t, bool, std::vector<DeviceId>>;

LayerKind kind_of(const Plan& plan) {
  const Group& group = plan.groups[0];
  std::vector<DeviceId> attention;
  for (const Share& share : group.layers[0].attention[0]) attention.push_back(share.device);
  return {group.microbatches.size(), plan.window == 0, std::move(attention)};
}

}  // namespace

void climb_by_layer(const PlanRequest& request, Evaluator& evaluator, GroupChoice& choice) {
  if (evaluator.empty() || request.cluster.num_devices() > kFewDevicesByLayer) return;
  Climb(request, evaluator, choice, 0).run_by_layer(evaluator.best());
  const i64 part = evaluator.whole_budget() / kLayerPart;
  Climb climb(request, evaluator, choice, std::max<i64>(0, evaluator.budget() - part));
  std::set<LayerKind> kinds;
  for (const i64 start : evaluator.by_step()) {
    if (!climb.may_go_on() || kinds.size() == kLayerKinds ||
        evaluator.step_of(start) > kLayerStepRatio * evaluator.step_of(evaluator.best()))
      return;
    const Plan plan = evaluator.plan_of(start);
    if (plan.groups.size() > 1 || traits_of(plan.order).has_stages) continue;
    if (kinds.insert(kind_of(plan)).second) climb.run_by_layer(start);
  }
}

void climb_winner_by_layer(const PlanRequest& request, Evaluator& evaluator, GroupChoice& choice) {
  if (evaluator.empty() || request.cluster.num_devices() > kMostByLayer) return;
  const i64 before = std::max<i64>(0, evaluator.budget());
  evaluator.add_budget(evaluator.whole_budget() / kWinnerPart);
  Climb(request, evaluator, choice, before).run_by_layer(evaluator.best());
}

}  // namespace hetermoe
