#include "hetermoe/planner/search/pipeline_shapes.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "hetermoe/base/index.h"
#include "hetermoe/planner/estimate/sketch.h"
#include "hetermoe/planner/search/group_choice.h"
#include "hetermoe/planner/search/pipeline_cuts.h"
#include "hetermoe/planner/search/same_group.h"
#include "hetermoe/planner/strategies/strategies.h"

namespace hetermoe {
namespace {

constexpr std::size_t kWanted = 32;       ///< shapes that are split at least, if there are so many
constexpr std::size_t kMostSplit = 300;   ///< and at most
constexpr double kWorthSplitting = 1.05;  ///< bound over the best estimate, of others
constexpr i64 kMostSequences = 8;         ///< of a microbatch on each device
constexpr double kShared = 1.15;          ///< what estimates are too low by where stages share nodes
constexpr std::size_t kRests = 6;         ///< shapes of the last group that are split

/// Of a shape whose layers are split: how each stage recomputes, and about how long a step takes.
void choose_recompute(const StageCosts& costs, PipelineShape& shape) {
  shape.recompute.clear();  // of another split
  LayerRun run;
  for (std::size_t s = 0; s < shape.layers.size(); ++s, run.first += run.count) {
    run.stage = static_cast<i64>(s), run.count = shape.layers[s];
    shape.recompute.push_back(costs.mixed(run));
  }
  shape.estimate = costs.step(shape.layers, shape.recompute) * (costs.all_keep_to_nodes() ? 1 : kShared);
}

class Ranker {
 public:
  explicit Ranker(const Rates& rates) : rates_(rates), request_(rates.request()) {}

  PipelineRanking rank(Seconds most) {
    PipelineRanking out;
    const std::vector<PipelineCut> cuts = pipeline_cuts(rates_, most);
    std::vector<Bounded> bounded;
    for (const PipelineCut& cut : cuts) {
      const i64 largest = sequences_of(cut);
      for (const PipelineOrder& order : orders(cut, largest)) {
        const StageCosts costs(rates_, order, cut.stages);
        const Seconds bound = costs.bound();
        ++out.num_weighed;
        if (bound < most && costs.states_may_fit()) bounded.push_back({bound, &cut, order});
      }
    }
    std::stable_sort(bounded.begin(), bounded.end(),
                     [](const Bounded& a, const Bounded& b) { return a.bound < b.bound; });
    Seconds best = most;
    for (const Bounded& next : bounded) {
      const std::size_t split = out.shapes.size();
      if (split >= kMostSplit || (split >= kWanted && next.bound > kWorthSplitting * best)) break;
      std::optional<PipelineShape> shape = shape_of(next);
      if (!shape) continue;
      best = std::min(best, shape->estimate);
      out.shapes.push_back(std::move(*shape));
    }
    std::stable_sort(out.shapes.begin(), out.shapes.end(),
                     [](auto& a, auto& b) { return a.estimate < b.estimate; });
    return out;
  }

  std::optional<PipelineMiss> nearest() {
    std::optional<PipelineMiss> nearest;
    for (const PipelineCut& cut : pipeline_cuts(rates_, std::numeric_limits<Seconds>::infinity())) {
      if (!cut.rest.empty()) continue;
      const std::optional<PipelineMiss> miss = miss_of(order_of(cut, sequences_of(cut), 1), cut.stages);
      if (miss && (!nearest || miss->need - miss->usable < nearest->need - nearest->usable)) nearest = miss;
    }
    return nearest;
  }

 private:
  struct Bounded {
    Seconds bound;
    const PipelineCut* cut;
    PipelineOrder order;
  };

  /// Of the largest of the equal groups. A rest has its part by the speed of its devices.
  i64 sequences_of(const PipelineCut& cut) const {
    if (cut.rest.empty()) return (request_.sequences + cut.groups - 1) / cut.groups;
    const double each = ideal_rate(rates_, cut.span), rest = ideal_rate(rates_, cut.rest);
    const double share = each / (real(cut.groups) * each + rest);
    return std::max<i64>(1, static_cast<i64>(real(request_.sequences) * share + 0.5));
  }

  /// With microbatches of about so many sequences on each device, of `largest` sequences in all.
  PipelineOrder order_of(const PipelineCut& cut, i64 largest, i64 sequences) const {
    PipelineOrder order{.groups = cut.groups + (cut.rest.empty() ? 0 : 1)};
    i64 devices = cut.stages[0].count;
    for (const StageDevices& stage : cut.stages) devices = std::min(devices, stage.count);
    // Groups with a sequence less have as many microbatches.
    const bool uneven = cut.rest.empty() && request_.sequences % cut.groups != 0;
    const i64 wanted = (largest + sequences * devices - 1) / (sequences * devices);
    order.microbatches = std::min(wanted, std::max(i64{1}, largest - (uneven ? 1 : 0)));
    order.largest = (largest + order.microbatches - 1) / order.microbatches;
    order.shard_optimizer = request_.limits.shard_optimizer;
    if (cut.groups > 1 || !cut.rest.empty()) order.span = cut.span;
    return order;
  }

  std::vector<PipelineOrder> orders(const PipelineCut& cut, i64 largest) const {
    std::vector<PipelineOrder> all;
    for (i64 sequences = 1; sequences <= kMostSequences; sequences *= 2) {
      PipelineOrder order = order_of(cut, largest, sequences);
      if (order.microbatches > request_.limits.max_microbatches) continue;
      for (const i32 window : {1, 2}) {
        if (window > order.microbatches) continue;
        order.window = window;
        all.push_back(order);
      }
      if (order.microbatches == 1) break;
    }
    return all;
  }

  std::optional<PipelineShape> shape_of(const Bounded& from) {
    const PipelineCut& cut = *from.cut;
    PipelineShape shape{.order = from.order, .stages = cut.stages, .layers = {}, .recompute = {}, .rest = {}};
    shape.groups = cut.groups, shape.sequences = request_.sequences;
    if (!split(shape)) return {};
    if (cut.rest.empty()) return shape;
    return with_rest(cut, shape, from.order);
  }

  /// Sequences are divided anew by what both are estimated to take.
  std::optional<PipelineShape> with_rest(const PipelineCut& cut, const PipelineShape& first,
                                         const PipelineOrder& order) {
    i64 each = sequences_of(cut);
    std::optional<PipelineShape> best;
    const i64 of_device = order.largest;
    for (int turn = 0; turn < 2; ++turn) {
      const i64 left = request_.sequences - cut.groups * each;
      if (left < 1 || each < 1) return best;
      PipelineShape shape = first;
      shape.order.microbatches = std::max<i64>(1, (each + of_device - 1) / of_device);
      shape.order.largest = (each + shape.order.microbatches - 1) / shape.order.microbatches;
      shape.sequences = cut.groups * each;
      const PipelineShape* rest = rest_for(cut, left, order.window);
      if (rest == nullptr || !split(shape)) return best;
      const double rate = real(each) / shape.estimate, of_rest = real(left) / rest->estimate;
      shape.estimate = std::max(shape.estimate, rest->estimate);
      shape.rest.push_back(*rest);
      if (!best || shape.estimate < best->estimate) best = std::move(shape);
      const double share = rate / (real(cut.groups) * rate + of_rest);
      each = static_cast<i64>(real(request_.sequences) * share + 0.5);
    }
    return best;
  }

  /// The fastest pipeline on what equal groups leave; null = none has room.
  const PipelineShape* rest_for(const PipelineCut& cut, i64 sequences, i32 window) {
    const auto [entry, fresh] = rests_.try_emplace({cut.rest, cut.groups, sequences, window});
    std::optional<PipelineShape>& best = entry->second;
    if (!fresh) return best ? &*best : nullptr;
    std::vector<std::pair<Seconds, PipelineShape>> bounded;
    for (const Stages& stages : stage_cuts(rates_, cut.rest)) {
      const PipelineCut alone{.groups = 1, .span = cut.rest, .stages = stages, .rest = {}};
      for (PipelineOrder order : orders(alone, sequences)) {
        if (order.window != window) continue;
        order.groups = cut.groups + 1;
        PipelineShape shape{.order = order, .stages = stages, .layers = {}, .recompute = {}, .rest = {}};
        shape.sequences = sequences;
        const StageCosts costs(rates_, order, stages);
        if (costs.states_may_fit()) bounded.emplace_back(costs.bound(), std::move(shape));
      }
    }
    std::stable_sort(bounded.begin(), bounded.end(), [](auto& a, auto& b) { return a.first < b.first; });
    std::size_t splits = 0;
    for (auto& [bound, shape] : bounded) {
      if (splits == kRests || (best && bound > best->estimate)) break;
      if (!split(shape)) continue;
      ++splits;
      if (!best || shape.estimate < best->estimate) best = std::move(shape);
    }
    return best ? &*best : nullptr;
  }

  /// The slowest stage as fast as it can be, then the fullest one as empty.
  bool split(PipelineShape& shape) const {
    const StageCosts costs(rates_, shape.order, shape.stages);
    const i64 layers = request_.model.num_layers, stages = static_cast<i64>(shape.stages.size());
    // Both cuts ask for most runs, and for those from a layer on in the order of their length.
    std::vector<std::vector<RunChoice>> known(idx(stages * layers));
    const auto choice_of = [&](const LayerRun& run) {
      std::vector<RunChoice>& from = known[idx(run.stage * layers + run.first)];
      for (LayerRun next = run; from.size() < idx(run.count);) {
        next.count = static_cast<i64>(from.size()) + 1;
        from.push_back(costs.choice(next));
      }
      return from[idx(run.count - 1)];
    };
    shape.layers = split_layers(layers, stages, [&](const LayerRun& run) {
      const RunChoice choice = choice_of(run);
      return choice.fits ? std::optional(choice.time) : std::nullopt;
    });
    if (shape.layers.empty()) return false;
    const Seconds slowest = costs.slowest(shape.layers);
    shape.layers = split_layers(layers, stages, [&](const LayerRun& run) {
      const RunChoice choice = choice_of(run);
      return choice.fits && choice.time <= slowest
                 ? std::optional(choice.least_memory / costs.usable(run.stage))
                 : std::nullopt;
    });
    choose_recompute(costs, shape);
    return true;
  }

  std::optional<PipelineMiss> miss_of(const PipelineOrder& order, const Stages& stages) const {
    const StageCosts costs(rates_, order, stages);
    const auto lacks = [&](const LayerRun& run) {
      return costs.choice(run).least_memory - costs.usable(run.stage);
    };
    const std::vector<i64> layers =
        split_layers(request_.model.num_layers, static_cast<i64>(stages.size()), lacks);
    std::optional<PipelineMiss> worst;
    LayerRun run;
    for (std::size_t s = 0; s < layers.size(); ++s, run.first += run.count) {
      run.stage = static_cast<i64>(s), run.count = layers[s];
      if (worst && lacks(run) <= worst->need - worst->usable) continue;
      worst = {static_cast<i64>(stages.size()), order.groups, stages[s].cls, costs.choice(run).least_memory,
               costs.usable(run.stage)};
    }
    return worst;
  }

  using RestKey = std::tuple<std::vector<i64>, i64, i64, i32>;

  const Rates& rates_;
  const PlanRequest& request_;
  std::map<RestKey, std::optional<PipelineShape>> rests_;
};

/// [device of a stage, stage after stage] of one of the groups. next: [class] the first of its devices.
std::vector<DeviceId> devices_of(const Rates& rates, const std::vector<StageDevices>& stages,
                                 std::vector<i64> next) {
  std::vector<DeviceId> devices;
  for (const StageDevices& stage : stages) {
    const auto from = rates.classes()[stage.cls].devices.begin() + next[stage.cls];
    devices.insert(devices.end(), from, from + stage.count);
    next[stage.cls] += stage.count;
  }
  return devices;
}

std::vector<Recompute> recompute_of_layers(const PipelineShape& shape) {
  std::vector<Recompute> of_layer;
  for (std::size_t s = 0; s < shape.layers.size(); ++s) {
    for (i64 l = 0; l < shape.layers[s]; ++l) of_layer.push_back(shape.recompute[s].of(l));
  }
  return of_layer;
}

/// The plan has that of most layers of its first group, others have their own.
void set_recompute(Plan& plan, const PipelineShape& shape) {
  std::array<i64, kEnumCount<Recompute>> times = {};
  for (const Recompute recompute : recompute_of_layers(shape)) ++times[static_cast<std::size_t>(recompute)];
  plan.recompute = static_cast<Recompute>(std::max_element(times.begin(), times.end()) - times.begin());
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const PipelineShape& own = g < idx(shape.groups) ? shape : shape.rest.front();
    const std::vector<Recompute> of_layer = recompute_of_layers(own);
    for (std::size_t l = 0; l < of_layer.size(); ++l) {
      if (of_layer[l] != plan.recompute) plan.groups[g].layers[l].recompute = of_layer[l];
    }
  }
}

/// Adds the groups of a shape but for its rest. first: [class] the first device that they may take.
void add_groups(const Rates& rates, const PipelineShape& shape, std::vector<i64>& first, Plan& plan) {
  const PlanRequest& request = rates.request();
  StrategyRequest ask;
  ask.seq_len = request.seq_len;
  ask.microbatches = shape.order.microbatches;
  ask.window = shape.order.window;
  ask.stages = static_cast<i64>(shape.stages.size());
  ask.stage_layers = shape.layers;
  for (const StageDevices& stage : shape.stages) ask.stage_attention.push_back(stage.count);
  const std::vector<i64> sequences =
      proportional_split(shape.sequences, std::vector<double>(idx(shape.groups), 1));
  std::vector<DeviceId> before;
  for (i64 g = 0; g < shape.groups; ++g) {
    ask.attention = devices_of(rates, shape.stages, first);
    ask.sequences = sequences[idx(g)];
    if (g > 0 && ask.sequences == sequences[idx(g - 1)]) {
      std::vector<DeviceId> counterpart(request.cluster.devices.size(), -1);
      for (std::size_t d = 0; d < before.size(); ++d) counterpart[idx(before[d])] = ask.attention[d];
      plan.groups.push_back(with_devices(plan.groups.back(), counterpart));
    } else {
      Plan made = find_strategy("pp-ep").make(request.model, request.cluster, ask);
      if (plan.groups.empty())
        plan = std::move(made);
      else
        plan.groups.push_back(std::move(made.groups[0]));
    }
    before = std::move(ask.attention);
    for (std::size_t c = 0; c < shape.order.span.size(); ++c) first[c] += shape.order.span[c];
  }
}

}  // namespace

PipelineRanking rank_pipelines(const Rates& rates, Seconds most) { return Ranker(rates).rank(most); }

std::optional<PipelineMiss> nearest_pipeline(const Rates& rates) { return Ranker(rates).nearest(); }

Plan make_pipeline(const Rates& rates, const PipelineShape& shape) {
  Plan plan;
  std::vector<i64> first(rates.num_classes());
  add_groups(rates, shape, first, plan);
  for (const PipelineShape& rest : shape.rest) add_groups(rates, rest, first, plan);
  take_dtypes(plan, blank_plan(rates.request(), Recompute::kLocal));
  set_recompute(plan, shape);
  plan.shard_optimizer = shape.order.shard_optimizer;
  return plan;
}

}  // namespace hetermoe
