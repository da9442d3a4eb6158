#include "hetermoe/planner/search/team_plans.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/planner/search/blocks.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/planner/strategies/teams.h"

namespace hetermoe {
namespace {

constexpr i64 kMostStages = 64, kMostGroups = 64;

class TeamMaker {
 public:
  explicit TeamMaker(const Rates& rates) : rates_(rates), request_(rates.request()) {
    for (DeviceId d = 0; d < request_.cluster.num_devices(); ++d) devices_.push_back(d);
    const Plan figures = blank_plan(request_, Recompute::kLocal);
    speeds_ = team_speeds(request_.model, *predictor_of(request_).cost(figures), devices_, request_.seq_len);
  }

  std::vector<Plan> all() {
    const auto devices = static_cast<i64>(devices_.size());
    for (const i64 stages : kRoundNumbers) {
      if (stages > std::min({kMostStages, request_.model.num_layers, devices / 2})) break;
      for (const i64 groups : kRoundNumbers) {
        if (groups > std::min({kMostGroups, request_.sequences, devices / stages / 2})) break;
        if (devices % (stages * groups) == 0) add_teams(stages, groups, devices / stages / groups);
      }
    }
    return std::move(out_);
  }

 private:
  /// of_stage: devices.
  void add_teams(i64 stages, i64 groups, i64 of_stage) {
    const i64 sequences = request_.sequences / groups;
    for (i64 team = 2; team <= of_stage; ++team) {
      const i64 teams = of_stage / team;
      if (of_stage % team != 0 || teams > sequences || team > request_.model.num_heads) continue;
      // So that a microbatch has one sequence for each team.
      const i64 count = std::clamp<i64>(sequences / teams, 1, request_.limits.max_microbatches);
      add(stages, groups, team, count);
    }
  }

  void add(i64 stages, i64 groups, i64 team, i64 microbatches) {
    const std::vector<i64> sequences =
        proportional_split(request_.sequences, std::vector<double>(idx(groups), 1));
    const i64 each = static_cast<i64>(devices_.size()) / groups;
    Plan plan;
    for (i64 g = 0; g < groups; ++g) {
      const auto part = [&](const auto& all) {
        return std::vector(all.begin() + g * each, all.begin() + (g + 1) * each);
      };
      StrategyRequest ask;
      ask.seq_len = request_.seq_len;
      ask.sequences = sequences[idx(g)];
      ask.microbatches = microbatches;
      ask.attention = part(devices_);
      ask.attention_weights = part(speeds_.tokens), ask.head_weights = part(speeds_.heads);
      ask.team = {team};
      ask.stages = stages > 1 ? stages : 0;
      Plan made = find_strategy(stages > 1 ? "pp_ep" : "sp_ep").make(request_.model, request_.cluster, ask);
      if (g == 0)
        plan = std::move(made);
      else
        plan.groups.push_back(std::move(made.groups[0]));
    }
    take_dtypes(plan, blank_plan(request_, Recompute::kLocal));
    plan.recompute = Recompute::kAhead;
    plan.shard_optimizer = request_.limits.shard_optimizer;
    out_.push_back(plan);
    if (!request_.limits.shard_optimizer) return;
    shard_weights(plan);
    out_.push_back(std::move(plan));
  }

  const Rates& rates_;
  const PlanRequest& request_;
  std::vector<DeviceId> devices_;
  TeamSpeeds speeds_;
  std::vector<Plan> out_;
};

}  // namespace

std::vector<Plan> team_plans(const Rates& rates) { return TeamMaker(rates).all(); }

}  // namespace hetermoe
