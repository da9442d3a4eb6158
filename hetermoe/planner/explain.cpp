#include "hetermoe/planner/explain.h"

#include <algorithm>
#include <map>
#include <set>

#include "hetermoe/planner/short_model.h"
#include "hetermoe/planner/strategies.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {
namespace {

constexpr Bytes kGiB = 1024.0 * 1024 * 1024;

std::string join(const std::vector<std::string>& parts, const std::string& separator = ", ") {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : separator) + part;
  return out;
}

std::string plural(i64 count, const std::string& one, const std::string& many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::vector<std::string> roles_of(const PlanRequest& request, const Plan& plan) {
  std::vector<bool> attention(request.cluster.devices.size(), false), experts = attention;
  for (const Group& group : plan.groups) {
    for (const LayerPlacement& layer : group.layers) {
      for (const ShareRow& row : layer.attention) {
        for (const Share& share : row) attention[static_cast<std::size_t>(share.device)] = true;
      }
      for (const auto& owners : layer.experts) {
        for (const ExpertOwner& owner : owners) experts[static_cast<std::size_t>(owner.device)] = true;
      }
    }
  }
  std::vector<std::string> roles;
  for (std::size_t d = 0; d < attention.size(); ++d) {
    roles.push_back(attention[d] && experts[d] ? "both"
                    : attention[d]             ? "attention"
                    : experts[d]               ? "expert"
                                               : "idle");
  }
  return roles;
}

std::vector<TypeUse> use_of_types(const PlanRequest& request, const Candidate& candidate,
                                  const std::vector<std::string>& roles) {
  std::vector<TypeUse> uses;
  for (std::size_t t = 0; t < request.cluster.types.size(); ++t) {
    TypeUse use;
    use.type = request.cluster.types[t].name;
    use.memory_gib = request.cluster.types[t].memory_gib;
    use.role = "idle";
    for (const DeviceId device : request.cluster.devices_of_type(static_cast<i32>(t))) {
      const auto d = static_cast<std::size_t>(device);
      ++use.devices;
      if (roles[d] == "idle") continue;
      ++use.used;
      use.role = use.role == "idle" || use.role == roles[d] ? roles[d] : "mixed";
      use.busy += candidate.prediction.busy[d];
      use.memory = std::max(use.memory, candidate.memory[d]);
    }
    if (use.used > 0) use.busy /= static_cast<double>(use.used);
    if (use.devices > 0) uses.push_back(std::move(use));
  }
  return uses;
}

/// "zebra", "ep", ...: what the placement amounts to.
std::string family(const Plan& plan, const std::vector<std::string>& roles) {
  std::set<std::string> present(roles.begin(), roles.end());
  present.erase("idle");
  const std::string by_order = traits_of(plan.order).plan_name;
  if (!by_order.empty()) return by_order;
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

std::string name_of_plan(const std::vector<TypeUse>& types, const Plan& plan,
                         const std::vector<std::string>& roles) {
  std::vector<std::string> used;
  for (const TypeUse& use : types) {
    if (use.used > 0) used.push_back(fmt::format("{} {}", use.used, use.type));
  }
  std::string name = family(plan, roles) + " on " + join(used, " + ");
  if (plan.groups.size() > 1) name += fmt::format(", {} groups", plan.groups.size());
  return name;
}

/// Seconds of the critical path by cause.
std::map<std::string, Seconds> path_by_cause(const PlanRequest& request, const Schedule& schedule,
                                             const OpTimes& times) {
  std::vector<OpId> before(schedule.ops.size(), -1);  // the op whose end let this one start
  std::vector<OpId> lane_last(static_cast<std::size_t>(schedule.num_devices * kNumQueues), -1);
  const auto later = [&](OpId a, OpId b) {
    return a < 0 || times.end[static_cast<std::size_t>(b)] > times.end[static_cast<std::size_t>(a)] ? b : a;
  };
  OpId last = -1;
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    OpId& from = before[static_cast<std::size_t>(op)];
    for (const OpId dep : schedule.deps_of(op)) from = later(from, dep);
    for (const LaneId lane : schedule.lanes_of(op)) {
      OpId& previous = lane_last[static_cast<std::size_t>(lane)];
      if (previous >= 0) from = later(from, previous);
      previous = op;
    }
    last = later(last, op);
  }
  std::map<std::string, Seconds> causes;
  for (OpId op = last; op >= 0; op = before[static_cast<std::size_t>(op)]) {
    const auto i = static_cast<std::size_t>(op);
    const OpKind kind = schedule.ops[i].kind;
    std::string cause = "transfers";
    if (kind == OpKind::kReduce) cause = "reduction of gradients";
    if (is_compute(kind)) {
      const std::string what = kind == OpKind::kExperts  ? "experts"
                               : kind == OpKind::kUpdate ? "optimizer"
                               : kind == OpKind::kHead   ? "head"
                                                         : "attention";
      cause = what + " on " + request.cluster.type_of(device_of(schedule.lanes_of(op)[0])).name;
    }
    causes[cause] += times.end[i] - times.start[i];
  }
  return causes;
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::string type_sentence(const TypeUse& use) {
  if (use.used == 0) return fmt::format("The {} {} stay idle.", use.devices, use.type);
  const std::string does = use.role == "attention" ? "compute attention"
                           : use.role == "expert"  ? "hold experts"
                           : use.role == "both"    ? "compute attention and hold experts"
                                                   : "take different roles";
  return fmt::format("{} of {} {} {}: busy {} of the step, {:.1f} of {:.0f} GiB.", use.used, use.devices,
                     use.type, does, percent(use.busy), use.memory / kGiB, use.memory_gib);
}

std::string waiting_sentence(const Candidate& best) {
  const TypeUse *most = nullptr, *least = nullptr;
  for (const TypeUse& use : best.types) {
    if (use.used == 0) continue;
    if (most == nullptr || use.busy > most->busy) most = &use;
    if (least == nullptr || use.busy < least->busy) least = &use;
  }
  if (most == least || most->busy - least->busy < 0.03) return "No type of device waits longer than another.";
  return fmt::format("The {} set the pace; the {} wait {} of the step.", most->type, least->type,
                     percent(1 - least->busy));
}

/// Why `loser` is slower than `best`.
std::string reason(const Candidate& best, const Candidate& loser) {
  std::vector<std::string> idle;
  for (std::size_t t = 0; t < loser.types.size(); ++t) {
    if (loser.types[t].used < best.types[t].used) {
      idle.push_back(fmt::format("leaves {} {} idle", loser.types[t].devices - loser.types[t].used,
                                 loser.types[t].type));
    }
  }
  std::string text = fmt::format("{:.0f} % slower", 100 * (loser.prediction.step / best.prediction.step - 1));
  if (loser.prediction.step < 1.005 * best.prediction.step) text = "as fast within half a percent";
  if (!idle.empty()) text += ": " + join(idle, ", ");
  const TypeUse* waits = nullptr;
  for (const TypeUse& use : loser.types) {
    if (use.used > 0 && (waits == nullptr || use.busy < waits->busy)) waits = &use;
  }
  if (waits != nullptr && waits->busy < 0.9) {
    text += fmt::format("{} its {} wait {} of the step", idle.empty() ? ":" : ";", waits->type,
                        percent(1 - waits->busy));
  }
  return text + fmt::format(" ({})", loser.limited_by);
}

}  // namespace

void describe(const PlanRequest& request, Candidate& candidate) {
  if (candidate.plan.groups.empty()) return;
  const std::vector<std::string> roles = roles_of(request, candidate.plan);
  candidate.types = use_of_types(request, candidate, roles);
  candidate.name = name_of_plan(candidate.types, candidate.plan, roles);
  const i32 newest_type =
      request.cluster.devices[static_cast<std::size_t>(default_roles(request.cluster).attention.at(0))].type;
  i64 types = 0;
  bool newest = false;
  for (const TypeUse& use : candidate.types) {
    if (use.used == 0) continue;
    ++types;
    newest = newest || use.type == request.cluster.types[static_cast<std::size_t>(newest_type)].name;
  }
  candidate.homogeneous = types == 1;
  candidate.newer_only = types == 1 && newest;
}

namespace {

/// Seconds of the critical path of a plan by cause.
std::map<std::string, Seconds> simulate_path(const PlanRequest& request, const ModelConfig& model,
                                             const Plan& plan) {
  const FoldedStep folded = make_folded_step(
      plan, model, request.cluster,
      *make_cost(model, request.cluster, plan, load_profiles(request.cluster), request.software),
      ExpectedRouting(model));
  Simulator simulator;
  return path_by_cause(request, folded.schedule, simulator.run(folded.schedule, folded.costs));
}

}  // namespace

std::string critical_path(const PlanRequest& request, Plan plan) {
  const ShortModel shortened(request.model, request.cluster, request.software);
  std::map<std::string, Seconds> causes;
  if (shortened.shortens()) {
    const auto cut = [&](const ModelConfig& model) {
      return simulate_path(request, model, ShortModel::cut(plan, model.num_layers));
    };
    causes = cut(shortened.longer_model());
    std::map<std::string, Seconds> shorter = cut(shortened.shorter_model());
    for (auto& [cause, seconds] : causes) seconds += shortened.extra() * (seconds - shorter[cause]);
  } else {
    causes = simulate_path(request, request.model, plan);
  }
  Seconds sum = 0;
  std::vector<std::pair<Seconds, std::string>> ranked;
  for (const auto& [cause, seconds] : causes) {
    ranked.emplace_back(std::max(0.0, seconds), cause);
    sum += ranked.back().first;
  }
  std::sort(ranked.begin(), ranked.end(), std::greater<>());
  std::vector<std::string> parts;
  for (const auto& [seconds, cause] : ranked) {
    if (parts.size() < 3 && seconds > 0.03 * sum) parts.push_back(percent(seconds / sum) + " " + cause);
  }
  return "critical path: " + join(parts);
}

std::string busiest_type(const Candidate& candidate) {
  const auto most = std::max_element(candidate.types.begin(), candidate.types.end(),
                                     [](const TypeUse& a, const TypeUse& b) { return a.busy < b.busy; });
  const std::string busy = fmt::format("{} busy {}", most->type, percent(most->busy));
  return most->busy >= 0.8 ? busy : "waiting for transfers and other devices: at most " + busy;
}

void explain(PlanResult& result) {
  if (!result.feasible()) {
    result.explanation = {"No plan fits: " + result.infeasible + "."};
    return;
  }
  Candidate& best = result.tried.front();
  const Plan& plan = best.plan;
  result.explanation.push_back(fmt::format(
      "{}: {:.0f} tokens/s, {:.3g} s per step, {} of up to {}.", best.name, best.prediction.tokens_per_s,
      best.prediction.step,
      plural(static_cast<i64>(plan.groups[0].microbatches.size()), "microbatch", "microbatches"),
      plural(*std::max_element(plan.groups[0].microbatches.begin(), plan.groups[0].microbatches.end()),
             "sequence", "sequences")));
  for (const TypeUse& use : best.types) result.explanation.push_back(type_sentence(use));
  result.explanation.push_back(waiting_sentence(best));
  result.explanation.push_back("What limits it, " + best.limited_by + ".");
  const bool leaves_out = std::any_of(best.types.begin(), best.types.end(),
                                      [](const TypeUse& use) { return use.used < use.devices; });
  if (leaves_out) {
    result.explanation.push_back(
        best.newer_only ? "The newer devices alone are fastest: adding the others costs more than they bring."
                        : "Leaving devices out is faster than using all of them.");
  }
  best.verdict = leaves_out ? "fastest; leaves devices out" : "fastest";
  bool compared = best.newer_only;
  for (std::size_t i = 1; i < result.tried.size(); ++i) {
    Candidate& loser = result.tried[i];
    loser.verdict = loser.infeasible.empty() ? reason(best, loser) : "does not fit: " + loser.infeasible;
    if (loser.newer_only && !compared) {
      compared = true;
      result.explanation.push_back(fmt::format("{:.2f} times the speed of the newer devices alone ({}).",
                                               loser.prediction.step / best.prediction.step, loser.name));
    }
  }
}

}  // namespace hetermoe
