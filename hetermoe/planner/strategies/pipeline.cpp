#include <algorithm>
#include <numeric>

#include "hetermoe/balance/balancers.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/planner/estimate/stage_cost.h"
#include "hetermoe/planner/strategies/baselines.h"
#include "hetermoe/planner/strategies/strategies.h"

namespace hetermoe {
namespace {

constexpr std::size_t kShortlist = 3;     ///< plans with room that are simulated
constexpr i64 kFewOfType = 8;             ///< of a pipeline: so many may have the other type's among them
constexpr auto kHow = Recompute::kAhead;  ///< local, by the stage's figures

/// Devices of one type.
struct TypeDevices {
  std::size_t cls = 0;  ///< that the stage's figures are those of
  std::vector<DeviceId> devices;
};

/// The fastest type first.
std::vector<TypeDevices> types_of(const Rates& rates) {
  const Cluster& cluster = rates.request().cluster;
  std::vector<TypeDevices> types;
  for (std::size_t t = 0; t < cluster.types.size(); ++t) {
    TypeDevices type{0, cluster.devices_of_type(static_cast<i32>(t))};
    if (type.devices.empty()) continue;
    while (idx(rates.classes()[type.cls].type) != t) ++type.cls;
    types.push_back(std::move(type));
  }
  const auto peak = [&](const TypeDevices& type) {
    return cluster.type_of(type.devices[0]).peak(rates.request().dtype);
  };
  std::stable_sort(types.begin(), types.end(), [&](auto& a, auto& b) { return peak(a) > peak(b); });
  return types;
}

/// [stage] number of its type. each: devices of every type. Of two types the rarer stay together, with more
/// or fewer of the others before them; of more, all in order or all the other way round.
std::vector<std::vector<std::size_t>> type_orders(const std::vector<i64>& each) {
  std::vector<std::size_t> in_order;
  for (std::size_t t = 0; t < each.size(); ++t) in_order.insert(in_order.end(), idx(each[t]), t);
  std::vector<std::vector<std::size_t>> orders = {in_order};
  if (each.size() == 1) return orders;
  if (each.size() > 2) {
    orders.emplace_back(in_order.rbegin(), in_order.rend());
    return orders;
  }
  const std::size_t rare = each[0] <= each[1] ? 0 : 1;
  const i64 others = each[1 - rare], step = others > kFewOfType ? others : 1;
  orders.clear();
  for (i64 before = 0; before <= others; before += std::max<i64>(1, step)) {
    std::vector<std::size_t> order(idx(others), 1 - rare);
    order.insert(order.begin() + before, idx(each[rare]), rare);
    orders.push_back(std::move(order));
  }
  return orders;
}

/// Equal pipelines.
struct Layout {
  i64 pipelines = 1, microbatches = 1;
  std::vector<std::size_t> types;  ///< [stage]
  std::vector<i64> layers;         ///< [stage]
  Seconds estimate = 0;
};

class PipelineTuner {
 public:
  PipelineTuner(Predictor& predictor, const Setting& setting)
      : predictor_(predictor),
        setting_(setting),
        request_(request_of(predictor, setting)),
        rates_(request_),
        types_(types_of(rates_)) {}

  Tuned run() {
    Tuned best;
    Layout layout;
    for (const i64 pipelines : counts()) {
      std::size_t simulated = 0;
      for (Layout& next : layouts(pipelines)) {
        if (simulated == kShortlist) break;
        const std::optional<Plan> plan = with_room(predictor_, setting_, make(next), best.infeasible);
        if (!plan) continue;
        ++simulated;
        if (consider(*plan, best)) layout = std::move(next);
      }
      if (setting_.published && simulated > 0) break;
    }
    if (best.plan.groups.empty() && best.infeasible.empty())
      best.infeasible = fmt::format("{} layers and {} make no pipeline", predictor_.model().num_layers,
                                    counted(predictor_.cluster().num_devices(), "device"));
    if (best.plan.groups.empty()) return best;
    best.infeasible.clear();
    while (move_layer(layout, best)) {
    }
    return best;
  }

 private:
  static PlanRequest request_of(const Predictor& predictor, const Setting& setting) {
    PlanRequest request;
    request.model = predictor.model(), request.cluster = predictor.cluster();
    request.seq_len = setting.seq_len, request.sequences = setting.sequences;
    request.dtype = setting.dtype, request.wire = setting.wire, request.grad_dtype = grad_dtype_of(setting);
    request.wire_reduce = setting.wire_reduce;
    request.limits.memory_reserve = setting.memory_reserve;
    request.software = predictor.software();
    return request;
  }

  std::vector<i64> each_of(i64 pipelines) const {
    std::vector<i64> each;
    for (const TypeDevices& type : types_) each.push_back(static_cast<i64>(type.devices.size()) / pipelines);
    return each;
  }

  /// How many pipelines, the most first: as published all devices take part; else the most with as many
  /// stages.
  std::vector<i64> counts() const {
    i64 most = 1, common = 0;
    for (const TypeDevices& type : types_) {
      const auto size = static_cast<i64>(type.devices.size());
      most = std::max(most, size), common = std::gcd(common, size);
    }
    std::vector<i64> counts;
    std::vector<i64> before;
    for (i64 count = std::min(most, setting_.sequences); count >= 1; --count) {
      const std::vector<i64> each = each_of(count);
      const i64 stages = std::accumulate(each.begin(), each.end(), i64{0});
      const bool single = predictor_.cluster().num_devices() == 1;
      if ((stages < 2 && !single) || stages > predictor_.model().num_layers || each == before) continue;
      before = each;
      if (!setting_.published || common % count == 0) counts.push_back(count);
    }
    return counts;
  }

  /// The fastest by closed form first.
  std::vector<Layout> layouts(i64 pipelines) const {
    std::vector<Layout> all;
    const i64 each = setting_.sequences / pipelines;
    for (const std::vector<std::size_t>& types : type_orders(each_of(pipelines))) {
      std::vector<StageDevices> stages;
      for (const std::size_t type : types) stages.push_back({types_[type].cls, 1});
      for (const i64 count : microbatch_counts(each, 1)) {
        PipelineOrder order{.groups = pipelines, .microbatches = count};
        order.largest = (each + count - 1) / count;
        const StageCosts costs(rates_, order, stages);
        Layout layout{pipelines, count, types, split(costs, static_cast<i64>(stages.size())), 0};
        layout.estimate = costs.step(layout.layers, std::vector(stages.size(), RunRecompute::all(kHow)));
        all.push_back(std::move(layout));
      }
    }
    std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.estimate < b.estimate; });
    return all;
  }

  /// Where no cut has room, the fastest without regard to that, for hosts or for the reason.
  std::vector<i64> split(const StageCosts& costs, i64 stages) const {
    const i64 layers = predictor_.model().num_layers;
    const RunRecompute how = RunRecompute::all(kHow);
    const auto time = [&](const LayerRun& run) { return std::optional(costs.time(run, how)); };
    const auto fitting = [&](const LayerRun& run) { return costs.fits(run, how) ? time(run) : std::nullopt; };
    std::vector<i64> split = split_layers(layers, stages, fitting);
    return split.empty() ? split_layers(layers, stages, time) : split;
  }

  /// One layer from a stage to the next or back, where that is faster in the simulator.
  bool move_layer(Layout& layout, Tuned& best) {
    for (std::size_t s = 0; s + 1 < layout.layers.size(); ++s) {
      for (const i64 more : {1, -1}) {
        Layout next = layout;
        next.layers[s] += more, next.layers[s + 1] -= more;
        if (next.layers[s] == 0 || next.layers[s + 1] == 0) continue;
        std::string over;
        const std::optional<Plan> plan = with_room(predictor_, setting_, make(next), over);
        if (!plan || !consider(*plan, best)) continue;
        layout = std::move(next);
        return true;
      }
    }
    return false;
  }

  bool consider(const Plan& plan, Tuned& best) {
    Prediction prediction = predictor_.predict(plan);
    if (!best.plan.groups.empty() && prediction.step >= best.prediction.step) return false;
    best.plan = plan, best.prediction = std::move(prediction);
    best.plan.predicted_step_s = best.prediction.step;
    return true;
  }

  Plan make(const Layout& layout) const {
    Plan plan;
    plan.strategy = "pp-ep";
    plan.model = predictor_.model().name;
    plan.seq_len = setting_.seq_len;
    plan.order = OrderPolicy::kOneFOneB;
    plan.dtype.resize(predictor_.cluster().devices.size());
    apply(setting_, plan);
    plan.shard_optimizer = setting_.published;
    const std::vector<i64> sequences =
        proportional_split(setting_.sequences, std::vector<double>(idx(layout.pipelines), 1));
    std::vector<std::size_t> next(types_.size(), 0);
    for (i64 p = 0; p < layout.pipelines; ++p) {
      Group group;
      group.microbatches =
          proportional_split(sequences[idx(p)], std::vector<double>(idx(layout.microbatches), 1));
      for (std::size_t s = 0; s < layout.types.size(); ++s)
        append_stage(types_[layout.types[s]].devices[next[layout.types[s]]++], layout.layers[s], group);
      std::sort(group.devices.begin(), group.devices.end());
      plan.groups.push_back(std::move(group));
    }
    return plan;
  }

  /// A device that holds so many layers whole; the embedding is with the first, the head with the last.
  void append_stage(DeviceId device, i64 layers, Group& group) const {
    const Shares all = make_share_rows({device}, group.microbatches, {});
    if (group.devices.empty()) group.embed = all;
    group.head = all;
    group.devices.push_back(device);
    for (i64 l = 0; l < layers; ++l) {
      LayerPlacement layer{all, {}};
      if (predictor_.model().is_moe(static_cast<i64>(group.layers.size()))) {
        const BalanceInput stage{
            .devices = {{.id = device}}, .load = even_load(1, predictor_.model().num_experts), .moved = {}};
        layer.experts = find_balancer("even").place(stage).front();
      }
      group.layers.push_back(std::move(layer));
    }
  }

  Predictor& predictor_;
  const Setting& setting_;
  PlanRequest request_;
  Rates rates_;
  std::vector<TypeDevices> types_;
};

}  // namespace

Tuned tune_pp(Predictor& predictor, const Setting& setting) {
  return PipelineTuner(predictor, setting).run();
}

}  // namespace hetermoe
