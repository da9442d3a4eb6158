#include "hetermoe/planner/search/mixed_stages.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/planner/estimate/lane_bound.h"
#include "hetermoe/planner/search/blocks.h"
#include "hetermoe/planner/strategies/allocation.h"
#include "hetermoe/planner/strategies/strategies.h"

namespace hetermoe {
namespace {

constexpr i32 kMostMixedDevices = 64;         ///< of a cluster whose stages may be mixed
constexpr std::size_t kMostStageClasses = 4;  ///< of a stage
constexpr i64 kMostMixedStages = 16, kMostMixedGroups = 8;

/// Devices in the order of stages, each of which has as many of a class as the others.
struct MixedStages {
  std::vector<DeviceId> devices;
  std::vector<double> attention, experts;  ///< speed of each
};

/// How layers meet devices: a run of them on each stage, or every so-maniest on each depth group.
enum class Layers { kRuns, kInTurn };

class Maker {
 public:
  Maker(const Rates& rates, Layers layers, Seconds most)
      : rates_(rates), request_(rates.request()), layers_(layers), most_(most) {}

  std::vector<std::pair<Seconds, Plan>> all() {
    const auto classes = rates_.num_classes();
    if (classes < 2 || classes > kMostStageClasses || request_.cluster.num_devices() > kMostMixedDevices)
      return {};
    i64 least = rates_.classes()[0].size();
    for (const DeviceClass& cls : rates_.classes()) least = std::min(least, cls.size());
    for (const i64 groups : kRoundNumbers) {
      if (groups > std::min({kMostMixedGroups, request_.sequences, least / 2})) break;
      for (const i64 stages : kRoundNumbers) {
        if (stages < 2) continue;
        if (stages > std::min({kMostMixedStages, request_.model.num_layers, least / groups})) break;
        // Attention on the first classes in the order of advantage; on all of them.
        for (std::size_t first = 1; first <= classes; ++first) {
          const bool apart = first < classes;
          if (apart ? request_.model.num_moe_layers() == 0 : layers_ == Layers::kInTurn) continue;
          for (const i64 each : {1, 2, 4}) add(groups, stages, first, each);
        }
      }
    }
    return sorted();
  }

  std::vector<std::pair<Seconds, Plan>> allocated() {
    const i64 devices = request_.cluster.num_devices();
    if (rates_.num_classes() < 2 || request_.cluster.nodes.size() < 2 || devices > kMostMixedDevices ||
        request_.model.num_moe_layers() == 0)
      return {};
    for (const i64 stages : {2, 4}) {
      if (stages > std::min(request_.model.num_layers, devices / 2)) break;
      for (const i64 each : {1, 2}) add_allocated(stages, each);
    }
    return sorted();
  }

 private:
  std::vector<std::pair<Seconds, Plan>> sorted() {
    std::stable_sort(out_.begin(), out_.end(), [](auto& a, auto& b) { return a.first < b.first; });
    return std::move(out_);
  }

  /// In microbatches of `each` sequences on each device with attention.
  void add_allocated(i64 stages, i64 each) {
    const i64 devices = request_.cluster.num_devices();
    const Plan shape = blank_plan(request_, Recompute::kLocal);
    AllocationInput input = allocation_input(request_.model, request_.cluster,
                                             *make_cost(request_.model, request_.cluster, shape,
                                                        load_profiles(request_.cluster), request_.software),
                                             shape, real(each * devices) / real(2 * stages));
    limit_by_groups(input, stages, stages);
    for (const i64 count : near_allocation(input)) {
      if (is_border(count)) continue;
      StrategyRequest ask;
      ask.seq_len = request_.seq_len;
      ask.sequences = request_.sequences;
      ask.microbatches = std::clamp<i64>(ask.sequences * stages / (each * count), 1,
                                         std::min(ask.sequences, request_.limits.max_microbatches));
      set_roles(ask, roles_of(input, count));
      keep(make_in_turn(ask, stages, HeadOn::kExperts));
    }
  }

  bool is_border(i64 count) const {
    for (const DeviceClass& cls : rates_.classes()) {
      count -= cls.size();
      if (count <= 0) break;
    }
    return count == 0;
  }

  MixedStages stages_of(i64 group, i64 groups, i64 stages, std::size_t first, std::size_t end) const {
    MixedStages out;
    const auto copies = real(request_.seq_len * request_.model.top_k);
    for (i64 s = 0; s < stages; ++s) {
      for (std::size_t c = first; c < end; ++c) {
        const DeviceClass& cls = rates_.classes()[c];
        const i64 each = cls.size() / groups / stages;
        for (i64 d = 0; d < each; ++d) {
          out.devices.push_back(cls.devices[idx(group * (cls.size() / groups) + s * each + d)]);
          out.attention.push_back(1 / rates_.attention(c, 1, Recompute::kLocal).sum());
          out.experts.push_back(1 / std::max(1e-12, rates_.experts(c, copies, 1, Recompute::kLocal).sum()));
        }
      }
    }
    return out;
  }

  /// With microbatches of `each` sequences on each device with attention.
  void add(i64 groups, i64 stages, std::size_t first, i64 each) {
    const std::size_t classes = rates_.num_classes();
    const bool apart = first < classes;
    const std::vector<i64> sequences =
        proportional_split(request_.sequences, std::vector<double>(idx(groups), 1));
    for (const HeadOn head_on : {HeadOn::kExperts, HeadOn::kAttention}) {
      if (layers_ == Layers::kRuns && head_on != HeadOn::kExperts) continue;  // stages do not ask
      Plan plan;
      for (i64 g = 0; g < groups; ++g) {
        const MixedStages attention = stages_of(g, groups, stages, 0, first),
                          experts = apart ? stages_of(g, groups, stages, first, classes) : attention;
        StrategyRequest ask;
        ask.seq_len = request_.seq_len;
        ask.sequences = sequences[idx(g)];
        const i64 at_once = each * static_cast<i64>(attention.devices.size()) / stages;
        ask.microbatches = std::clamp<i64>(sequences.back() / at_once, 1, request_.limits.max_microbatches);
        ask.attention = attention.devices, ask.attention_weights = attention.attention;
        ask.experts = experts.devices, ask.expert_weights = experts.experts;
        Plan made = make(ask, stages, apart, head_on);
        if (g == 0)
          plan = std::move(made);
        else
          plan.groups.push_back(std::move(made.groups[0]));
      }
      keep(std::move(plan));
    }
  }

  Plan make(StrategyRequest& ask, i64 stages, bool apart, HeadOn head_on) const {
    if (layers_ == Layers::kInTurn) {
      ask.stage_attention.assign(idx(stages), static_cast<i64>(ask.attention.size()) / stages);
      ask.stage_experts.assign(idx(stages), static_cast<i64>(ask.experts.size()) / stages);
      return make_in_turn(ask, stages, head_on);
    }
    ask.window = ask.microbatches > 1 ? 2 : 1;
    ask.stages = stages;
    return find_strategy(apart ? "pp-zebra" : "pp-ep").make(request_.model, request_.cluster, ask);
  }

  Plan make_in_turn(StrategyRequest& ask, i64 stages, HeadOn head_on) const {
    ask.depth_groups = {stages};
    ask.head_on = head_on;
    ask.combine_to = CombineTo::kNext;
    ask.expects_times = false;
    return find_strategy("af-pipe").make(request_.model, request_.cluster, ask);
  }

  void keep(Plan plan) {
    take_dtypes(plan, blank_plan(request_, Recompute::kLocal));
    plan.shard_optimizer = request_.limits.shard_optimizer;
    for (const Recompute recompute : {Recompute::kOff, Recompute::kAhead}) {
      plan.recompute = recompute;
      const Seconds bound = lane_bound(rates_, plan);
      if (bound < most_) out_.emplace_back(bound, plan);
    }
  }

  const Rates& rates_;
  const PlanRequest& request_;
  Layers layers_;
  Seconds most_;
  std::vector<std::pair<Seconds, Plan>> out_;
};

}  // namespace

std::vector<std::pair<Seconds, Plan>> mixed_pipelines(const Rates& rates, Seconds most) {
  return Maker(rates, Layers::kRuns, most).all();
}

std::vector<std::pair<Seconds, Plan>> depth_plans(const Rates& rates, Seconds most) {
  return Maker(rates, Layers::kInTurn, most).all();
}

std::vector<std::pair<Seconds, Plan>> allocated_depth_plans(const Rates& rates, Seconds most) {
  return Maker(rates, Layers::kInTurn, most).allocated();
}

}  // namespace hetermoe
