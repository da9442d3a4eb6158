#pragma once
#include <algorithm>
#include <functional>
#include <vector>

#include "hetermoe/plan/strategies.h"
#include "hetermoe/planner/memory_estimate.h"
#include "hetermoe/planner/planner.h"
#include "tests/support/random_plan.h"

// Exact search over a family of plans, for small instances: what the planner is measured against. It shares
// the simulator and the memory check with the planner and nothing else.
namespace hetermoe::testing {

struct SmallSizes {
  i64 layers = 2, experts = 4, devices = 3;  ///< at most
};

/// A random instance with up to three types of devices on two nodes.
inline PlanRequest small_request(u64 seed, const SmallSizes& sizes) {
  Chooser choose(seed);
  PlanRequest r;
  r.model = load_model("d1");
  r.model.num_layers = choose.between(1, sizes.layers);
  r.model.dense_layer.assign(static_cast<std::size_t>(r.model.num_layers), false);
  r.model.num_experts = choose.between(2, sizes.experts);
  r.model.top_k = choose.between(1, 2);
  r.cluster = make_cluster(static_cast<i32>(choose.between(2, sizes.devices)), 3, 2);
  for (Node& node : r.cluster.nodes) node.network = static_cast<double>(choose.between(2, 50)) * 1e9;
  r.seq_len = 1024 * choose.between(1, 8);
  r.sequences = choose.between(2, 4);
  return r;
}

/// Every way to write `total` as a sum over `parts`.
inline std::vector<std::vector<i64>> compositions(i64 total, std::size_t parts) {
  if (parts == 1) return {{total}};
  std::vector<std::vector<i64>> all;
  for (i64 first = 0; first <= total; ++first) {
    for (std::vector<i64> rest : compositions(total - first, parts - 1)) {
      rest.insert(rest.begin(), first);
      all.push_back(std::move(rest));
    }
  }
  return all;
}

/// The least step over: equal microbatches of every number, every share of their sequences (the same in all
/// layers), every count of experts per device and layer, every window, with recomputation or without. One
/// group.
class PlanOracle {
 public:
  /// Looks for steps below `incumbent` only. With `bounded`, placements whose busiest device already takes
  /// longer are not simulated.
  PlanOracle(const PlanRequest& request, Seconds incumbent, bool bounded)
      : r_(request),
        predictor_(request.model, request.cluster, request.software),
        best_(incumbent),
        bounded_(bounded) {}

  /// `incumbent` when no plan is faster.
  Seconds best() {
    const auto devices = static_cast<std::size_t>(r_.cluster.num_devices());
    counts_ = compositions(r_.model.num_experts, devices);
    for (i64 microbatches = 1; microbatches <= r_.sequences; ++microbatches) {
      if (r_.sequences % microbatches != 0) continue;
      for (const Recompute recompute : {Recompute::kOff, Recompute::kLocal}) {
        plan_ = blank_plan(microbatches, recompute);
        for (const std::vector<i64>& shares : compositions(r_.sequences / microbatches, devices))
          search(shares);
      }
    }
    return best_;
  }
  /// Without groups when no plan is faster than the incumbent.
  const Plan& best_plan() const { return best_plan_; }
  i64 num_simulated() const { return num_simulated_; }

 private:
  Plan blank_plan(i64 microbatches, Recompute recompute) const {
    StrategyRequest ask;
    ask.seq_len = r_.seq_len;
    ask.sequences = r_.sequences;
    ask.microbatches = microbatches;
    Plan plan = find_strategy("ep").make(r_.model, r_.cluster, ask);
    plan.dtype.assign(plan.dtype.size(), r_.dtype);
    plan.wire_forward = plan.wire_backward = r_.dtype;
    plan.recompute = recompute;
    return plan;
  }

  void search(const std::vector<i64>& shares) {
    Group& group = plan_.groups[0];
    ShareRow row;
    for (std::size_t d = 0; d < shares.size(); ++d) {
      if (shares[d] > 0) row.push_back({static_cast<DeviceId>(d), shares[d]});
    }
    group.embed = group.head = {row};
    for (LayerPlacement& layer : group.layers) layer.attention = {row};
    const RooflineCost cost(r_.model, r_.cluster, plan_, r_.software);
    std::vector<Seconds> load;
    expert_s_.assign(shares.size(), {0});
    for (std::size_t d = 0; d < shares.size(); ++d) {
      load.push_back(attention_seconds(cost, static_cast<DeviceId>(d), shares[d]));
      for (i64 e = 1; e <= r_.model.num_experts; ++e) {
        expert_s_[d].push_back(expert_seconds(cost, static_cast<DeviceId>(d), e));
      }
    }
    place(0, load);
  }

  /// Of a step.
  Seconds attention_seconds(const RooflineCost& cost, DeviceId device, i64 sequences) const {
    ComputeWork work;
    work.device = device;
    work.seq_len = r_.seq_len;
    work.sequences = static_cast<double>(sequences);
    work.tokens = static_cast<double>(sequences * r_.seq_len);
    work.trains = true;
    work.op.kind = OpKind::kHead;
    Seconds sum = cost.compute(work);
    for (i32 l = 0; l < r_.model.num_layers; ++l) {
      work.op = {OpKind::kAttention, Phase::kForward, 0, 0, l, 0, -1};
      sum += cost.compute(work);
      work.op.phase = Phase::kBackward;
      sum += cost.compute(work);
    }
    return sum * static_cast<double>(plan_.groups[0].microbatches.size());
  }

  /// Of a step, one layer.
  Seconds expert_seconds(const RooflineCost& cost, DeviceId device, i64 experts) const {
    ComputeWork work;
    work.op = {OpKind::kExperts, Phase::kForward, 0, 0, 0, 0, -1};
    work.device = device;
    work.seq_len = r_.seq_len;
    work.experts = static_cast<double>(experts);
    work.copies =
        static_cast<double>(plan_.groups[0].microbatches[0] * r_.seq_len * r_.model.top_k * experts) /
        static_cast<double>(r_.model.num_experts);
    Seconds sum = cost.compute(work);
    work.op.phase = Phase::kBackward;
    sum += cost.compute(work);
    return sum * static_cast<double>(plan_.groups[0].microbatches.size());
  }

  void place(std::size_t layer, const std::vector<Seconds>& load) {
    if (bounded_ && *std::max_element(load.begin(), load.end()) >= best_) return;
    if (layer == plan_.groups[0].layers.size()) {
      simulate();
      return;
    }
    for (const std::vector<i64>& counts : counts_) {
      std::vector<Seconds> next = load;
      auto& owners = plan_.groups[0].layers[layer].experts;
      owners.clear();
      for (std::size_t d = 0; d < counts.size(); ++d) {
        for (i64 e = 0; e < counts[d]; ++e) owners.push_back({{static_cast<DeviceId>(d), 1}});
        next[d] += expert_s_[d][static_cast<std::size_t>(counts[d])];
      }
      place(layer + 1, next);
    }
  }

  void simulate() {
    if (!overfilled_device(estimate_memory(plan_, r_.model), r_.cluster).empty()) return;
    const auto microbatches = static_cast<i32>(plan_.groups[0].microbatches.size());
    for (plan_.window = 0; plan_.window < microbatches; ++plan_.window) {
      const Seconds step = predictor_.predict(plan_).step;
      ++num_simulated_;
      if (step >= best_) continue;
      best_ = step;
      best_plan_ = plan_;
    }
  }

  const PlanRequest& r_;
  Predictor predictor_;
  Seconds best_;
  bool bounded_;
  Plan plan_, best_plan_;
  std::vector<std::vector<i64>> counts_;        // of a layer
  std::vector<std::vector<Seconds>> expert_s_;  // [device][experts]
  i64 num_simulated_ = 0;
};

/// How much slower the planner's best is than the optimum of the family; 0 also when it is faster.
inline double gap_to_optimum(const PlanRequest& request, const PlanResult& result) {
  const Seconds step = result.best().prediction.step;
  return step / PlanOracle(request, step, true).best() - 1;
}

}  // namespace hetermoe::testing
