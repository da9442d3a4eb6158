#pragma once
#include <map>

#include "tests/support/plan_oracle.h"

// Exact search over pipelines of one group, for small instances. Like plan_oracle.h it shares the simulator
// and the memory check with the planner and nothing else.
namespace hetermoe::testing {

/// What the devices of a stage do for each of its layers.
struct StageChoice {
  std::vector<i64> shares, counts;  ///< [device] sequences of a microbatch; experts
  PerDevice layer{};                ///< one microbatch, one layer, forward and backward
  PerDevice embed{}, head{};        ///< of a stage that has them
  Seconds chain = 0;  ///< what one microbatch takes at least through a layer, forward and backward
};

/// The least step of 1F1B over: every ordered division of some of the devices into stages, every number of
/// layers of each, equal microbatches of every number, every share of their sequences and every count of
/// experts on the devices of a stage, one or two microbatches at a time, with recomputation or without, the
/// optimizer sharded or not.
class StageOracle : public OracleSearch {
 public:
  using OracleSearch::OracleSearch;

  /// `incumbent` when no plan is faster.
  Seconds best() {
    for (i64 microbatches = 1; microbatches <= r_.sequences; ++microbatches) {
      if (r_.sequences % microbatches != 0) continue;
      for (const Recompute recompute : {Recompute::kOff, Recompute::kLocal}) {
        plan_ = oracle_plan(r_, microbatches, recompute, false);
        plan_.order = OrderPolicy::kOneFOneB;
        choices_.clear();
        extend({}, 0, 0);
      }
    }
    return best_;
  }

 private:
  struct Stage {
    const StageChoice* choice;
    i64 layers;
  };

  i64 num_microbatches() const { return static_cast<i64>(plan_.groups[0].microbatches.size()); }
  i64 num_devices() const { return r_.cluster.num_devices(); }

  /// used: bits of devices that have a stage; first: the next layer.
  void extend(const std::vector<Stage>& stages, u64 used, i64 first) {
    if (first == r_.model.num_layers) {
      if (stages.size() > 1) simulate(stages);
      return;
    }
    for (u64 devices = 1; devices < (u64{1} << num_devices()); ++devices) {
      if ((devices & used) != 0 || !lowest_twins(devices, used)) continue;
      for (const StageChoice& choice : choices(devices)) {
        for (i64 layers = 1; first + layers <= r_.model.num_layers && solved(); ++layers) {
          std::vector<Stage> more = stages;
          more.push_back({&choice, layers});
          if (bound(more, first + layers == r_.model.num_layers) < best_)
            extend(more, used | devices, first + layers);
        }
      }
    }
  }

  /// Of equal devices those with lower numbers get a stage first.
  bool lowest_twins(u64 devices, u64 used) const {
    for (i64 d = 0; d < num_devices(); ++d) {
      for (i64 other = 0; (devices >> d & 1) != 0 && other < d; ++other)
        if (are_twins(d, other) && ((devices | used) >> other & 1) == 0) return false;
    }
    return true;
  }

  bool are_twins(i64 a, i64 b) const {
    const Device &one = r_.cluster.devices[static_cast<std::size_t>(a)],
                 &two = r_.cluster.devices[static_cast<std::size_t>(b)];
    return one.type == two.type && one.node == two.node && one.speed == two.speed;
  }

  const std::vector<StageChoice>& choices(u64 devices) {
    const auto found = choices_.find(devices);
    if (found != choices_.end()) return found->second;
    std::vector<StageChoice>& out = choices_[devices];
    const auto spread = [&](i64 total) {
      std::vector<std::vector<i64>> all;
      for (std::vector<i64>& amounts : compositions(total, static_cast<std::size_t>(num_devices()))) {
        bool inside = true;
        for (i64 d = 0; d < num_devices(); ++d)
          inside = inside && ((devices >> d & 1) != 0 || amounts[static_cast<std::size_t>(d)] == 0);
        if (inside) all.push_back(std::move(amounts));
      }
      return all;
    };
    for (const std::vector<i64>& shares : spread(r_.sequences / num_microbatches()))
      for (const std::vector<i64>& counts : spread(r_.model.num_experts))
        if (every_device_works(devices, shares, counts)) out.push_back(priced(shares, counts));
    std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.chain < b.chain; });
    return out;
  }

  static bool every_device_works(u64 devices, const std::vector<i64>& shares,
                                 const std::vector<i64>& counts) {
    for (std::size_t d = 0; d < shares.size(); ++d)
      if ((devices >> d & 1) != 0 && shares[d] + counts[d] == 0) return false;
    return true;
  }

  StageChoice priced(const std::vector<i64>& shares, const std::vector<i64>& counts) const {
    StageChoice out{.shares = shares, .counts = counts};
    Plan plan = plan_;
    plan.order = OrderPolicy::kLayerMajor;
    plan.groups[0].microbatches.resize(1);
    set_shares(plan, shares);
    CommonSeconds common;
    const LayerSeconds layer = LayerPrices(r_, plan).price(counts, common);
    const auto slowest = [](const PerDevice& seconds) {
      return *std::max_element(seconds.begin(), seconds.end());
    };
    for (const std::size_t phase : {0u, 1u}) {
      for (std::size_t d = 0; d < shares.size(); ++d)
        out.layer[d] += common.attention[phase][d] + layer.experts[phase][d];
      for (std::size_t d = 0; d < shares.size(); ++d) out.embed[d] += common.embed[phase][d];
      out.chain += slowest(common.attention[phase]) + layer.dispatch[phase] + slowest(layer.experts[phase]) +
                   layer.combine[phase];
    }
    out.head = layer.head;
    return out;
  }

  /// Ops never take less than alone. A device computes all microbatches of its stage after the first has come
  /// through the stages before, and before the last has gone back through them. complete: the last one has
  /// the head.
  Seconds bound(const std::vector<Stage>& stages, bool complete) const {
    Seconds before = 0, most = 0;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const StageChoice& choice = *stages[s].choice;
      const auto layers = static_cast<double>(stages[s].layers);
      for (std::size_t d = 0; d < choice.shares.size(); ++d) {
        Seconds busy = layers * choice.layer[d];
        if (s == 0) busy += choice.embed[d];
        if (complete && s + 1 == stages.size()) busy += choice.head[d];
        most = std::max(most, before + static_cast<double>(num_microbatches()) * busy);
      }
      before += layers * choice.chain;
      most = std::max(most, before);
    }
    return most;
  }

  void simulate(const std::vector<Stage>& stages) {
    Group& group = plan_.groups[0];
    std::size_t next = 0;
    for (const Stage& stage : stages) {
      Plan own = plan_;
      set_shares(own, stage.choice->shares);
      const Shares shares = own.groups[0].embed;
      if (&stage == &stages.front()) group.embed = shares;
      if (&stage == &stages.back()) group.head = shares;
      for (i64 l = 0; l < stage.layers; ++l, ++next) {
        group.layers[next].attention = shares;
        set_owners(group.layers[next], stage.choice->counts);
      }
    }
    for (plan_.window = 1; plan_.window <= std::min<i64>(2, num_microbatches()); ++plan_.window)
      for (const bool shard : {false, true}) plan_.shard_optimizer = shard, consider(plan_);
  }

  std::map<u64, std::vector<StageChoice>> choices_;  // by bits of devices
};

/// A random instance with the layers and the slow links that make pipelines worth while.
inline PlanRequest small_pipeline_request(u64 seed, const SmallSizes& sizes) {
  PlanRequest r = small_request(seed, sizes);
  Chooser choose(seed + 7);
  r.model.num_layers = choose.between(2, sizes.layers);
  r.model.dense_layer.assign(static_cast<std::size_t>(r.model.num_layers), false);
  if (choose.below(2) == 0) r.model.vocab = 4096;
  r.sequences = choose.between(4, 8);
  for (Node& node : r.cluster.nodes) node.network = static_cast<double>(choose.between(2, 40)) * 1e8;
  return r;
}

}  // namespace hetermoe::testing
