#include "hetermoe/planner/result.h"

#include <algorithm>
#include <set>

#include "hetermoe/planner/explain.h"

namespace hetermoe {
namespace {

constexpr std::size_t kReported = 10;   ///< candidates in a result, named ones apart
constexpr std::size_t kConfirmed = 5;   ///< of them by speed alone, if they are near the best
constexpr double kMaxStepRatio = 1.02;  ///< to the best, of those that are near it

/// The first few, the best of every name, and the named ones; those that are neither the best nor named
/// only as far as there is time to confirm them.
std::vector<i64> choose_reported(const Evaluator& evaluator, const NamedPlans& named_plans) {
  const std::vector<i64> order = evaluator.by_step();
  std::vector<i64> chosen;
  std::set<std::string> names;
  bool newer = false, homogeneous = false;
  i64 budget = evaluator.whole_budget() / 4;
  for (const i64 i : order) {
    const Candidate& candidate = evaluator.at(i).candidate;
    const bool named = i == named_plans.ep || i == named_plans.single || (candidate.newer_only && !newer) ||
                       (candidate.homogeneous && !homogeneous);
    const bool near =
        chosen.size() < kConfirmed && evaluator.step_of(i) < kMaxStepRatio * evaluator.step_of(order[0]);
    const bool other = chosen.size() < kReported && !names.contains(candidate.name);
    if (!named && !near && !other) continue;
    const i64 work = evaluator.work_to_confirm(i);
    if (!named && !chosen.empty() && work > budget) continue;
    budget -= work;
    names.insert(candidate.name);
    newer = newer || candidate.newer_only;
    homogeneous = homogeneous || candidate.homogeneous;
    chosen.push_back(i);
  }
  return chosen;
}

}  // namespace

std::vector<Candidate> reported_candidates(const PlanRequest& request, Evaluator& evaluator,
                                           const NamedPlans& named_plans) {
  std::vector<i64> chosen = choose_reported(evaluator, named_plans);
  for (const i64 i : chosen) evaluator.confirm(i);
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&](i64 a, i64 b) { return evaluator.step_of(a) < evaluator.step_of(b); });
  std::vector<Candidate> out;
  for (const i64 i : chosen) {
    Candidate candidate = evaluator.take(i);
    candidate.limited_by = out.empty() ? critical_path(request, candidate.plan) : busiest_type(candidate);
    if (i == named_plans.ep) candidate.name += ", equal shares";
    out.push_back(std::move(candidate));
  }
  for (const auto& [name, why] : named_plans.unfit) {
    Candidate candidate;
    candidate.name = name == "single" ? "single device" : name + " on all devices";
    candidate.infeasible = why;
    out.push_back(std::move(candidate));
  }
  return out;
}

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
      row["plan"] = to_json(c.plan);
    }
    rows.push_back(std::move(row));
  }
  return {{"infeasible", result.infeasible},
          {"explanation", result.explanation},
          {"num_sketches", result.num_sketches},
          {"num_simulated", result.num_simulated},
          {"candidates", std::move(rows)}};
}

}  // namespace hetermoe
