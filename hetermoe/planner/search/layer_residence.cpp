#include "hetermoe/planner/search/layer_residence.h"

#include <set>
#include <string>
#include <vector>

#include "hetermoe/plan/pipeline_tasks.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {
namespace {

constexpr std::size_t kResidenceKinds = 4;       ///< of plans that are changed, the fastest of each
constexpr double kMaxResidenceStepRatio = 1.25;  ///< of theirs to the fastest step

/// Whether that is another plan.
bool keep(LayerPlacement& layer, Recompute of_plan, const KeptLayer& kept) {
  const Recompute before = layer.recompute.value_or(of_plan), after = kept.recompute.value_or(before);
  if (after == before && layer.saved == Residence::kDevice) return false;
  layer.recompute = after;
  layer.saved = Residence::kDevice;
  return true;
}

/// The plan with some of its layers kept so; nothing = it is that plan already.
std::optional<Plan> changed(Plan plan, std::size_t first, std::size_t end, const KeptLayer& kept) {
  bool any = false;
  for (Group& group : plan.groups)
    for (std::size_t l = first; l < end; ++l) any = keep(group.layers[l], plan.recompute, kept) || any;
  if (!any) return {};
  return plan;
}

/// The plan with as many of the last layers of a run kept so as have room.
std::optional<Plan> with_last_of(const Evaluator& evaluator, const Plan& plan, std::size_t begin,
                                 std::size_t end, const KeptLayer& kept) {
  std::size_t room = end, lack = begin;  // the first layers with which the others have room and may have none
  std::optional<Plan> best;
  for (std::size_t first = begin; first < room; first = (lack + room) / 2) {
    std::optional<Plan> next = changed(plan, first, end, kept);
    if (next && !evaluator.has_room(*next)) {
      lack = first + 1;
    } else {
      best = std::move(next), room = first;
    }
  }
  return best;
}

/// First layers of runs that have room of their own: stages of a pipeline, else all. Ends with num_layers.
std::vector<std::size_t> borders(const Plan& plan) {
  std::vector<std::size_t> all = {0};
  if (traits_of(plan.order).has_stages) {
    const PipelineStages stages = pipeline_stages(plan.groups[0]);
    all.assign(stages.first_layer.begin(), stages.first_layer.end());
  }
  all.push_back(plan.groups[0].layers.size());
  return all;
}

/// Of orders that may have any layer so. Pipelines without hosts have chosen by stage (planner/stage_cost).
bool may_change(const Plan& plan, HostUse use) {
  const OrderPolicyTraits& order = traits_of(plan.order);
  return order.windows_in_sequence || (order.has_stages && saves_on_hosts(use));
}

/// One after another, the first of which most layers can have.
const std::vector<std::vector<KeptLayer>>& all_kept() {
  const KeptLayer here{}, select{Recompute::kSelect}, off{Recompute::kOff};
  static const std::vector<std::vector<KeptLayer>> all = {{here},         {select},    {off},
                                                          {here, select}, {here, off}, {select, off}};
  return all;
}

}  // namespace

std::optional<Plan> with_last_layers(const Evaluator& evaluator, const Plan& plan, const KeptLayer& kept) {
  const std::vector<std::size_t> runs = borders(plan);
  std::optional<Plan> best;
  for (std::size_t r = 0; r + 1 < runs.size(); ++r) {
    std::optional<Plan> next = with_last_of(evaluator, best ? *best : plan, runs[r], runs[r + 1], kept);
    if (next) best = std::move(next);
  }
  return best;
}

namespace {

void evaluate_chains(Evaluator& evaluator, const Plan& plan) {
  for (const std::vector<KeptLayer>& chain : all_kept()) {
    Plan next = plan;
    bool any = false;
    for (const KeptLayer& kept : chain) {
      std::optional<Plan> more = with_last_layers(evaluator, next, kept);
      if (more) next = std::move(*more), any = true;
    }
    if (any) evaluator.evaluate_settled(std::move(next));
  }
}

}  // namespace

void evaluate_residences(Evaluator& evaluator) {
  if (evaluator.best() < 0) return;
  const Seconds most = kMaxResidenceStepRatio * evaluator.step_of(evaluator.best());
  evaluator.add_budget(evaluator.whole_budget() / 2);
  const HostUse use = evaluator.rates().request().limits.host_use;
  std::set<std::string> kinds;
  for (const i64 index : evaluator.by_step()) {
    if (kinds.size() == kResidenceKinds || evaluator.step_of(index) > most) break;
    const Plan plan = evaluator.plan_of(index);
    if (!may_change(plan, use) || !kinds.insert(evaluator.at(index).candidate.name).second) continue;
    evaluate_chains(evaluator, plan);
    if (!has_teams(plan) || plan.window == 1) continue;
    // Of long sequences one in flight may leave the room that saves more than two that hide each other.
    Plan one = plan;
    one.window = 1;
    evaluate_chains(evaluator, one);
  }
}

}  // namespace hetermoe
