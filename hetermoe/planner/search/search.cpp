#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/estimate/host_use.h"
#include "hetermoe/planner/request_check.h"
#include "hetermoe/planner/search/advice.h"
#include "hetermoe/planner/search/climb.h"
#include "hetermoe/planner/search/cluster_part.h"
#include "hetermoe/planner/search/fixed_plans.h"
#include "hetermoe/planner/search/good_sequences.h"
#include "hetermoe/planner/search/head_part_plans.h"
#include "hetermoe/planner/search/layer_residence.h"
#include "hetermoe/planner/search/leave_out.h"
#include "hetermoe/planner/search/mixed_stages.h"
#include "hetermoe/planner/search/narrow_wires.h"
#include "hetermoe/planner/search/node_row_plans.h"
#include "hetermoe/planner/search/node_stages.h"
#include "hetermoe/planner/search/pipeline_layers.h"
#include "hetermoe/planner/search/pipeline_shapes.h"
#include "hetermoe/planner/search/result.h"
#include "hetermoe/planner/search/search.h"
#include "hetermoe/planner/search/sketches.h"
#include "hetermoe/planner/search/team_plans.h"
#include "hetermoe/planner/strategies/depth_groups.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/planner/words/explain.h"

// Rank sketches, simulate the promising ones and every fixed strategy that could win, then improve the
// winner.
namespace hetermoe {
namespace {

constexpr i64 kNoLimit = 1 << 30;
constexpr double kBinds = 0.995;       ///< a bound binds when estimates without it are lower by more
constexpr i64 kBoundedPlans = 8;       ///< with several types in a stage, or depth groups, that are simulated
constexpr i64 kGoodSequences = 8;      ///< such a part of the budget for each number of sequences near it
constexpr i64 kFewDevicesToVary = 64;  ///< of clusters where single layers of pipelines are moved
constexpr i64 kMostNearby = 300;       ///< devices of a cluster whose parts are searched, too

/// How wide the search is. Rounds go on while the budget lasts: on small instances, where simulations are
/// cheap, to the sketches that the estimate misjudges.
struct Round {
  i64 per_structure;          ///< sketches simulated that differ in microbatches and order only
  i64 per_grouping;           ///< sketches simulated of the same classes in as many groups
  double max_estimate_ratio;  ///< estimate over the best simulated step, of sketches that are simulated
  i64 sketch_climbs;          ///< from the best plans of so many kinds, by sketches alone
  double max_step_ratio;      ///< step over the best one, of plans that are improved
  double budget_share;        ///< of the budget that is left, for climbs
};

/// Most estimates are 20 % below to 5 % above the simulator.
constexpr Round kRounds[] = {
    {.per_structure = 2,
     .per_grouping = 6,
     .max_estimate_ratio = 1.1,
     .sketch_climbs = 6,
     .max_step_ratio = 1.2,
     .budget_share = 0.4},
    {.per_structure = 8,
     .per_grouping = kNoLimit,
     .max_estimate_ratio = 1.6,
     .sketch_climbs = 8,
     .max_step_ratio = 1.2,
     .budget_share = 0.4},
};

constexpr i64 kMostToJudge = 40'000'000;  ///< op-device visits of a simulation that only asks for memory

/// Equal for sketches that differ in microbatches and order only.
std::string structure_of(const RankedSketch& ranked) {
  std::string structure;
  const SketchGroup* before = nullptr;
  i64 run = 0;
  for (const SketchGroup& group : ranked.sketch.groups) {
    ++run;
    const bool same =
        before != nullptr && before->count == group.count && before->attention == group.attention;
    if (!same) {
      structure +=
          fmt::format("{}|{}/{}{}{}", run, fmt::join(group.count, ","), fmt::join(group.attention, ","),
                      group.mixed ? "m" : "", group.by_speed ? "s" : "");
      run = 0;
    }
    before = &group;
  }
  return structure + fmt::format("{}", run);
}

class Search {
 public:
  explicit Search(const PlanRequest& request)
      : request_(request), evaluator_(request), choice_(evaluator_.rates()) {}

  PlanResult run() {
    search();
    return result();
  }

 private:
  void search() {
    search_all();
    search_nearby();
    climb_winner_by_layer(request_, evaluator_, choice_);
    evaluate_residences(evaluator_);
    evaluate_head_parts(evaluator_);
    for (const Plan& plan : request_.known) evaluator_.evaluate_known(plan);
  }

  void search_all() {
    ranking_ = rank_sketches(evaluator_.rates());
    simulate_named();
    simulate_pipelines();
    for (const Round& round : kRounds) {
      simulate_promising(round);
      if (&round == kRounds) simulate_fixed();
      improve(round);
    }
    climb_by_layer(request_, evaluator_, choice_);
    simulate_more_pipelines();
    if (request_.limits.node_rows) evaluate_node_rows(evaluator_, request_.cluster);
    if (evaluator_.empty()) simulate_any();
  }

  /// What is true of a part of the cluster is true of the cluster, and a plan of a few sequences more has
  /// room for these: whole nodes alone, and a number of sequences that divides well, leave the search less to
  /// tell apart.
  void search_nearby() {
    if (request_.cluster.num_devices() > kMostNearby || is_beyond_all_memory(request_)) return;
    const Plan best = has_best() ? evaluator_.plan_of(evaluator_.best()) : Plan();
    for (const std::vector<DeviceId>& outside : devices_to_leave_out(request_.cluster, best)) {
      const ClusterPart part = part_without(request_.cluster, outside);
      PlanRequest fewer = request_;
      fewer.cluster = part.cluster;
      std::optional<Plan> plan = best_plan(fewer);
      if (!plan) continue;
      number_back(*plan, part, request_);
      evaluator_.evaluate_at_any_cost(std::move(*plan));
    }
    PlanRequest more = request_;
    more.sequences = rounded_up(request_.sequences);
    const i64 over = more.sequences - request_.sequences;
    if (over == 0) return;
    more.limits.max_microbatches += over;
    const std::optional<Plan> plan = best_plan(more);
    std::optional<Plan> less = plan ? with_fewer(*plan, over) : std::nullopt;
    if (less && std::ranges::all_of(less->groups, [&](const Group& group) {
          return std::ssize(group.microbatches) <= request_.limits.max_microbatches;
        }))
      evaluator_.evaluate_at_any_cost(std::move(*less));
  }

  static std::optional<Plan> best_plan(const PlanRequest& request) {
    Search other(request);
    other.search_all();
    other.evaluator_.settle_best(kMostToJudge);
    if (!other.has_best()) return {};
    return other.evaluator_.plan_of(other.evaluator_.best());
  }

  PlanResult result() {
    evaluator_.settle_best(kMostToJudge);
    PlanResult result;
    result.num_sketches = static_cast<i64>(ranking_.sketches.size()) + num_pipelines_;
    result.num_simulated = evaluator_.num_simulated();
    if (evaluator_.empty()) {
      result.infeasible =
          ranking_.shortage ? to_string(evaluator_.rates(), *ranking_.shortage) : evaluator_.last_overfill();
      result.advice = advice(shortfall(evaluator_.rates()));
    } else {
      result.others_lack = others_lack();
      result.newer_unfit = request_.newer_unfit;
    }
    result.bounds = bounds();
    result.tried = reported_candidates(request_, evaluator_, named_);
    if (result.feasible()) {
      result.expected = expected_of(request_, result.best().plan);
      result.good_sequences =
          good_sequences(request_, result.best(), evaluator_.whole_budget() / kGoodSequences);
      result.narrow_wires = narrow_wires(request_, result.best(), evaluator_.whole_budget() / kGoodSequences);
    }
    for (DeviceId d = 0; d < request_.cluster.num_devices(); ++d)
      result.device_types.push_back(request_.cluster.type_of(d).name);
    explain(result);
    return result;
  }

  bool has_best() const { return evaluator_.best() >= 0; }
  Seconds best_step() const { return evaluator_.step_of(evaluator_.best()); }
  Seconds step_to_beat() const { return has_best() ? best_step() : kNever; }

  /// One type alone, the newest among them, several types, all devices: reported whatever else wins. And
  /// groups that do not share nodes, which estimates rank too low where links inside a node are much faster.
  void simulate_named() {
    struct Tries {
      int left = 4, wanted = 2;

      bool over() const { return left == 0 || wanted == 0; }
      void count(bool simulated) { --left, wanted -= simulated ? 1 : 0; }
    };
    std::vector<Tries> of_class(evaluator_.rates().num_classes());
    Tries mixed, all, whole_nodes;
    all.wanted = 1;
    whole_nodes.left = 40, whole_nodes.wanted = 4;  // the first ones by estimate often have no room
    for (const RankedSketch& ranked : ranking_.sketches) {
      Tries& tries = ranked.classes.size() == 1 ? of_class[ranked.classes[0]] : mixed;
      const bool whole = uses_all(ranked.sketch);
      const bool apart = !whole_nodes.over() && keeps_to_nodes(ranked.sketch);
      if (tries.over() && (!whole || all.over()) && !apart) continue;
      const bool simulated = evaluator_.evaluate(ranked.sketch) >= 0;
      if (!tries.over()) tries.count(simulated);
      if (whole && !all.over()) all.count(simulated);
      if (apart) whole_nodes.count(simulated);
    }
  }

  /// Groups take whole nodes of a type, or so many devices that nodes hold whole groups.
  bool keeps_to_nodes(const Sketch& sketch) const {
    const std::vector<DeviceClass>& classes = evaluator_.rates().classes();
    for (const SketchGroup& group : sketch.groups) {
      for (std::size_t c = 0; c < classes.size(); ++c) {
        const auto per_node = static_cast<i64>(std::llround(classes[c].per_node));
        if (group.count[c] > 0 && group.count[c] % per_node != 0 && per_node % group.count[c] != 0)
          return false;
      }
    }
    return sketch.groups.size() > 1;
  }

  bool uses_all(const Sketch& sketch) const {
    std::size_t used = 0, all = 0;
    for (const SketchGroup& group : sketch.groups) {
      for (const i64 count : group.count) used += idx(count);
    }
    for (const DeviceClass& cls : evaluator_.rates().classes()) all += cls.devices.size();
    return used == all;
  }

  /// What keeps all plans with any but the newest type from having room; empty = some have.
  std::string others_lack() const {
    const Rates& rates = evaluator_.rates();
    const i32 newest = request_.cluster.devices[idx(default_roles(request_.cluster).attention.at(0))].type;
    for (const RankedSketch& ranked : ranking_.sketches) {
      for (const std::size_t c : ranked.classes) {
        if (rates.classes()[c].type != newest) return "";
      }
    }
    for (std::size_t c = 0; c < rates.num_classes(); ++c) {
      const std::optional<Shortage>& shortage = ranking_.shortage_besides[c];
      if (rates.classes()[c].type != newest || !shortage) continue;
      return fmt::format("the nearest miss by {}: {}",
                         memory_text(shortage->need - rates.usable_memory(shortage->cls)),
                         to_string(rates, *shortage));
    }
    return "";
  }

  /// Bounds of the search that kept it from something better, or from looking.
  std::vector<std::string> bounds() const {
    std::vector<std::string> out;
    if (ranking_.most_groups > 0) {
      out.push_back(fmt::format("Bound of the search: plans of more than {} groups were not looked at.",
                                ranking_.most_groups));
    }
    if (promising_left_ > 0) {
      out.push_back(
          fmt::format("Bound of the search: its budget ran out with {} promising sketches not simulated.",
                      promising_left_));
    }
    if (request_.limits.max_microbatches < request_.sequences) add_microbatch_bound(out);
    return out;
  }

  /// Whether the request's bound rules out something faster, by estimate.
  void add_microbatch_bound(std::vector<std::string>& out) const {
    PlanRequest wider = request_;
    wider.limits.max_microbatches = wider.sequences;
    const Rates rates(wider);
    const std::vector<RankedSketch> sketches = rank_sketches(rates).sketches;
    if (sketches.empty()) return;
    const bool none = ranking_.sketches.empty();
    if (!none && sketches.front().estimate.step > kBinds * ranking_.sketches.front().estimate.step) return;
    out.push_back(fmt::format(
        "Bound of the search: with more than {} {}.", counted(request_.limits.max_microbatches, "microbatch"),
        none ? "plans fit"
             : fmt::format("plans are {:.2f} times as fast by estimate",
                           ranking_.sketches.front().estimate.step / sketches.front().estimate.step)));
  }

  void simulate_promising(const Round& round) {
    std::map<std::string, i64> structures, groupings;
    const i64 reserve = evaluator_.budget() / 3;  // for improving the winner
    const bool first = &round == kRounds;
    for (const RankedSketch& ranked : ranking_.sketches) {
      if (has_best() && ranked.estimate.step > round.max_estimate_ratio * best_step()) break;
      i64& count = structures[structure_of(ranked)];
      i64& alike =
          groupings[fmt::format("{}/{}", fmt::join(ranked.classes, " "), ranked.sketch.groups.size())];
      if (count >= round.per_structure || alike >= round.per_grouping) continue;
      if (evaluator_.budget() <= reserve) {
        if (!first || !has_best()) break;
        if (ranked.estimate.step < best_step()) ++promising_left_;
        continue;
      }
      if (evaluator_.evaluate(ranked.sketch) >= 0) ++count, ++alike;
    }
  }

  /// Where every plan is dear, the first one that has room is better than none.
  void simulate_any() {
    evaluator_.forget_budget();
    for (const RankedSketch& ranked : ranking_.sketches) {
      if (evaluator_.evaluate(ranked.sketch) >= 0) return;
    }
  }

  /// Reported even when they lose.
  void simulate_fixed() {
    simulate_fixed("ep", named_.ep);
    simulate_fixed("single", named_.single);
    i64 pipeline = evaluator_.best();  // whose stages may have devices of several nodes
    if (request_.cluster.num_devices() <= kSmallCluster && has_best()) simulate_fixed("pp-ep", pipeline);
  }

  void simulate_fixed(const std::string& name, i64& kept) {
    const Strategy& strategy = find_strategy(name);
    if (!misfit(strategy, request_.model, request_.cluster).empty()) return;
    std::vector<std::pair<Seconds, Plan>> plans = fixed_plans(evaluator_.rates(), strategy);
    std::stable_sort(plans.begin(), plans.end(), [](auto& a, auto& b) { return a.first < b.first; });
    for (auto& [bound, plan] : plans) {
      if (kept >= 0 && bound >= best_step()) continue;
      const i64 index = evaluate_fixed(std::move(plan));
      if (index >= 0 && (kept < 0 || evaluator_.step_of(index) < evaluator_.step_of(kept))) kept = index;
    }
    if (kept < 0 && !plans.empty()) named_.unfit[name] = evaluator_.last_overfill();
  }

  /// Each device has some layers alone. What they take of the budget others get back, up to a part of it.
  void simulate_pipelines() {
    const i64 budget = evaluator_.budget();
    const PipelineRanking ranking = rank_pipelines(evaluator_.rates(), step_to_beat());
    num_pipelines_ = ranking.num_weighed;
    evaluate_ranked(evaluator_, ranking,
                    request_.cluster.num_devices() <= kSmallCluster ? kFewDevicesPipelines : kPipelines);
    if (evaluator_.empty() && !ranking.shapes.empty()) {
      evaluator_.forget_budget();  // one is better than none
      for (std::size_t i = 0; i < ranking.shapes.size() && !has_best(); ++i)
        evaluator_.evaluate(make_pipeline(evaluator_.rates(), ranking.shapes[i]));
    }
    simulate_mixed_stages();
    if (request_.cluster.num_devices() <= kFewDevicesToVary) evaluate_borders(evaluator_, request_.model);
    simulate_depth();
    evaluate_teams(evaluator_);
    evaluate_interleaved(evaluator_, request_.model);
    evaluator_.add_budget(std::min(budget - evaluator_.budget(), evaluator_.whole_budget() / 4));
  }

  /// As many as in small clusters, when all else is done: they take nothing that the search has for other
  /// plans.
  void simulate_more_pipelines() {
    const i64 devices = request_.cluster.num_devices();
    if (devices <= kSmallCluster || devices > kMiddleCluster) return;
    const std::pair<i64, i64> before = evaluator_.budgets();
    evaluator_.add_budget(std::max<i64>(0, evaluator_.whole_budget() / 2 - evaluator_.budget()));
    evaluate_ranked(evaluator_, rank_pipelines(evaluator_.rates(), step_to_beat()), kFewDevicesPipelines);
    evaluate_borders(evaluator_, request_.model);
    evaluator_.give_back(before);
  }

  /// Types may also meet inside of stages: on each node of mixed ones, and where a pipeline is best or
  /// nothing has room without one.
  void simulate_mixed_stages() {
    simulate_bounded(node_pipelines(evaluator_.rates(), step_to_beat()));
    if (has_best() && !evaluator_.is_pipeline(evaluator_.best())) return;
    simulate_bounded(mixed_pipelines(evaluator_.rates(), step_to_beat()));
  }

  /// Devices that have every so-maniest layer alone hold less, and exchange with fewer others.
  /// They are few, and take nothing of the budget.
  void simulate_depth() {
    const i64 budget = evaluator_.budget();
    simulate_bounded(depth_plans(evaluator_.rates(), step_to_beat()));
    simulate_bounded(allocated_depth_plans(evaluator_.rates(), step_to_beat()));
    evaluator_.add_budget(budget - evaluator_.budget());
  }

  /// Some of those whose bounds may win, the lowest first.
  void simulate_bounded(std::vector<std::pair<Seconds, Plan>> plans) {
    i64 left = kBoundedPlans;
    for (auto& [bound, plan] : plans) {
      if (left == 0 || evaluator_.budget() <= 0 || (has_best() && bound >= best_step())) break;
      if (plan.order == OrderPolicy::kTimed)
        plan.expected = expected_times(plan, request_.model, request_.cluster, *evaluator_.cost(plan));
      if (evaluator_.evaluate(std::move(plan)) >= 0) --left;
    }
  }

  /// The optimizer is sharded where the plan has no room otherwise.
  i64 evaluate_fixed(Plan plan) {
    const i64 index = evaluator_.evaluate(plan);
    if (index >= 0 || plan.shard_optimizer || !request_.limits.shard_optimizer) return index;
    plan.shard_optimizer = true;
    return evaluator_.evaluate(std::move(plan));
  }

  /// Climbs from the best plan and from the best plans of other kinds.
  void improve(const Round& round) {
    const i64 budget = evaluator_.budget();
    Climb climb(request_, evaluator_, choice_, budget - static_cast<i64>(round.budget_share * real(budget)));
    climb_from_best(climb, round);
  }

  void climb_from_best(Climb& climb, const Round& round) {
    const std::vector<i64> order = evaluator_.by_step();
    std::set<std::string> kinds;
    for (const i64 start : order) {
      if (!climb.may_go_on() || static_cast<i64>(kinds.size()) >= round.sketch_climbs ||
          evaluator_.step_of(start) > round.max_step_ratio * best_step())
        return;
      if (kinds.insert(evaluator_.at(start).candidate.name).second) climb.run(start);
    }
  }

  const PlanRequest& request_;
  Evaluator evaluator_;
  GroupChoice choice_;
  SketchRanking ranking_;
  NamedPlans named_;
  i64 num_pipelines_ = 0;   ///< weighed by estimate
  i64 promising_left_ = 0;  ///< sketches with an estimate below the best step that had to be left
};

}  // namespace

PlanResult search_plans(const PlanRequest& request) { return Search(request).run(); }

}  // namespace hetermoe
