#include <algorithm>
#include <optional>
#include <utility>

#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/any_plan.h"
#include "hetermoe/planner/estimate/host_use.h"
#include "hetermoe/planner/estimate/rates.h"
#include "hetermoe/planner/request_check.h"
#include "hetermoe/planner/search/cluster_part.h"
#include "hetermoe/planner/search/search.h"
#include "hetermoe/planner/strategies/strategies.h"

namespace hetermoe {
namespace {

constexpr double kWorthHosts = 0.995;         ///< of a step without hosts, which are simpler
constexpr double kWorthGathering = 0.99;      ///< of a step without gathered weights
constexpr double kMemoryBinds = 0.9;          ///< of what a device may use
constexpr double kMuch = 0.05;                ///< likewise
constexpr i64 kFewDevicesToSearchAgain = 64;  ///< of clusters that are searched once more
constexpr i64 kManyDevices = 300;             ///< with hosts each is simulated, which then takes seconds

/// Where no plan has room without: the fastest of those that keep more or less on hosts. What takes little
/// from the devices leaves them little room for activations, so the least is not always the best; of many
/// devices it has to do.
PlanResult search_with_hosts(PlanRequest request, PlanResult without) {
  request.limits.shard_optimizer = false;  // hosts update whole parts
  std::optional<PlanResult> best;
  std::string lack;
  for (const HostUse use : kHostUses) {
    if (offload_entries(use, request.trained.lora != nullptr).empty()) continue;
    request.limits.host_use = use;
    PlanResult result = search_plans(request);
    if (!result.feasible()) {
      lack = result.infeasible;
    } else if (!best || result.best().prediction.step < best->best().prediction.step) {
      best = std::move(result);
    }
    if (best && request.cluster.num_devices() > kManyDevices) break;
  }
  if (!best) {
    without.infeasible += fmt::format(". With all that hosts may keep: {}", lack);
    return without;
  }
  const std::vector<std::string> lines = explain_hosts(
      request, best->best().plan, fmt::format("Without that no plan fits: {}.", without.infeasible));
  best->explanation.insert(best->explanation.begin(), lines.begin(), lines.end());
  return std::move(*best);
}

/// Where plans have room without, masters and moments on hosts may free room for a faster one: larger
/// microbatches, fewer layers that recompute.
PlanResult try_hosts_too(PlanRequest request, PlanResult without) {
  request.limits.shard_optimizer = false;
  request.limits.host_use = HostUse::kOptimizer;
  PlanResult with = search_plans(request);
  const Seconds step = without.best().prediction.step;
  if (!with.feasible()) return without;
  const Seconds other = with.best().prediction.step;
  if (other >= kWorthHosts * step) {
    without.explanation.push_back(fmt::format(
        "Host memory does not pay: with masters and moments there the fastest plan takes {:.3g} s a step, "
        "{:.0f} % more.",
        other, 100 * std::max(0.0, other / step - 1)));
    return without;
  }
  const std::vector<std::string> lines = explain_hosts(
      request, with.best().plan,
      fmt::format("That frees room: without it the fastest plan takes {:.3g} s a step, {:.0f} % more.", step,
                  100 * (step / other - 1)));
  with.explanation.insert(with.explanation.begin(), lines.begin(), lines.end());
  return with;
}

/// The same plan with all that is gathered on every device, whether or not it has room there.
Plan without_gathers(Plan plan) {
  for (Group& group : plan.groups) {
    group.embed_home.reset(), group.head_home.reset();
    for (LayerPlacement& layer : group.layers) layer.attention_home.reset();
  }
  return plan;
}

/// Where no plan has room with a sharded optimizer alone.
PlanResult search_with_gathers(PlanRequest request, PlanResult without) {
  request.limits.gather_weights = true;
  PlanResult result = search_plans(request);
  if (!result.feasible()) {
    without.infeasible +=
        fmt::format(". With weights of all but experts sharded, too: {}", result.infeasible);
    return without;
  }
  const Plan& plan = result.best().plan;
  Predictor predictor = predictor_of(request);
  const Seconds step = predictor.predict(plan).step, free = predictor.predict(without_gathers(plan)).step;
  result.explanation.insert(
      result.explanation.begin(),
      {fmt::format(
           "Weights of embedding, attention parts and head are sharded over the devices that hold them, "
           "and gathered for each use. Without that no plan fits: {}.",
           without.infeasible),
       fmt::format(
           "Gathering costs {:.0f} % of the step: the same plan would take {:.3g} s instead of {:.3g} s "
           "if its devices had room for all weights.",
           100 * (1 - free / step), free, step)});
  return result;
}

/// Some device type that the plan uses is nearly full.
bool memory_binds(const PlanResult& result) {
  return std::any_of(result.best().types.begin(), result.best().types.end(), [](const TypeUse& type) {
    return type.used > 0 && type.memory / kGiB > kMemoryBinds * type.limit_gib;
  });
}

/// What every device keeps of embedding, attention parts and head, of the largest device.
bool gathers_much(const PlanRequest& request) {
  const Rates rates(request);
  const Bytes held =
      rates.attention_parameters() * rates.state_of(UnitPart::kAttention).weights_and_gradients();
  Bytes largest = 0;
  for (std::size_t c = 0; c < rates.num_classes(); ++c) largest = std::max(largest, rates.usable_memory(c));
  return held > kMuch * largest;
}

/// Where memory binds, sharded weights may pay for larger microbatches.
PlanResult try_gathers_too(PlanRequest request, PlanResult without) {
  request.limits.gather_weights = true;
  PlanResult with = search_plans(request);
  const Seconds step = without.best().prediction.step;
  if (!with.feasible() || with.best().prediction.step >= kWorthGathering * step) return without;
  with.explanation.insert(
      with.explanation.begin(),
      fmt::format(
          "Weights of embedding, attention parts and head are sharded over the devices that hold them, "
          "and gathered for each use. That frees room: without it the fastest plan takes {:.3g} s a step, "
          "{:.0f} % more.",
          step, 100 * (step / with.best().prediction.step - 1)));
  return with;
}

/// Frozen weights are not divided, and adapters keep their optimizer.
bool may_gather(const PlanRequest& request) {
  return request.limits.shard_optimizer && request.trained.lora == nullptr &&
         request.cluster.num_devices() > 1;
}

bool may_use_hosts(const PlanRequest& request) {
  return request.limits.offload && has_hosts(request.cluster);
}

/// Says which nodes keep the planner from using the hosts of the others.
PlanResult with_missing_hosts(const PlanRequest& request, PlanResult result) {
  std::string note = missing_hosts_note(request.cluster);
  if (note.empty() || !request.limits.offload) return result;
  if (!result.feasible())
    result.infeasible += "; " + note;
  else
    note[0] = 'N', result.explanation.push_back(note + ".");
  return result;
}

PlanResult plan_all_devices(const PlanRequest& settled) {
  PlanResult result = search_plans(settled);
  if (is_beyond_all_memory(settled)) return result;
  const bool adapts = settled.trained.lora != nullptr, gathers = may_gather(settled);
  if (!result.feasible() && gathers)
    result = search_with_gathers(settled, std::move(result));
  else if (result.feasible() && gathers && settled.cluster.num_devices() <= kFewDevicesToSearchAgain &&
           memory_binds(result) && gathers_much(settled))
    result = try_gathers_too(settled, std::move(result));
  if (!may_use_hosts(settled)) return with_missing_hosts(settled, std::move(result));
  if (result.feasible()) return adapts ? result : try_hosts_too(settled, std::move(result));
  return search_with_hosts(settled, std::move(result));
}

/// Where no plan has room for the margin of routing, one that has room for even routing, and says so.
PlanResult plan_with_margin(PlanRequest settled) {
  PlanResult result = plan_all_devices(settled);
  result.routing_margin = settled.routing.margin;
  if (result.feasible() || settled.routing.margin <= 1 || settled.model.num_moe_layers() == 0 ||
      is_beyond_all_memory(settled))
    return result;
  const double asked = std::exchange(settled.routing.margin, 1);
  PlanResult even = plan_all_devices(settled);
  if (!even.feasible()) return result;
  even.explanation.insert(
      even.explanation.begin(),
      fmt::format("No plan has room for {:.3g} times the tokens of even routing. This one has room for even "
                  "routing alone: a run with an uneven router may run out of memory.",
                  asked));
  return even;
}

/// With all parameters on hosts, which leaves devices most room.
std::optional<Plan> any_with_hosts(PlanRequest request) {
  request.limits.shard_optimizer = false;
  request.limits.host_use = HostUse::kAll;
  return search_any_plan(request);
}

std::optional<Plan> any_on_all_devices(const PlanRequest& settled) {
  if (is_beyond_all_memory(settled)) return {};
  if (std::optional<Plan> plan = search_any_plan(settled)) return plan;
  if (may_gather(settled)) {
    PlanRequest gathered = settled;
    gathered.limits.gather_weights = true;
    if (std::optional<Plan> plan = search_any_plan(gathered)) return plan;
  }
  return may_use_hosts(settled) ? any_with_hosts(settled) : std::nullopt;
}

}  // namespace

std::optional<Plan> find_any_plan(const PlanRequest& request) {
  PlanRequest settled = checked(request);
  const ClusterPart part = part_without(settled.cluster, std::exchange(settled.limits.idle, {}));
  PlanRequest of_part = settled;
  of_part.cluster = part.cluster;
  of_part.routing.margin = 1;
  std::optional<Plan> plan = any_on_all_devices(of_part);
  if (plan) number_back(*plan, part, settled);
  return plan;
}

namespace {

PlanResult plan_without_idle(PlanRequest settled);

/// What older devices bring is told against the plan that is found without them.
PlanResult plan_weighing_newer(PlanRequest settled) {
  const Cluster& cluster = settled.cluster;
  const i32 newest = cluster.devices[idx(default_roles(cluster).attention.at(0))].type;
  PlanRequest newer = settled;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d)
    if (cluster.devices[idx(d)].type != newest) newer.limits.idle.push_back(d);
  if (newer.limits.idle.empty()) return plan_with_margin(std::move(settled));
  const PlanResult alone = plan_without_idle(newer);
  if (alone.feasible())
    settled.known.push_back(alone.best().plan);
  else
    settled.newer_unfit = fmt::format("{} {}", cluster.devices.size() - newer.limits.idle.size(),
                                      cluster.types[idx(newest)].name);
  return plan_with_margin(std::move(settled));
}

PlanResult plan_without_idle(PlanRequest settled) {
  const std::vector<DeviceId> idle = std::exchange(settled.limits.idle, {});
  if (idle.empty()) {
    const bool weighs = std::exchange(settled.limits.weigh_newer, false);
    return weighs ? plan_weighing_newer(std::move(settled)) : plan_with_margin(std::move(settled));
  }
  const ClusterPart part = part_without(settled.cluster, idle);
  PlanRequest of_part = settled;
  of_part.cluster = part.cluster;
  PlanResult result = plan_without_idle(of_part);
  for (Candidate& candidate : result.tried) number_back(candidate, part, settled);
  return result;
}

}  // namespace

PlanResult find_plan(const PlanRequest& request) {
  PlanResult result = plan_without_idle(checked(request));
  const std::string types = request.cluster.types_text();
  for (Candidate& candidate : result.tried) candidate.plan.made_for = types;
  return result;
}

}  // namespace hetermoe
