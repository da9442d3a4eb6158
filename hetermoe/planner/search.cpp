#include <algorithm>
#include <map>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/planner/climb.h"
#include "hetermoe/planner/explain.h"
#include "hetermoe/planner/lane_bound.h"
#include "hetermoe/planner/request_check.h"
#include "hetermoe/planner/result.h"
#include "hetermoe/planner/sketches.h"
#include "hetermoe/planner/strategies.h"

// Rank sketches, simulate the promising ones and every fixed strategy that could win, then improve the
// winner.
namespace hetermoe {
namespace {

constexpr i64 kNoLimit = 1 << 30;

/// How wide the search is. Rounds go on while the budget lasts: on small instances, where simulations are
/// cheap, to the sketches that the estimate misjudges.
struct Round {
  i64 per_structure;          ///< sketches simulated that differ in microbatches and order only
  double max_estimate_ratio;  ///< estimate over the best simulated step, of sketches that are simulated
  i64 climbs;
  double max_step_ratio;  ///< step over the best one, of plans that are improved
  double budget_share;    ///< of the budget that is left, for climbs
  bool swaps;             ///< see Climb::run()
};

/// Most estimates are 20 % below to 5 % above the simulator.
constexpr Round kRounds[] = {
    {.per_structure = 2,
     .max_estimate_ratio = 1.1,
     .climbs = 4,
     .max_step_ratio = 1.2,
     .budget_share = 0.4,
     .swaps = false},
    {.per_structure = 8,
     .max_estimate_ratio = 1.6,
     .climbs = 4,
     .max_step_ratio = 1.2,
     .budget_share = 0.4,
     .swaps = false},
    {.per_structure = kNoLimit,
     .max_estimate_ratio = 1e30,
     .climbs = kNoLimit,
     .max_step_ratio = 1.6,
     .budget_share = 1,
     .swaps = true},
};

/// Equal for sketches that differ in microbatches and order only.
std::string structure_of(const RankedSketch& ranked) {
  const SketchGroup& group = ranked.sketch.groups[0];
  return fmt::format("{}/{},{}{}{}", fmt::join(ranked.classes, " "), ranked.sketch.groups.size(),
                     fmt::join(group.attention, ","), group.mixed ? "m" : "", group.by_speed ? "s" : "");
}

class Search {
 public:
  explicit Search(const PlanRequest& request) : request_(request), evaluator_(request) {}

  PlanResult run() {
    PlanResult result;
    std::optional<Shortage> nearest_miss;
    ranked_ = rank_sketches(evaluator_.rates(), nearest_miss);
    result.num_sketches = static_cast<i64>(ranked_.size());
    simulate_named();
    for (const Round& round : kRounds) {
      simulate_promising(round);
      if (&round == kRounds) simulate_fixed();
      improve(round);
    }
    result.num_simulated = evaluator_.num_simulated();
    if (evaluator_.size() == 0) {
      result.infeasible =
          nearest_miss ? to_string(evaluator_.rates(), *nearest_miss) : evaluator_.last_overfill();
    }
    result.tried = reported_candidates(request_, evaluator_, named_);
    explain(result);
    return result;
  }

 private:
  bool has_best() const { return evaluator_.best() >= 0; }
  Seconds best_step() const { return evaluator_.step_of(evaluator_.best()); }

  /// One type alone, the newest among them: reported whatever else wins.
  void simulate_named() {
    std::vector<int> taken(evaluator_.rates().num_classes(), 0);
    for (const RankedSketch& ranked : ranked_) {
      if (ranked.classes.size() != 1) continue;
      int& count = taken[ranked.classes[0]];
      if (count < 2 && evaluator_.evaluate(ranked.sketch) >= 0) ++count;
    }
  }

  void simulate_promising(const Round& round) {
    std::map<std::string, i64> structures;
    const i64 reserve = evaluator_.budget() / 3;  // for improving the winner
    for (const RankedSketch& ranked : ranked_) {
      if (evaluator_.budget() <= reserve && has_best()) break;
      if (has_best() && ranked.estimate.step > round.max_estimate_ratio * best_step()) break;
      i64& count = structures[structure_of(ranked)];
      if (count >= round.per_structure) continue;
      if (evaluator_.evaluate(ranked.sketch) >= 0) ++count;
    }
  }

  void simulate_fixed() {
    for (const Strategy& strategy : strategies()) {
      const bool reported = strategy.name == "ep" || strategy.name == "single";
      std::vector<std::pair<Seconds, Plan>> plans = fixed_plans(strategy);
      std::stable_sort(plans.begin(), plans.end(), [](auto& a, auto& b) { return a.first < b.first; });
      bool any = false;
      for (auto& [bound, plan] : plans) {
        const bool may_win = !has_best() || bound < best_step();
        if (!may_win && (any || !reported)) continue;
        const i64 index = evaluator_.evaluate(std::move(plan), nullptr);
        if (index < 0) continue;
        any = true;
        if (reported) keep_best(strategy.name == "ep" ? named_.ep : named_.single, index);
      }
      if (reported && !any && !plans.empty()) named_.unfit[strategy.name] = evaluator_.last_overfill();
    }
  }

  void keep_best(i64& kept, i64 index) const {
    if (kept < 0 || evaluator_.step_of(index) < evaluator_.step_of(kept)) kept = index;
  }

  /// Plans of a strategy as anyone would ask for it, with a lower bound of their step.
  std::vector<std::pair<Seconds, Plan>> fixed_plans(const Strategy& strategy) const {
    std::vector<std::pair<Seconds, Plan>> out;
    if (!request_.limits.idle.empty()) return out;
    if (request_.cluster.num_devices() < 2 && strategy.name != "single") return out;
    for (const i64 microbatches : microbatch_choices(request_.sequences, request_.limits.max_microbatches)) {
      StrategyRequest ask;
      ask.seq_len = request_.seq_len;
      ask.sequences = request_.sequences;
      ask.microbatches = microbatches;
      Plan plan = strategy.make(request_.model, request_.cluster, ask);
      const Plan blank = blank_plan(request_, plan.recompute);
      plan.dtype = blank.dtype;
      plan.wire_forward = blank.wire_forward, plan.wire_backward = blank.wire_backward;
      const Seconds bound = lane_bound(evaluator_.rates(), plan);
      out.emplace_back(bound, std::move(plan));
    }
    return out;
  }

  /// Climbs from the best plan, then from the best plans of other kinds.
  void improve(const Round& round) {
    const std::vector<i64> order = evaluator_.by_step();
    std::set<std::string> kinds;
    const i64 budget = evaluator_.budget();
    Climb climb(request_, evaluator_, budget - static_cast<i64>(round.budget_share * real(budget)));
    for (const i64 start : order) {
      if (!climb.may_go_on() || static_cast<i64>(kinds.size()) >= round.climbs ||
          evaluator_.step_of(start) > round.max_step_ratio * best_step())
        return;
      if (!kinds.insert(evaluator_.at(start).candidate.name).second) continue;
      climb.run(start, round.swaps);
    }
  }

  const PlanRequest& request_;
  Evaluator evaluator_;
  std::vector<RankedSketch> ranked_;
  NamedPlans named_;
};

}  // namespace

PlanResult find_plan(const PlanRequest& request) {
  const PlanRequest settled = checked(request);
  return Search(settled).run();
}

}  // namespace hetermoe
