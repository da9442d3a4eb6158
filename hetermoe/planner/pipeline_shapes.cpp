#include "hetermoe/planner/pipeline_shapes.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/planner/memory_estimate.h"
#include "hetermoe/planner/same_group.h"
#include "hetermoe/planner/sketch.h"
#include "hetermoe/planner/strategies.h"

namespace hetermoe {
namespace {

constexpr std::size_t kWanted = 32;       ///< shapes that are split at least, if there are so many
constexpr double kWorthSplitting = 1.05;  ///< bound over the best estimate, of others
constexpr i64 kMostUneven = 16;           ///< devices of a stage where one more or less matters
constexpr i64 kFewGroups = 8;             ///< up to so many may leave devices over
constexpr i64 kLeftOver = 16;             ///< at most a part of so many
constexpr i64 kMostSequences = 8;         ///< of a microbatch on each device

/// Which classes follow each other along a pipeline: each alone, all in order, all the other way round.
std::vector<std::vector<std::size_t>> class_orders(const Rates& rates) {
  std::vector<std::vector<std::size_t>> all;
  for (std::size_t c = 0; c < rates.num_classes(); ++c) all.push_back({c});
  if (all.size() == 1) return all;
  std::vector<std::size_t> in_order(rates.num_classes());
  std::iota(in_order.begin(), in_order.end(), std::size_t{0});
  all.push_back(in_order);
  all.emplace_back(in_order.rbegin(), in_order.rend());
  return all;
}

/// So many groups have room for weights and gradients of their own, and for a sharded optimizer together; of
/// gathered weights no group has its own.
i64 most_groups(const Rates& rates) {
  const ModelConfig& model = rates.request().model;
  const double experts = rates.moe_layers() * real(model.num_experts) * real(rates.counts().expert);
  const bool gathers = rates.request().limits.gather_weights;
  const double others = rates.attention_parameters();
  StateBytes of_experts = rates.state_of(UnitPart::kExperts),
             of_others = rates.state_of(UnitPart::kAttention);
  if (rates.request().limits.host_use != HostUse::kNone) {
    of_experts.master = of_experts.moments = of_others.master = of_others.moments = 0;
    if (rates.visits(UnitPart::kExperts)) of_experts = {};
    if (rates.visits(UnitPart::kAttention)) of_others = {};
  }
  const Bytes each_experts = experts * of_experts.weights_and_gradients();
  const Bytes each_others = others * of_others.weights_and_gradients();
  const Bytes of_group = gathers ? each_experts : each_experts + each_others;
  Bytes room =
      -experts * (of_experts.master + of_experts.moments) - others * (of_others.master + of_others.moments);
  if (gathers) room -= each_others;
  for (std::size_t c = 0; c < rates.num_classes(); ++c)
    room += rates.usable_memory(c) * real(rates.classes()[c].size());
  return static_cast<i64>(std::max(0.0, room) / std::max(1.0, of_group));
}

std::vector<i64> group_counts(const Rates& rates, const std::vector<std::size_t>& order) {
  std::vector<i64> counts;
  const i64 limit = std::min(std::max<i64>(1, most_groups(rates)), rates.request().sequences);
  for (i64 groups = 1; groups <= limit; ++groups) {
    i64 over = 0, all = 0, least = std::numeric_limits<i64>::max();
    for (const std::size_t c : order) {
      const i64 size = rates.classes()[c].size();
      over += size % groups, all += size, least = std::min(least, size / groups);
    }
    if (least < 1) break;
    if (over == 0 || (groups <= kFewGroups && over * kLeftOver <= all)) counts.push_back(groups);
  }
  return counts;
}

using Stages = std::vector<StageDevices>;

/// All ways to cut so many devices of each class into stages: equally many in each, what is left over idle
/// or, of a single class, one more in each of the first stages, which have most microbatches in flight.
std::vector<Stages> stage_cuts(const std::vector<std::size_t>& order, const std::vector<i64>& devices,
                               i64 layers) {
  std::vector<Stages> all;
  const i64 sum = sum_of(devices);
  std::set<i64> sizes;
  for (i64 stages = 2; stages <= std::min(layers, sum); ++stages) {
    const i64 size = sum / stages;
    sizes.insert(size);
    if (order.size() > 1 || sum % stages == 0 || size > kMostUneven) continue;
    all.emplace_back();
    for (i64 s = 0; s < stages; ++s) all.back().push_back({order[0], size + (s < sum % stages ? 1 : 0)});
  }
  for (const i64 size : sizes) {
    Stages stages;
    for (std::size_t c = 0; c < order.size(); ++c)
      stages.insert(stages.end(), idx(devices[c] / size), {order[c], size});
    if (order.size() == 1) stages.resize(std::min(stages.size(), idx(layers)));
    const auto count = static_cast<i64>(stages.size());
    if (count < 2 || count > layers) continue;
    all.push_back(stages);
    // A last stage twice as large, for the head.
    const i64 idle = devices.back() - std::count_if(stages.begin(), stages.end(), [&](const StageDevices& s) {
                                        return s.cls == order.back();
                                      }) * size;
    if (idle < size && (count < 3 || stages[idx(count - 2)].cls != order.back())) continue;
    if (idle < size) stages.pop_back();
    stages.back().count += size;
    all.push_back(std::move(stages));
  }
  return all;
}

class Ranker {
 public:
  explicit Ranker(const Rates& rates) : rates_(rates), request_(rates.request()) {
    for (const std::vector<std::size_t>& order : class_orders(rates)) {
      for (const i64 groups : group_counts(rates, order)) {
        std::vector<i64> devices;
        for (const std::size_t c : order) devices.push_back(rates.classes()[c].size() / groups);
        for (Stages& stages : stage_cuts(order, devices, request_.model.num_layers))
          cuts_.push_back({groups, std::move(stages)});
      }
    }
  }

  PipelineRanking rank(Seconds most) {
    PipelineRanking out;
    std::vector<std::pair<Seconds, PipelineShape>> bounded;
    for (const Cut& cut : cuts_) {
      for (const PipelineOrder& order : orders(cut)) {
        const Seconds bound = StageCosts(rates_, order, cut.stages).bound();
        ++out.num_weighed;
        if (bound < most) bounded.emplace_back(bound, PipelineShape{order, cut.stages, {}, {}, 0});
      }
    }
    std::stable_sort(bounded.begin(), bounded.end(), [](auto& a, auto& b) { return a.first < b.first; });
    Seconds best = most;
    for (auto& [bound, shape] : bounded) {
      if (out.shapes.size() >= kWanted && bound > kWorthSplitting * best) break;
      if (!split(shape)) continue;
      best = std::min(best, shape.estimate);
      out.shapes.push_back(std::move(shape));
    }
    std::stable_sort(out.shapes.begin(), out.shapes.end(),
                     [](auto& a, auto& b) { return a.estimate < b.estimate; });
    return out;
  }

  std::optional<PipelineMiss> nearest() {
    std::optional<PipelineMiss> nearest;
    for (const Cut& cut : cuts_) {
      const std::optional<PipelineMiss> miss = miss_of(order_of(cut, 1), cut.stages);
      if (miss && (!nearest || miss->need - miss->usable < nearest->need - nearest->usable)) nearest = miss;
    }
    return nearest;
  }

 private:
  struct Cut {
    i64 groups;
    Stages stages;
  };

  /// With microbatches of about so many sequences on each device.
  PipelineOrder order_of(const Cut& cut, i64 sequences) const {
    PipelineOrder order{.groups = cut.groups};
    const i64 each = (request_.sequences + cut.groups - 1) / cut.groups;
    i64 devices = cut.stages[0].count;
    for (const StageDevices& stage : cut.stages) devices = std::min(devices, stage.count);
    // Groups with a sequence less have as many microbatches.
    order.microbatches = std::min((each + sequences * devices - 1) / (sequences * devices),
                                  std::max(i64{1}, request_.sequences / cut.groups));
    order.largest = (each + order.microbatches - 1) / order.microbatches;
    order.shard_optimizer = request_.limits.shard_optimizer;
    return order;
  }

  std::vector<PipelineOrder> orders(const Cut& cut) const {
    std::vector<PipelineOrder> all;
    for (i64 sequences = 1; sequences <= kMostSequences; sequences *= 2) {
      PipelineOrder order = order_of(cut, sequences);
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
    LayerRun run;
    for (i64 s = 0; s < stages; ++s, run.first += run.count) {
      run.stage = s, run.count = shape.layers[idx(s)];
      shape.recompute.push_back(costs.mixed(run));
    }
    shape.estimate = costs.step(shape.layers, shape.recompute);
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

  const Rates& rates_;
  const PlanRequest& request_;
  std::vector<Cut> cuts_;
};

/// [device of a stage, stage after stage] of one of the groups, each of which has as many of every class.
std::vector<DeviceId> devices_of(const Rates& rates, const PipelineShape& shape, i64 group) {
  std::vector<i64> next(rates.num_classes());
  for (std::size_t c = 0; c < next.size(); ++c)
    next[c] = group * (rates.classes()[c].size() / shape.order.groups);
  std::vector<DeviceId> devices;
  for (const StageDevices& stage : shape.stages) {
    const auto from = rates.classes()[stage.cls].devices.begin() + next[stage.cls];
    devices.insert(devices.end(), from, from + stage.count);
    next[stage.cls] += stage.count;
  }
  return devices;
}

/// The plan has that of most layers, others have their own.
void set_recompute(Plan& plan, const PipelineShape& shape) {
  std::vector<Recompute> of_layer;
  std::array<i64, kEnumCount<Recompute>> times = {};
  for (std::size_t s = 0; s < shape.layers.size(); ++s) {
    for (i64 l = 0; l < shape.layers[s]; ++l) {
      of_layer.push_back(shape.recompute[s].of(l));
      ++times[static_cast<std::size_t>(of_layer.back())];
    }
  }
  plan.recompute = static_cast<Recompute>(std::max_element(times.begin(), times.end()) - times.begin());
  for (Group& group : plan.groups) {
    for (std::size_t l = 0; l < of_layer.size(); ++l) {
      if (of_layer[l] != plan.recompute) group.layers[l].recompute = of_layer[l];
    }
  }
}

}  // namespace

PipelineRanking rank_pipelines(const Rates& rates, Seconds most) { return Ranker(rates).rank(most); }

std::optional<PipelineMiss> nearest_pipeline(const Rates& rates) { return Ranker(rates).nearest(); }

Plan make_pipeline(const Rates& rates, const PipelineShape& shape) {
  const PlanRequest& request = rates.request();
  StrategyRequest ask;
  ask.seq_len = request.seq_len;
  ask.microbatches = shape.order.microbatches;
  ask.window = shape.order.window;
  ask.stages = static_cast<i64>(shape.stages.size());
  ask.stage_layers = shape.layers;
  for (const StageDevices& stage : shape.stages) ask.stage_attention.push_back(stage.count);
  const std::vector<i64> sequences =
      proportional_split(request.sequences, std::vector<double>(idx(shape.order.groups), 1));
  Plan plan;
  std::vector<DeviceId> first;
  for (i64 g = 0; g < shape.order.groups; ++g) {
    ask.attention = devices_of(rates, shape, g);
    ask.sequences = sequences[idx(g)];
    if (g > 0 && ask.sequences == sequences[idx(g - 1)]) {
      std::vector<DeviceId> counterpart(request.cluster.devices.size(), -1);
      for (std::size_t d = 0; d < first.size(); ++d) counterpart[idx(first[d])] = ask.attention[d];
      plan.groups.push_back(with_devices(plan.groups.back(), counterpart));
    } else {
      Plan made = find_strategy("pp_ep").make(request.model, request.cluster, ask);
      if (g == 0)
        plan = std::move(made);
      else
        plan.groups.push_back(std::move(made.groups[0]));
    }
    first = std::move(ask.attention);
  }
  take_dtypes(plan, blank_plan(request, Recompute::kLocal));
  set_recompute(plan, shape);
  plan.shard_optimizer = shape.order.shard_optimizer;
  return plan;
}

}  // namespace hetermoe
