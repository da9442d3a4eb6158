#include "hetermoe/planner/search/team_plans.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/planner/search/blocks.h"
#include "hetermoe/planner/strategies/teams.h"

namespace hetermoe {
namespace {

constexpr i64 kMostTeamStages = 64, kMostTeamGroups = 64;
constexpr i64 kTried = 1536,
              kLeastTried = 4;         ///< plans that have room, times devices; at least so many plans, and
constexpr double kFarther = 1.2;       ///< all whose ratio is at most so many times that of the first of them
constexpr double kBetweenNodes = 1.3;  ///< how much longer a step is expected to take whose teams span nodes
constexpr double kFarBehind = 1.25;  ///< step over the best one, of teams that no window brings to the front
constexpr double kLongSequence = 0.1;  ///< inputs of all layers of one sequence over the memory of a device

/// Devices that teams may be made of, in the order of the cluster.
struct TeamDevices {
  std::vector<DeviceId> attention, experts;  ///< experts: none = those with attention own them, too
  TeamSpeeds speeds;                         ///< of those with attention
};

/// How a plan has teams.
struct TeamShape {
  std::shared_ptr<const TeamDevices> devices;
  i64 stages = 1, groups = 1, team = 2, microbatches = 1;
  i32 window = 1;
  bool shards_weights = false;
  double ratio = 1;  ///< what its step is expected to take over the shortest that there could be

  bool has_teams_of(const TeamShape& other) const {
    return devices == other.devices && stages == other.stages && groups == other.groups && team == other.team;
  }
};

/// The shapes of some devices.
class Shapes {
 public:
  Shapes(const PlanRequest& request, std::shared_ptr<const TeamDevices> devices)
      : request_(request), devices_(std::move(devices)) {
    std::vector<i64> of_node(request.cluster.nodes.size(), 0);
    for (const DeviceId device : devices_->attention) ++of_node[idx(request.cluster.node_of(device))];
    most_of_node_ = *std::max_element(of_node.begin(), of_node.end());
  }

  void add_to(std::vector<TeamShape>& out) const {
    const auto devices = static_cast<i64>(devices_->attention.size());
    const bool apart = !devices_->experts.empty();
    for (const i64 stages : kRoundNumbers) {
      if (stages > std::min({apart ? 1 : kMostTeamStages, request_.model.num_layers, devices / 2})) break;
      for (const i64 groups : kRoundNumbers) {
        if (groups > std::min({apart ? 1 : kMostTeamGroups, request_.sequences, devices / stages / 2})) break;
        if (devices % (stages * groups) == 0) add_teams(stages, groups, devices / stages / groups, out);
      }
    }
  }

 private:
  /// of_stage: devices.
  void add_teams(i64 stages, i64 groups, i64 of_stage, std::vector<TeamShape>& out) const {
    const i64 sequences = request_.sequences / groups;
    for (i64 team = 2; team <= of_stage; ++team) {
      const i64 teams = of_stage / team;
      if (of_stage % team != 0 || teams > sequences || team > request_.model.num_heads) continue;
      TeamShape shape{.devices = devices_, .stages = stages, .groups = groups, .team = team};
      // So that a microbatch has one sequence for each team.
      shape.microbatches = std::clamp<i64>(sequences / teams, 1, request_.limits.max_microbatches);
      const double waits = 1 + real(stages - 1) / real(shape.microbatches);
      const double idle = std::max(1.0, real(teams * shape.microbatches) / real(sequences));
      shape.ratio = waits * idle * (team > most_of_node_ ? kBetweenNodes : 1);
      for (const bool shards : {false, true}) {
        if (shards && !request_.limits.shard_optimizer) continue;
        shape.shards_weights = shards;
        // Two in a window hide each other's exchanges.
        shape.window = shape.microbatches > 1 ? 2 : 1;
        out.push_back(shape);
        if (std::exchange(shape.window, 1) > 1) out.push_back(shape);
      }
    }
  }

  const PlanRequest& request_;
  std::shared_ptr<const TeamDevices> devices_;
  i64 most_of_node_ = 0;  ///< of the devices with attention
};

std::vector<DeviceId> devices_of(const Rates& rates, std::size_t first, std::size_t end) {
  std::vector<DeviceId> devices;
  for (std::size_t c = first; c < end; ++c) {
    const std::vector<DeviceId>& more = rates.classes()[c].devices;
    devices.insert(devices.end(), more.begin(), more.end());
  }
  std::sort(devices.begin(), devices.end());
  return devices;
}

bool may_need_teams(const Rates& rates) {
  const PlanRequest& request = rates.request();
  if (request.sequences < request.cluster.num_devices()) return true;
  Bytes most = 0;
  for (std::size_t c = 0; c < rates.num_classes(); ++c) most = std::max(most, rates.usable_memory(c));
  const Bytes inputs =
      real(request.model.num_layers * request.seq_len) * row_bytes(request.model, bytes_of(request.dtype));
  return inputs > kLongSequence * most;
}

/// Those first that wait least for pipelines to fill and for exchanges between nodes.
std::vector<TeamShape> rank_teams(const Evaluator& evaluator) {
  const Rates& rates = evaluator.rates();
  const PlanRequest& request = rates.request();
  const std::size_t classes = rates.num_classes();
  const std::unique_ptr<CostModel> cost = evaluator.cost(blank_plan(request, Recompute::kLocal));
  std::vector<TeamShape> shapes;
  for (std::size_t c = 1; c <= classes; ++c) {
    TeamDevices devices{devices_of(rates, 0, c), {}, {}};
    devices.speeds = team_speeds(request.model, *cost, devices.attention, request.seq_len);
    Shapes(request, std::make_shared<TeamDevices>(devices)).add_to(shapes);
    devices.experts = devices_of(rates, c, classes);
    if (request.model.num_moe_layers() > 0 && !devices.experts.empty())
      Shapes(request, std::make_shared<TeamDevices>(devices)).add_to(shapes);
  }
  std::stable_sort(shapes.begin(), shapes.end(),
                   [](const TeamShape& a, const TeamShape& b) { return a.ratio < b.ratio; });
  return shapes;
}

Plan make_team_plan(const PlanRequest& request, const TeamShape& shape) {
  const TeamDevices& devices = *shape.devices;
  const std::vector<i64> sequences =
      proportional_split(request.sequences, std::vector<double>(idx(shape.groups), 1));
  const i64 each = static_cast<i64>(devices.attention.size()) / shape.groups;
  const char* const strategy = !devices.experts.empty() ? "zebra" : shape.stages > 1 ? "pp-ep" : "sp-ep";
  Plan plan;
  for (i64 g = 0; g < shape.groups; ++g) {
    const auto part = [&](const auto& all) {
      return std::vector(all.begin() + g * each, all.begin() + (g + 1) * each);
    };
    StrategyRequest ask;
    ask.seq_len = request.seq_len;
    ask.sequences = sequences[idx(g)];
    ask.microbatches = std::min(shape.microbatches, ask.sequences);
    ask.attention = part(devices.attention);
    ask.attention_weights = part(devices.speeds.tokens), ask.head_weights = part(devices.speeds.heads);
    ask.experts = devices.experts;
    ask.team = {shape.team};
    ask.stages = shape.stages > 1 ? shape.stages : 0;
    Plan made = find_strategy(strategy).make(request.model, request.cluster, ask);
    if (g == 0)
      plan = std::move(made);
    else
      plan.groups.push_back(std::move(made.groups[0]));
  }
  take_dtypes(plan, blank_plan(request, Recompute::kLocal));
  plan.recompute = Recompute::kAhead;
  plan.window = shape.window;
  plan.shard_optimizer = request.limits.shard_optimizer;
  if (shape.shards_weights) shard_weights(plan);
  return plan;
}

}  // namespace

void evaluate_teams(Evaluator& evaluator) {
  const Rates& rates = evaluator.rates();
  if (!evaluator.empty() && !may_need_teams(rates)) return;
  const i64 budget = evaluator.budget();
  const i64 most = std::max<i64>(kLeastTried, kTried / rates.request().cluster.num_devices());
  i64 tried = 0;
  double least = 0;               // ratio of the first plan that has room
  std::optional<TeamShape> slow;  // the last one that is far behind
  for (const TeamShape& shape : rank_teams(evaluator)) {
    if (slow && shape.has_teams_of(*slow)) continue;
    const i64 spent = budget - evaluator.budget();
    if (spent > (evaluator.empty() ? evaluator.whole_budget() : evaluator.whole_budget() / 2)) break;
    if (tried >= most && shape.ratio > kFarther * least) break;
    const i64 index = evaluator.evaluate_at_any_cost(make_team_plan(rates.request(), shape));
    if (index < 0) continue;
    if (tried++ == 0) least = shape.ratio;
    if (!evaluator.empty() && evaluator.step_of(index) > kFarBehind * evaluator.step_of(evaluator.best()))
      slow = shape;
  }
  evaluator.add_budget(budget - evaluator.budget());
}

}  // namespace hetermoe
