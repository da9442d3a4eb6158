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
constexpr double kLongSequence = 0.1;  ///< inputs of all layers of one sequence over the memory of a device

/// Teams on some devices, in the order of the cluster.
class TeamMaker {
 public:
  /// experts: devices that own all experts; empty = those of the teams do.
  TeamMaker(const Rates& rates, std::vector<DeviceId> devices, std::vector<DeviceId> experts = {})
      : request_(rates.request()), devices_(std::move(devices)), experts_(std::move(experts)) {
    const Plan figures = blank_plan(request_, Recompute::kLocal);
    speeds_ = team_speeds(request_.model, *predictor_of(request_).cost(figures), devices_, request_.seq_len);
  }

  void add_to(std::vector<Plan>& out) {
    const auto devices = static_cast<i64>(devices_.size());
    if (!experts_.empty()) {
      add_teams(1, 1, devices);
      out.insert(out.end(), out_.begin(), out_.end());
      return;
    }
    for (const i64 stages : kRoundNumbers) {
      if (stages > std::min({kMostStages, request_.model.num_layers, devices / 2})) break;
      for (const i64 groups : kRoundNumbers) {
        if (groups > std::min({kMostGroups, request_.sequences, devices / stages / 2})) break;
        if (devices % (stages * groups) == 0) add_teams(stages, groups, devices / stages / groups);
      }
    }
    out.insert(out.end(), out_.begin(), out_.end());
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
      ask.experts = experts_;
      ask.stages = stages > 1 ? stages : 0;
      const char* const strategy = !experts_.empty() ? "zebra" : stages > 1 ? "pp_ep" : "sp_ep";
      Plan made = find_strategy(strategy).make(request_.model, request_.cluster, ask);
      if (g == 0)
        plan = std::move(made);
      else
        plan.groups.push_back(std::move(made.groups[0]));
    }
    take_dtypes(plan, blank_plan(request_, Recompute::kLocal));
    plan.recompute = Recompute::kAhead;
    plan.shard_optimizer = request_.limits.shard_optimizer;
    keep(plan, microbatches);
    if (!request_.limits.shard_optimizer) return;
    shard_weights(plan);
    keep(plan, microbatches);
  }

  /// With one microbatch in a window, and with two, which hide each other's exchanges.
  void keep(Plan plan, i64 microbatches) {
    plan.window = 1;
    out_.push_back(plan);
    plan.window = 2;
    if (microbatches > 1) out_.push_back(std::move(plan));
  }

  const PlanRequest& request_;
  const std::vector<DeviceId> devices_, experts_;
  TeamSpeeds speeds_;
  std::vector<Plan> out_;
};

}  // namespace

bool may_need_teams(const Rates& rates) {
  const PlanRequest& request = rates.request();
  if (request.sequences < request.cluster.num_devices()) return true;
  Bytes most = 0;
  for (std::size_t c = 0; c < rates.num_classes(); ++c) most = std::max(most, rates.usable_memory(c));
  const Bytes inputs = real(request.model.num_layers * request.seq_len) *
                       row_bytes(request.model, bytes_of(request.dtype));
  return inputs > kLongSequence * most;
}

std::vector<Plan> team_plans(const Rates& rates) {
  std::vector<Plan> out;
  std::vector<DeviceId> devices;
  const auto sorted = [](std::vector<DeviceId> some) {
    std::sort(some.begin(), some.end());
    return some;
  };
  // The classes that are best at attention alone, then more of them; the others may own the experts.
  for (std::size_t c = 0; c < rates.num_classes(); ++c) {
    const std::vector<DeviceId>& more = rates.classes()[c].devices;
    devices.insert(devices.end(), more.begin(), more.end());
    TeamMaker(rates, sorted(devices)).add_to(out);
    if (rates.request().model.num_moe_layers() == 0) continue;
    std::vector<DeviceId> others;
    for (std::size_t o = c + 1; o < rates.num_classes(); ++o)
      others.insert(others.end(), rates.classes()[o].devices.begin(), rates.classes()[o].devices.end());
    if (!others.empty()) TeamMaker(rates, sorted(devices), sorted(others)).add_to(out);
  }
  return out;
}

}  // namespace hetermoe
