#pragma once
#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/planner.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "tests/support/plan_bound.h"
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

/// A plan of one group, without shares and experts.
inline Plan oracle_plan(const PlanRequest& r, i64 microbatches, Recompute recompute, bool shard_optimizer) {
  StrategyRequest ask;
  ask.seq_len = r.seq_len;
  ask.sequences = r.sequences;
  ask.microbatches = microbatches;
  Plan plan = find_strategy("ep").make(r.model, r.cluster, ask);
  plan.dtype.assign(plan.dtype.size(), r.dtype);
  plan.wire_forward = plan.wire_backward = wire_of(r.dtype);
  plan.recompute = recompute;
  plan.shard_optimizer = shard_optimizer;
  return plan;
}

/// shares: [device] sequences of every microbatch.
inline void set_shares(Plan& plan, const std::vector<i64>& shares) {
  Group& group = plan.groups[0];
  ShareRow row;
  for (std::size_t d = 0; d < shares.size(); ++d) {
    if (shares[d] > 0) row.push_back({static_cast<DeviceId>(d), shares[d]});
  }
  group.embed = group.head = {row};
  for (LayerPlacement& layer : group.layers) layer.attention = {row};
}

/// Prices layers with each of `counts` under the shares of the plan. False when the attention parts alone
/// take `most`.
inline bool price_layers(const PlanRequest& r, Plan plan, const std::vector<std::vector<i64>>& counts,
                         Seconds most, StepSeconds& seconds) {
  const auto microbatches = static_cast<i64>(plan.groups[0].microbatches.size());
  plan.groups[0].microbatches.resize(1);
  LayerPrices prices(r, plan);
  for (DeviceId d = 0; d < r.cluster.num_devices(); ++d)
    seconds.shares.push_back(sequences_of(plan.groups[0].embed[0], d));
  seconds.num_layers = r.model.num_layers;
  seconds.num_experts = r.model.num_experts;
  for (const std::vector<i64>& of_layer : counts) {
    seconds.layers.push_back(prices.price(of_layer, seconds.common));
    for (std::size_t d = 0; d < seconds.shares.size(); ++d) {
      const Seconds attention = static_cast<double>(microbatches * r.model.num_layers) * seconds.attention(d);
      if (attention + seconds.common.reduce >= most) return false;
    }
  }
  seconds.settle(counts);
  return true;
}

/// The fastest plan that an exact search has seen, and how much it has simulated.
class OracleSearch {
 public:
  /// Looks for steps below `incumbent` only.
  OracleSearch(const PlanRequest& request, Seconds incumbent)
      : r_(request), predictor_(request.model, request.cluster, request.software), best_(incumbent) {}

  /// Gives up after so many simulations.
  void limit(i64 simulations) { most_simulated_ = simulations; }
  /// It did not give up.
  bool solved() const { return num_simulated_ < most_simulated_; }
  i64 num_simulated() const { return num_simulated_; }
  /// Without groups when no plan is faster than the incumbent.
  const Plan& best_plan() const { return best_plan_; }

 protected:
  /// Simulates the plan where its devices have room.
  void consider(const Plan& plan) {
    if (!overfilled_device(estimate_memory(plan, r_.model, {}, {}, r_.routing.margin), r_.cluster).empty())
      return;
    const Seconds step = predictor_.predict(plan).step;
    ++num_simulated_;
    if (step >= best_) return;
    best_ = step;
    best_plan_ = plan;
  }

  const PlanRequest& r_;
  Predictor predictor_;
  Seconds best_;
  Plan plan_;  ///< that is being made

 private:
  Plan best_plan_;
  i64 num_simulated_ = 0, most_simulated_ = std::numeric_limits<i64>::max();
};

/// The least step over: equal microbatches of every number, every share of their sequences (the same in all
/// layers), every count of experts per device and layer, every window, with recomputation or without, the
/// optimizer sharded or not. One group. Equal devices (same type, speed and node) may swap what they do, so
/// only one order of each such set is looked at.
class PlanOracle : public OracleSearch {
 public:
  enum class Search { kExhaustive, kBranchAndBound };

  /// Looks for steps below `incumbent` only. kBranchAndBound leaves out what StepBound says is no faster.
  PlanOracle(const PlanRequest& request, Seconds incumbent, Search search = Search::kBranchAndBound)
      : OracleSearch(request, incumbent), bounded_(search == Search::kBranchAndBound) {}

  /// `incumbent` when no plan is faster.
  Seconds best() {
    const auto devices = static_cast<std::size_t>(r_.cluster.num_devices());
    counts_ = compositions(r_.model.num_experts, devices);
    for (i64 microbatches = 1; microbatches <= r_.sequences; ++microbatches) {
      if (r_.sequences % microbatches != 0) continue;
      for (const Recompute recompute : {Recompute::kOff, Recompute::kLocal}) {
        for (const bool shard_optimizer : {false, true}) {
          plan_ = oracle_plan(r_, microbatches, recompute, shard_optimizer);
          for (const std::vector<i64>& shares : compositions(r_.sequences / microbatches, devices))
            search(shares);
        }
      }
    }
    return best_;
  }

 private:
  i64 num_microbatches() const { return static_cast<i64>(plan_.groups[0].microbatches.size()); }

  void search(const std::vector<i64>& shares) {
    std::vector<DeviceId> twins(shares.size());  // the equal device before, -1 = none
    for (std::size_t d = 0; d < shares.size(); ++d) twins[d] = twin_of(d);
    if (!descends(shares, twins)) return;
    set_shares(plan_, shares);
    StepSeconds seconds;
    if (!solved() || (bounded_ && !price_layers(r_, plan_, counts_, best_, seconds))) return;
    for (plan_.window = 0; plan_.window < num_microbatches(); ++plan_.window) {
      const StepBound bound(seconds, num_microbatches(), plan_.window);
      place(0, bound, bound.empty(), twins);
    }
  }

  DeviceId twin_of(std::size_t d) const {
    const Device& device = r_.cluster.devices[d];
    for (std::size_t other = d; other-- > 0;) {
      const Device& before = r_.cluster.devices[other];
      if (before.type == device.type && before.node == device.node && before.speed == device.speed)
        return static_cast<DeviceId>(other);
    }
    return -1;
  }

  /// Twins that did the same so far do more in the order of their numbers; those that differ are no twins any
  /// more.
  static bool descends(const std::vector<i64>& amounts, std::vector<DeviceId>& twins) {
    for (std::size_t d = 0; d < amounts.size(); ++d) {
      if (twins[d] < 0) continue;
      const i64 before = amounts[static_cast<std::size_t>(twins[d])];
      if (amounts[d] > before) return false;
      if (amounts[d] < before) twins[d] = -1;
    }
    return true;
  }

  void place(std::size_t layer, const StepBound& bound, const StepBound::Prefix& prefix,
             const std::vector<DeviceId>& twins) {
    if (!solved() || (bounded_ && bound.bound(prefix) >= best_)) return;
    if (layer == plan_.groups[0].layers.size()) {
      consider(plan_);
      return;
    }
    for (std::size_t c = 0; c < counts_.size(); ++c) {
      std::vector<DeviceId> left = twins;
      if (!descends(counts_[c], left)) continue;
      set_owners(plan_.groups[0].layers[layer], counts_[c]);
      place(layer + 1, bound, bounded_ ? bound.with_layer(prefix, bound.layer(c)) : prefix, left);
    }
  }

  bool bounded_;
  std::vector<std::vector<i64>> counts_;  // of a layer
};

/// How much slower the planner's best is than the optimum of the family; 0 also when it is faster. Gaps below
/// `tolerance` take less time to rule out than to measure: they are reported as `tolerance`. Empty when the
/// oracle gave up after `most_simulated` simulations.
template <class Oracle = PlanOracle>
std::optional<double> gap_to_optimum(const PlanRequest& request, const PlanResult& result,
                                     double tolerance = 0,
                                     i64 most_simulated = std::numeric_limits<i64>::max()) {
  const Seconds step = result.best().prediction.step;
  Oracle oracle(request, step / (1 + tolerance));
  oracle.limit(most_simulated);
  const Seconds best = oracle.best();
  if (!oracle.solved()) return {};
  return step / best - 1;
}

}  // namespace hetermoe::testing
