#include "hetermoe/planner/words/explain.h"

#include <algorithm>
#include <map>
#include <set>

#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/plan/pipeline_tasks.h"
#include "hetermoe/planner/strategies/depth_groups.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/planner/words/sentences.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {
namespace {

std::string join(const std::vector<std::string>& parts, const std::string& separator = ", ") {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : separator) + part;
  return out;
}

std::vector<TypeUse> use_of_types(const PlanRequest& request, const Candidate& candidate,
                                  const std::vector<std::string>& roles) {
  std::vector<TypeUse> uses;
  for (std::size_t t = 0; t < request.cluster.types.size(); ++t) {
    TypeUse use;
    use.type = request.cluster.types[t].name;
    use.memory_gib = request.cluster.types[t].memory_gib;
    use.limit_gib = (usable_memory(request.cluster.types[t]) - request.limits.memory_reserve) / kGiB;
    std::map<std::string, i64> with_role;
    for (const DeviceId device : request.cluster.devices_of_type(static_cast<i32>(t))) {
      const auto d = static_cast<std::size_t>(device);
      ++use.devices;
      if (roles[d] == "idle") continue;
      ++use.used;
      ++with_role[roles[d]];
      const double busy = candidate.prediction.busy[d];
      use.busy += busy;
      use.least_busy = use.used == 1 ? busy : std::min(use.least_busy, busy);
      use.most_busy = std::max(use.most_busy, busy);
      if (candidate.memory.empty()) continue;
      use.memory = std::max(use.memory, candidate.memory[d]);
      use.unsharded = std::max(use.unsharded, candidate.unsharded[d]);
      use.freed = std::max(use.freed, candidate.unsharded[d] - candidate.memory[d]);
    }
    std::vector<std::string> parts;  // "both", or "4 both, 2 expert"
    for (const auto& [role, count] : with_role)
      parts.push_back(with_role.size() == 1 ? role : fmt::format("{} {}", count, role));
    use.role = parts.empty() ? "idle" : join(parts);
    if (use.used > 0) use.busy /= static_cast<double>(use.used);
    if (use.devices > 0) uses.push_back(std::move(use));
  }
  return uses;
}

/// "2 stages", interleaved "2 stages in 4 runs each".
std::string stages_text(const Plan& plan) {
  const PipelineStages stages = pipeline_stages(plan.groups[0]);
  if (!traits_of(plan.order).has_stages || stages.chunks() == 1)
    return fmt::format("{} stages", stages.size());
  return fmt::format("{} stages in {} runs each", stages.ranks, stages.chunks());
}

/// "zebra", "ep", ...: what the placement amounts to.
std::string family(const Plan& plan, const std::vector<std::string>& roles) {
  std::set<std::string> present(roles.begin(), roles.end());
  present.erase("idle");
  const OrderPolicyTraits& order = traits_of(plan.order);
  if (order.has_stages) return fmt::format("{} of {}", order.plan_name, stages_text(plan));
  const DepthGroups depth = depth_groups_of(plan.groups[0]);
  if (std::max(depth.attention, depth.experts) > 1 && *order.plan_name != 0)
    return fmt::format("{} of {} + {} depth groups", order.plan_name, depth.attention, depth.experts);
  const auto used =
      std::count_if(roles.begin(), roles.end(), [](const std::string& r) { return r != "idle"; });
  const bool overlapped = plan.window != 1 && plan.groups[0].microbatches.size() > 1;
  if (used == 1) return "single";
  if (used == static_cast<std::ptrdiff_t>(plan.groups.size())) return "data parallel";
  if (present.contains("expert")) {
    const std::string split = overlapped ? "zebra" : "dist-ep";
    return present.contains("both") ? split + " with experts moved" : split;
  }
  return overlapped ? "ep with overlap" : "ep";
}

/// Devices of its teams: "8", or "4 to 8"; empty = there are none.
std::string team_sizes_text(const Plan& plan) {
  if (!has_teams(plan)) return "";
  std::map<i64, i64> sizes;
  for (const Group& group : plan.groups) {
    for (const LayerPlacement& layer : group.layers) {
      std::map<i32, i64> of_row;
      for (const Share& share : layer.attention[0]) of_row[share.team] += share.team >= 0 ? 1 : 0;
      for (const auto& [team, size] : of_row)
        if (size > 0) ++sizes[size];
    }
  }
  const i64 least = sizes.begin()->first, most = sizes.rbegin()->first;
  return least == most ? fmt::format("{}", least) : fmt::format("{} to {}", least, most);
}

std::string name_of_plan(const std::vector<TypeUse>& types, const Plan& plan,
                         const std::vector<std::string>& roles) {
  std::vector<std::string> used;
  for (const TypeUse& use : types) {
    if (use.used > 0) used.push_back(fmt::format("{} {}", use.used, use.type));
  }
  std::string name = family(plan, roles) + " on " + join(used, " + ");
  if (plan.groups.size() > 1) name += fmt::format(", {} groups", plan.groups.size());
  if (const std::string sizes = team_sizes_text(plan); !sizes.empty()) name += ", teams of " + sizes;
  if (!plan.row_nodes.empty()) name += ", rows by node";
  return name;
}

/// FLOPs of training, as inspect counts them, over what the used devices could compute in the step.
double peak_share(const PlanRequest& request, const Candidate& candidate,
                  const std::vector<std::string>& roles) {
  FlopsPerSecond peak = 0;
  for (DeviceId d = 0; d < request.cluster.num_devices(); ++d) {
    const Device& device = request.cluster.devices[static_cast<std::size_t>(d)];
    if (roles[static_cast<std::size_t>(d)] != "idle")
      peak += device.speed * request.cluster.type_of(d).peak(request.dtype);
  }
  const Flops per_token = training_flops_per_token(request.model, request.seq_len);
  return peak > 0 ? candidate.prediction.tokens_per_s * per_token / peak : 0;
}

/// What of its busiest type takes the loser's step longer: its work or its waits, which together are the
/// step.
std::string longer_part(const Candidate& best, const Candidate& loser) {
  const TypeUse* most = nullptr;
  std::size_t type = 0;
  for (std::size_t t = 0; t < loser.types.size(); ++t) {
    const TypeUse& use = loser.types[t];
    if (use.used == 0 || best.types[t].used == 0 || (most != nullptr && use.busy <= most->busy)) continue;
    most = &use, type = t;
  }
  if (most == nullptr) return "";
  const Seconds step = loser.prediction.step, of_best = best.prediction.step;
  const Seconds work = most->busy * step, before = best.types[type].busy * of_best;
  if (2 * (work - before) >= step - of_best)
    return fmt::format("its {} compute {:.0f} % longer", most->type, 100 * (work / before - 1));
  return fmt::format("its {} wait {:.3g} s, not {:.3g} s", most->type, step - work, of_best - before);
}

/// Why `loser` is slower than `best`: in what they differ.
std::string reason(const Candidate& best, const Candidate& loser) {
  std::vector<std::string> idle;
  for (std::size_t t = 0; t < loser.types.size(); ++t) {
    const TypeUse& use = loser.types[t];
    if (use.used < best.types[t].used) idle.push_back(fmt::format("{} {}", use.devices - use.used, use.type));
  }
  std::vector<std::string> why;
  if (!idle.empty()) why.push_back(fmt::format("leaves {} idle", join(idle, " and ")));
  const bool as_fast = loser.prediction.step < 1.005 * best.prediction.step;
  if (why.empty() && !as_fast) {
    if (std::string longer = longer_part(best, loser); !longer.empty()) why.push_back(std::move(longer));
  }
  const std::string text = as_fast ? "as fast within half a percent"
                                   : fmt::format("takes {:.0f} % longer",
                                                 100 * (loser.prediction.step / best.prediction.step - 1));
  return fmt::format("{}{}{} ({})", text, why.empty() ? "" : ": ", join(why), loser.limited_by);
}

}  // namespace

void describe(const PlanRequest& request, const Plan& plan, Candidate& candidate) {
  const std::vector<std::string> roles = roles_of(plan);
  candidate.types = use_of_types(request, candidate, roles);
  candidate.name = name_of_plan(candidate.types, plan, roles);
  const i32 newest_type =
      request.cluster.devices[static_cast<std::size_t>(default_roles(request.cluster).attention.at(0))].type;
  i64 types = 0;
  bool newest = false;
  for (const TypeUse& use : candidate.types) {
    if (use.used == 0) continue;
    ++types;
    newest = newest || use.type == request.cluster.types[static_cast<std::size_t>(newest_type)].name;
  }
  candidate.num_attention = std::count_if(roles.begin(), roles.end(), [](const std::string& role) {
    return role == "attention" || role == "both";
  });
  candidate.peak_share = peak_share(request, candidate, roles);
  candidate.homogeneous = types == 1;
  candidate.newer_only = types == 1 && newest;
}

Expected expected_of(const PlanRequest& request, const Plan& plan) {
  const std::vector<std::string> roles = roles_of(plan);
  std::vector<DeviceId> used;
  for (DeviceId d = 0; d < request.cluster.num_devices(); ++d)
    if (roles[static_cast<std::size_t>(d)] != "idle") used.push_back(d);
  return expected_of(request.cluster, used, request.links_assumed);
}

std::string busiest_type(const Candidate& candidate) {
  const TypeUse* most = busiest(candidate);
  return most == nullptr ? "" : fmt::format("{} busiest, {}", most->type, percent(most->busy));
}

void explain(PlanResult& result) {
  for (const Sentence& sentence : sentences()) {
    if (!sentence.holds(result)) continue;
    for (std::string& line : sentence.lines(result)) result.explanation.push_back(std::move(line));
  }
  if (!result.feasible()) return;
  Candidate& best = result.tried.front();
  best.verdict = leaves_devices_out(best) ? "fastest; leaves devices out" : "fastest";
  for (std::size_t i = 1; i < result.tried.size(); ++i) {
    Candidate& loser = result.tried[i];
    loser.verdict = loser.infeasible.empty() ? reason(best, loser) : "does not fit: " + loser.infeasible;
  }
}

}  // namespace hetermoe
