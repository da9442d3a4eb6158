#include <algorithm>
#include <array>
#include <optional>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/strategies/allocation.h"
#include "hetermoe/planner/strategies/best.h"
#include "hetermoe/planner/strategies/depth_groups.h"
#include "hetermoe/planner/strategies/teams.h"

// How strategies are tuned that cut layers into depth groups, or sequences among teams.
namespace hetermoe {
namespace {

constexpr std::array<i64, 6> kDepths = {2, 3, 4, 6, 8, 16};  ///< depth groups of a role that are tried

/// Keeps the fastest plan with depth groups.
class DepthTuner {
 public:
  DepthTuner(Predictor& predictor, const Setting& setting)
      : predictor_(predictor), setting_(setting), best_(predictor, setting) {}

  /// With several numbers of microbatches.
  void consider_counts(StrategyRequest request) {
    const i64 groups = request.depth_groups[0];
    const i64 each = (std::ssize(request.attention) + groups - 1) / groups;
    for (const i64 count : microbatch_counts(setting_.sequences, each)) {
      request.microbatches = count;
      Plan plan = find_strategy("af-pipe").make(predictor_.model(), predictor_.cluster(), request);
      apply(setting_, plan);
      // Fewer are in flight where more have no room.
      for (const i64 of_group : {4, 2, 1}) {
        consider(request, plan, of_group * groups);
        if (best_.had_room() || of_group * groups >= count) break;
      }
    }
  }

  /// Of the fastest so far.
  void consider_windows() {
    if (fastest_.groups.empty()) return;
    Plan plan = fastest_;
    const StrategyRequest request = request_;
    for (const i64 of_group : {2, 6, 0}) consider(request, plan, of_group * request.depth_groups[0]);
  }

  /// The fastest with other devices in either role, as the allocation has them, or nearly so.
  void consider_splits() {
    if (fastest_.groups.empty()) return;
    const StrategyRequest request = request_;
    const i64 groups = request.depth_groups[0];
    AllocationInput input =
        allocation_input(predictor_.model(), predictor_.cluster(), *predictor_.cost(fastest_), fastest_,
                         real(setting_.sequences) / real(request.microbatches));
    limit_by_groups(input, groups, groups);
    for (const i64 attention : near_allocation(input)) {
      StrategyRequest other = request;
      set_roles(other, roles_of(input, attention));
      if (other.attention != request.attention) consider_counts(std::move(other));
    }
    if (request_.attention != request.attention) consider_windows();
  }

  Tuned take() { return best_.take(); }

 private:
  void consider(const StrategyRequest& request, Plan& plan, i64 window) {
    plan.window = static_cast<i32>(window);
    if (best_.consider(plan)) fastest_ = plan, request_ = request;
  }

  Predictor& predictor_;
  const Setting& setting_;
  Best best_;
  Plan fastest_;             // without groups: there is none
  StrategyRequest request_;  // of it
};

}  // namespace

Tuned tune_depth_groups(Predictor& predictor, const Setting& setting) {
  const Roles roles = default_roles(predictor.cluster());
  const auto attention = static_cast<i64>(roles.attention.size()),
             experts = static_cast<i64>(roles.experts.size());
  const i64 most = std::min({attention, experts, predictor.model().num_layers});
  if (most < kDepths[0]) {
    Tuned none;
    none.infeasible = fmt::format(
        "2 depth groups need 2 devices with attention, 2 with experts and 2 layers: there are "
        "{}, {} and {}",
        attention, experts, predictor.model().num_layers);
    return none;
  }
  DepthTuner tuner(predictor, setting);
  for (const i64 groups : kDepths) {
    if (groups > most) break;
    for (const HeadOn head_on : {HeadOn::kExperts, HeadOn::kAttention}) {
      for (const CombineTo combine_to : {CombineTo::kSource, CombineTo::kNext}) {
        StrategyRequest request = request_of(setting, 1);
        request.attention = roles.attention, request.experts = roles.experts;
        request.depth_groups = {groups};
        request.head_on = head_on;
        request.combine_to = combine_to;
        tuner.consider_counts(request);
      }
    }
  }
  tuner.consider_windows();
  tuner.consider_splits();
  return tuner.take();
}

namespace {

constexpr i32 kHeadParts = 4;  ///< of teams, beside one

/// [devices] tokens by what memory leaves for them: beside what a device needs with hardly any.
std::vector<double> room_for_tokens(Predictor& predictor, const Setting& setting, Plan plan) {
  for (ShareRow* row : {&plan.groups[0].embed[0], &plan.groups[0].head[0]})
    for (Share& share : *row) share.tokens = 1;
  for (LayerPlacement& layer : plan.groups[0].layers)
    for (ShareRow& row : layer.attention)
      for (Share& share : row) share.tokens = 1;
  const std::vector<Bytes> need = estimate_memory(plan, predictor.model());
  std::vector<double> room;
  for (const Share& share : plan.groups[0].layers[0].attention[0])
    room.push_back(std::max(0.0, usable_memory(predictor.cluster().type_of(share.device)) -
                                     setting.memory_reserve - need[idx(share.device)]));
  return room;
}

}  // namespace

Tuned tune_teams(Predictor& predictor, const Setting& setting) {
  const ModelConfig& model = predictor.model();
  const Cluster& cluster = predictor.cluster();
  const Strategy& strategy = find_strategy("sp-ep");
  const std::vector<DeviceId> devices = roles_of(strategy.use, cluster, {}).attention;
  const auto num_devices = static_cast<i64>(devices.size());
  Best best(predictor, setting);
  std::optional<TeamSpeeds> speeds;  // any plan of the setting tells them
  for (i64 size = 2; size <= num_devices; ++size) {
    if (num_devices % size != 0) continue;
    for (const i64 count : microbatch_counts(setting.sequences, num_devices / size)) {
      StrategyRequest request = request_of(setting, count);
      request.team = {size};
      const auto make = [&] {
        Plan plan = strategy.make(model, cluster, request);
        apply(setting, plan);
        return plan;
      };
      // With two in a window they hide each other's exchanges, and so do parts of the heads.
      const auto consider = [&](Plan plan) {
        best.consider(plan);
        plan.head_parts = kHeadParts;
        best.consider(plan);
        plan.head_parts = 1, plan.window = 2;
        if (count > 1) best.consider(std::move(plan));
      };
      const Plan even = make();
      consider(even);
      if (!speeds) speeds = team_speeds(model, *predictor.cost(even), devices, setting.seq_len);
      request.attention_weights = speeds->tokens, request.head_weights = speeds->heads;
      const Plan by_speed = make();
      if (by_speed.groups[0].layers[0].attention == even.groups[0].layers[0].attention) continue;
      consider(by_speed);
      if (best.had_room()) continue;
      request.attention_weights = room_for_tokens(predictor, setting, even);
      consider(make());
    }
  }
  return best.take();
}

}  // namespace hetermoe
