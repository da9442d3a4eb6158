#include "hetermoe/planner/fixed_plans.h"

#include <algorithm>

#include "hetermoe/model/op_cost.h"
#include "hetermoe/planner/group_choice.h"
#include "hetermoe/planner/lane_bound.h"

namespace hetermoe {
namespace {

constexpr i64 kLargeCluster = 512;
constexpr std::size_t kCounts = 9;     ///< of microbatches
constexpr std::size_t kFewCounts = 3;  ///< in a large cluster, where fixed strategies do not win
constexpr std::size_t kStageCounts = 5;
constexpr i64 kMostStages = 16;
constexpr i64 kMostShares = 2'000'000;  ///< of a plan in a large cluster, about 50 MiB

/// What a strategy leaves open.
struct FixedShape {
  i64 microbatches = 1, stages = 0, groups = 1;
};

std::vector<FixedShape> shapes(const PlanRequest& request) {
  std::vector<i64> counts = microbatch_choices(request.sequences, request.limits.max_microbatches);
  const bool large = request.cluster.num_devices() > kLargeCluster;
  // Microbatches that share their sequences out differently have a row each, in every layer.
  const auto row = static_cast<i64>(request.cluster.num_devices()) * request.model.num_layers;
  if (large) {
    std::erase_if(counts, [&](i64 count) {
      return count > 1 && (request.sequences % count != 0 || count * row > kMostShares);
    });
  }
  std::vector<FixedShape> all;
  for (const i64 count : thin(counts, large ? kFewCounts : kCounts)) all.push_back({.microbatches = count});
  return all;
}

/// So many groups have room for weights and gradients of their own, and for a sharded optimizer together.
i64 most_groups(const Rates& rates) {
  const ModelConfig& model = rates.request().model;
  const double parameters = rates.attention_parameters() +
                            rates.moe_layers() * real(model.num_experts) * real(rates.counts().expert);
  const StateBytes state = state_bytes_per_parameter(bytes_of(rates.request().dtype));
  Bytes room = -parameters * (state.master + state.moments);
  for (std::size_t c = 0; c < rates.num_classes(); ++c)
    room += rates.usable_memory(c) * real(rates.classes()[c].size());
  return static_cast<i64>(std::max(0.0, room) / (parameters * (state.weights + state.gradients)));
}

/// Equal groups, equal microbatches, and of these as many as there are stages at least.
std::vector<FixedShape> shapes_with_stages(const Rates& rates, const Roles& roles) {
  const PlanRequest& request = rates.request();
  std::vector<FixedShape> all;
  const auto devices = static_cast<i64>(std::min(roles.attention.size(), roles.experts.size()));
  const i64 limit = std::min(devices / 2, most_groups(rates));
  for (i64 groups = 1; groups <= limit; groups *= 2) {
    const auto uneven = [&](i64 count) { return count % groups != 0; };
    if (uneven(static_cast<i64>(roles.attention.size())) || uneven(static_cast<i64>(roles.experts.size())) ||
        uneven(request.sequences))
      break;
    const i64 each = request.sequences / groups, most = std::min(devices / groups, request.model.num_layers);
    std::vector<i64> counts = microbatch_choices(each, request.limits.max_microbatches);
    std::erase_if(counts, [&](i64 count) { return each % count != 0; });
    for (i64 stages = 2; stages <= std::min(most, kMostStages); stages *= 2) {
      for (const i64 count : thin(counts, kStageCounts)) {
        if (count >= stages) all.push_back({count, stages, groups});
      }
    }
  }
  return all;
}

Plan make(const PlanRequest& request, const Strategy& strategy, const Roles& roles, const FixedShape& shape) {
  StrategyRequest ask;
  ask.seq_len = request.seq_len;
  ask.sequences = request.sequences / shape.groups;
  ask.microbatches = shape.microbatches;
  ask.stages = shape.stages;
  if (shape.groups == 1) return strategy.make(request.model, request.cluster, ask);
  const auto part = [&](const std::vector<DeviceId>& all, i64 group) {
    const auto each = static_cast<std::ptrdiff_t>(all.size()) / shape.groups;
    return std::vector<DeviceId>(all.begin() + group * each, all.begin() + (group + 1) * each);
  };
  Plan plan;
  for (i64 g = 0; g < shape.groups; ++g) {
    ask.attention = part(roles.attention, g);
    ask.experts = part(roles.experts, g);
    Plan of_group = strategy.make(request.model, request.cluster, ask);
    if (g == 0)
      plan = std::move(of_group);
    else
      plan.groups.push_back(std::move(of_group.groups[0]));
  }
  return plan;
}

}  // namespace

std::vector<std::pair<Seconds, Plan>> fixed_plans(const Rates& rates, const Strategy& strategy) {
  const PlanRequest& request = rates.request();
  std::vector<std::pair<Seconds, Plan>> out;
  if (!request.limits.idle.empty()) return out;
  if (request.cluster.num_devices() < 2 && strategy.name != "single") return out;
  const Roles roles = roles_of(strategy.use, request.cluster, {});
  for (const FixedShape& shape : strategy.has_stages ? shapes_with_stages(rates, roles) : shapes(request)) {
    Plan plan = make(request, strategy, roles, shape);
    const Plan blank = blank_plan(request, plan.recompute);
    plan.dtype = blank.dtype;
    plan.wire_forward = blank.wire_forward, plan.wire_backward = blank.wire_backward;
    const Seconds bound = lane_bound(rates, plan);
    out.emplace_back(bound, std::move(plan));
  }
  return out;
}

}  // namespace hetermoe
