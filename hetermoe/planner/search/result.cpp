#include "hetermoe/planner/search/result.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/planner/estimate/critical_path.h"
#include "hetermoe/planner/words/explain.h"
#include "hetermoe/planner/words/sentences.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {
namespace {

constexpr std::size_t kReported = 8;             ///< candidates in a result, named ones apart
constexpr std::size_t kConfirmed = 3;            ///< of them by speed alone, if they are near the best
constexpr i64 kAlwaysConfirmed = 400'000;        ///< op-device visits, a tenth of a second
constexpr i64 kMostOwnersKept = 20'000;          ///< entries of a plan that loses and is kept all the same
constexpr double kMaxConfirmedStepRatio = 1.02;  ///< to the best, of those that are near it

/// The first few, the best of every name, and the named ones; those that are neither the best nor named
/// only as far as there is time to confirm them.
std::vector<i64> choose_reported(const Evaluator& evaluator, const NamedPlans& named_plans) {
  const std::vector<i64> order = evaluator.by_step();
  std::vector<i64> chosen;
  std::set<std::string> names;
  bool newer = false, homogeneous = false, others = false, all = false;
  bool teamless = order.empty() || !has_teams(evaluator.at(order[0]).candidate.plan);  // beside teams alone
  i64 budget = evaluator.whole_budget() / 8;
  for (const i64 i : order) {
    const Candidate& candidate = evaluator.at(i).candidate;
    const bool whole = !leaves_devices_out(candidate);
    const bool named = i == named_plans.ep || i == named_plans.single || (candidate.newer_only && !newer) ||
                       (candidate.homogeneous && !homogeneous) || (!candidate.newer_only && !others) ||
                       (whole && !all) || (!teamless && !has_teams(candidate.plan));
    const bool near = chosen.size() < kConfirmed &&
                      evaluator.step_of(i) < kMaxConfirmedStepRatio * evaluator.step_of(order[0]);
    const bool other = chosen.size() < kReported && !names.contains(candidate.name);
    if (!named && !near && !other) continue;
    const i64 work = evaluator.work_to_judge(i);
    if (!named && !chosen.empty() && work > budget) continue;
    if (!named) budget -= work;
    names.insert(candidate.name);
    newer = newer || candidate.newer_only;
    others = others || !candidate.newer_only;
    all = all || whole;
    teamless = teamless || !has_teams(candidate.plan);
    homogeneous = homogeneous || candidate.homogeneous;
    chosen.push_back(i);
  }
  return chosen;
}

/// As far as there is time, the fastest first: the figures of the others stay extrapolated.
void confirm(Evaluator& evaluator, const std::vector<i64>& chosen) {
  i64 budget = std::max(kAlwaysConfirmed, evaluator.whole_budget() / 2);
  for (const i64 i : chosen) {
    const i64 work = evaluator.work_to_judge(i);
    if (work > budget) continue;
    budget -= work;
    evaluator.judge(i);
  }
  i64 visits = kAllWindows;
  for (const i64 i : chosen) visits -= evaluator.simulate_all_windows(i, visits);
}

/// "10 x 6, 4 x 6": each number and how often it comes in a row.
std::string runs_of(const std::vector<i64>& numbers) {
  std::string text;
  for (std::size_t begin = 0, end; begin < numbers.size(); begin = end) {
    end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[begin]) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[begin]);
    if (end > begin + 1) text += fmt::format(" x {}", end - begin);
  }
  return text;
}

/// Of the first group: sequences of the first microbatch and experts of the first layer that has some, by
/// device.
std::pair<std::string, std::string> shares_text(const Group& group) {
  std::vector<i64> sequences, experts;
  std::map<DeviceId, i64> owned;
  const auto with_experts = std::find_if(group.layers.begin(), group.layers.end(),
                                         [](const LayerPlacement& layer) { return !layer.experts.empty(); });
  if (with_experts != group.layers.end()) {
    for (const auto& owners : with_experts->experts)
      for (const ExpertOwner& owner : owners) ++owned[owner.device];
  }
  for (const DeviceId device : group.devices) {
    sequences.push_back(sequences_of(share_row(group.layers[0].attention, 0), device));
    experts.push_back(owned[device]);
  }
  return {"sequences " + runs_of(sequences), "experts " + runs_of(experts)};
}

/// What plans of one name may differ in, one after another.
std::vector<std::string> details(const Plan& plan) {
  std::string microbatches, devices;
  for (const Group& group : plan.groups) {
    const std::string count = fmt::format("{}", group.microbatches.size());
    const std::string size = fmt::format("{}", group.devices.size());
    if (!microbatches.ends_with(count)) microbatches += (microbatches.empty() ? "" : "+") + count;
    if (!devices.ends_with(size)) devices += (devices.empty() ? "" : "+") + size;
  }
  const auto shares = shares_text(plan.groups[0]);
  return {microbatches + (microbatches == "1" ? " microbatch" : " microbatches"),
          plan.window == 0 ? "all in flight" : fmt::format("{} in flight", plan.window),
          fmt::format("recompute {}", recompute_text(plan)),
          counted(plan.chunks, "chunk"),
          shards_weights(plan)   ? "weights sharded"
          : plan.shard_optimizer ? "optimizer sharded"
                                 : "optimizer whole",
          devices + " devices a group",
          traits_of(plan.order).has_stages
              ? fmt::format("stages of {} layers", runs_of(stage_layers(plan.groups[0])))
              : "",
          !has_teams(plan) ? "" : "heads in " + counted(plan.head_parts, "part"),
          shares.first,
          shares.second};
}

/// How many experts, in how many layers, two plans give to other devices, in words; empty = none.
std::string other_owners(const Plan& plan, const Plan& of_first) {
  i64 experts = 0, layers = 0;
  for (std::size_t g = 0; g < std::min(plan.groups.size(), of_first.groups.size()); ++g) {
    const auto &here = plan.groups[g].layers, &there = of_first.groups[g].layers;
    for (std::size_t l = 0; l < std::min(here.size(), there.size()); ++l) {
      i64 moved = 0;
      for (std::size_t e = 0; e < std::min(here[l].experts.size(), there[l].experts.size()); ++e)
        moved += here[l].experts[e] == there[l].experts[e] ? 0 : 1;
      experts += moved, layers += moved > 0 ? 1 : 0;
    }
  }
  if (experts == 0) return "";
  return fmt::format("{}{} on {}", counted(experts, "expert"),
                     layers > 1 ? fmt::format(" in {} layers", layers) : "",
                     agree(experts, "another device", "other devices"));
}

/// The first key of a plan.json in which two differ, that of a group or a layer where they have the rest.
std::string other_key(const Json& plan, const Json& of_first) {
  for (const auto& [key, value] : plan.items()) {
    const Json other = of_first.value(key, Json());
    if (value == other || key == "predicted_step_s") continue;
    for (std::size_t i = 0; (key == "groups" || key == "layers") && i < value.size() && i < other.size(); ++i)
      if (value[i] != other[i]) return other_key(value[i], other[i]);
    return value.is_array() || value.is_object() ? "other " + key : fmt::format("{} {}", key, value.dump());
  }
  return "";
}

/// What a plan has otherwise, where its name and details are those of the first.
std::string difference(const Plan& plan, const Plan& of_first, std::size_t number) {
  if (std::string owners = other_owners(plan, of_first); !owners.empty()) return owners;
  if (num_entries(plan) <= kMostOwnersKept)
    if (std::string key = other_key(to_json(plan), to_json(of_first)); !key.empty()) return key;
  return fmt::format("number {} of these", number + 1);
}

/// Plans that differ have different names.
void tell_apart(std::vector<Candidate>& candidates) {
  std::vector<std::vector<std::string>> of_candidate(candidates.size());  // made for names that clash alone
  const auto details_of = [&](std::size_t i) -> const std::vector<std::string>& {
    if (of_candidate[i].empty()) of_candidate[i] = details(candidates[i].plan);
    return of_candidate[i];
  };
  for (std::size_t detail = 0;; ++detail) {
    std::map<std::string, std::vector<std::size_t>> of_name;
    for (std::size_t i = 0; i < candidates.size(); ++i) of_name[candidates[i].name].push_back(i);
    if (of_name.size() == candidates.size()) return;
    for (const auto& [name, alike] : of_name) {
      std::set<std::string> words;
      for (std::size_t n = 0; n < alike.size(); ++n) {
        const std::vector<std::string>& all = details_of(alike[n]);
        words.insert(detail < all.size() ? all[detail] : std::to_string(n));
      }
      if (words.size() < 2) continue;
      for (std::size_t n = 0; n < alike.size(); ++n) {
        const std::vector<std::string>& all = details_of(alike[n]);
        if (detail < all.size())
          candidates[alike[n]].name += ", " + all[detail];
        else if (n > 0)
          candidates[alike[n]].name +=
              ", " + (detail == all.size()
                          ? difference(candidates[alike[n]].plan, candidates[alike[0]].plan, n)
                          : fmt::format("number {} of these", n + 1));
      }
    }
  }
}

/// Two ways of the search may come to one plan.
bool is_same(const Candidate& a, const Candidate& b) {
  constexpr double kRounding = 1e-9;
  if (std::abs(a.prediction.step - b.prediction.step) > kRounding * a.prediction.step ||
      num_entries(a.plan) != num_entries(b.plan))
    return false;
  return other_key(to_json(a.plan), to_json(b.plan)).empty() &&
         other_key(to_json(b.plan), to_json(a.plan)).empty();
}

void drop_layers(Plan& plan) {
  for (Group& group : plan.groups) group.layers.clear(), group.layers.shrink_to_fit();
}

}  // namespace

std::vector<Candidate> reported_candidates(const PlanRequest& request, Evaluator& evaluator,
                                           const NamedPlans& named_plans) {
  std::vector<i64> chosen = choose_reported(evaluator, named_plans);
  confirm(evaluator, chosen);
  std::erase_if(chosen, [&](i64 i) { return evaluator.at(i).overfull; });
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&](i64 a, i64 b) { return evaluator.step_of(a) < evaluator.step_of(b); });
  std::vector<Candidate> out;
  for (const i64 i : chosen) {
    Candidate candidate = evaluator.take(i);
    const auto same = std::ranges::find_if(out, [&](const Candidate& c) { return is_same(c, candidate); });
    if (same != out.end()) {
      if (i == named_plans.ep) same->name += ", equal shares";
      continue;
    }
    if (out.empty()) candidate.path = critical_path(request, candidate.plan, candidate.timeline);
    candidate.limited_by = out.empty() ? in_words(candidate.path) : busiest_type(candidate);
    if (i == named_plans.ep) candidate.name += ", equal shares";
    out.push_back(std::move(candidate));
  }
  tell_apart(out);
  // Large plans that lose are not kept whole: each of them takes as much memory as the search.
  for (std::size_t i = 1; i < out.size(); ++i)
    if (num_entries(out[i].plan) > kMostOwnersKept) drop_layers(out[i].plan);
  std::map<std::string, std::string> unfit = named_plans.unfit;
  for (const auto& [name, index] : {std::pair("ep", named_plans.ep), {"single", named_plans.single}}) {
    if (index >= 0 && evaluator.at(index).overfull) unfit[name] = evaluator.overfill_of(index);
  }
  for (const auto& [name, why] : unfit) {
    Candidate candidate;
    candidate.name = name == "single" ? "single device" : name + " on all devices";
    candidate.infeasible = why;
    out.push_back(std::move(candidate));
  }
  return out;
}

namespace {

Json good_sequences_json(const PlanResult& result) {
  if (!result.good_sequences) return nullptr;
  return {{"sequences", result.good_sequences->sequences},
          {"tokens_per_s", result.good_sequences->tokens_per_s}};
}

Json narrow_wires_json(const PlanResult& result) {
  Json rows = Json::array();
  for (const NarrowWire& wire : result.narrow_wires)
    rows.push_back({{"flag", wire.flag}, {"tokens_per_s", wire.tokens_per_s}});
  return rows;
}

}  // namespace

Json to_json(const PlanResult& result) {
  Json rows = Json::array();
  for (const Candidate& c : result.tried) {
    Json row = {{"name", c.name}, {"verdict", c.verdict}};
    if (!c.infeasible.empty()) {
      row["infeasible"] = c.infeasible;
    } else {
      row["step_s"] = c.prediction.step;
      row["tokens_per_s"] = c.prediction.tokens_per_s;
      row["memory_bytes"] = c.memory;
      row["busy"] = c.prediction.busy;
      row["limited_by"] = c.limited_by;
      row["newer_only"] = c.newer_only;
      row["homogeneous"] = c.homogeneous;
      row["extrapolated"] = c.extrapolated;
      row["from_first_microbatches"] = c.prediction.from_first_windows;
      row["peak_share"] = c.peak_share;
      Json path = Json::array();
      for (const Cause& cause : c.path) path.push_back({{"cause", cause.what}, {"share", cause.share}});
      if (!c.path.empty()) row["critical_path"] = std::move(path);
      if (!c.plan.groups.empty() && !c.plan.groups[0].layers.empty()) row["plan"] = to_json(c.plan);
    }
    rows.push_back(std::move(row));
  }
  Json json = {{"infeasible", result.infeasible},
               {"advice", result.advice},
               {"bounds", result.bounds},
               {"explanation", result.explanation},
               {"good_sequences", good_sequences_json(result)},
               {"narrow_wires", narrow_wires_json(result)},
               {"routing_margin", result.routing_margin},
               {"num_sketches", result.num_sketches},
               {"num_simulated", result.num_simulated},
               {"candidates", std::move(rows)}};
  const double rate = result.feasible() ? result.best().prediction.tokens_per_s : 0;
  json["tokens_per_s_range"] =
      result.feasible() ? Json{rate * result.expected.low, rate * result.expected.high} : Json();
  json["constants"] = result.feasible() ? constants_json(result.expected) : Json();
  return json;
}

}  // namespace hetermoe
