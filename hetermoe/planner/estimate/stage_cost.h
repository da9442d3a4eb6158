#pragma once
#include <array>
#include <vector>

#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/estimate/layer_split.h"
#include "hetermoe/planner/estimate/rates.h"

// Time and memory of a stage of a pipeline, in closed form. All its devices are of one class, share attention
// equally and own equally many experts of each of its layers.
namespace hetermoe {

struct StageDevices {
  std::size_t cls = 0;
  i64 count = 0;

  bool operator==(const StageDevices&) const = default;
};

/// Settings that all stages of a pipeline share.
struct PipelineOrder {
  i64 groups = 1;                     ///< equal pipelines, each with devices of its own
  i64 microbatches = 1, largest = 1;  ///< of a pipeline, and sequences of the largest one
  i32 window = 1;                     ///< microbatches that go through a stage together
  bool shard_optimizer = true;
  std::vector<i64> span = {};  ///< [class] devices from one group to the next; empty = no other is alike
};

/// How the layers of a run recompute: the first num_first of them by `first`, the others by `rest`.
struct RunRecompute {
  Recompute first = Recompute::kAhead, rest = Recompute::kAhead;
  i64 num_first = 0;

  static RunRecompute all(Recompute recompute) { return {recompute, recompute, 0}; }
  Recompute of(i64 layer_of_run) const { return layer_of_run < num_first ? first : rest; }
};

/// One recomputation for all layers of a run.
struct RunChoice {
  RunRecompute recompute;  ///< the fastest that has room; where none has, resend
  Seconds time = 0;        ///< with it
  bool fits = false;
  Bytes least_memory = 0;  ///< with the one that needs least
};

class StageCosts {
 public:
  /// Keeps a reference to the rates.
  StageCosts(const Rates& rates, const PipelineOrder& order, std::vector<StageDevices> stages);

  RunChoice choice(const LayerRun& run) const;
  /// The fastest that has room, of some layers in one way and of the others in another.
  RunRecompute mixed(const LayerRun& run) const;
  /// Time of a window of microbatches, forward and backward, when only the stage's own microbatches hide its
  /// exchanges.
  Seconds time(const LayerRun& run, const RunRecompute& how) const;
  /// Memory of the fullest device, as estimate_memory() says.
  Bytes memory(const LayerRun& run, const RunRecompute& how) const;
  Bytes usable(i64 stage) const { return rates_.usable_memory(stages_[static_cast<std::size_t>(stage)].cls); }
  bool fits(const LayerRun& run, const RunRecompute& how) const {
    return memory(run, how) <= usable(run.stage);
  }
  Seconds slowest(const std::vector<i64>& layers) const;  ///< of stages of so many layers
  /// Time of a step, with stages of so many layers and this recomputation.
  Seconds step(const std::vector<i64>& layers, const std::vector<RunRecompute>& how) const;
  /// Nodes hold whole stages, or stages take whole nodes: the closed form is near then, else too low.
  bool all_keep_to_nodes() const { return all_keep_to_nodes_; }
  /// No split of the layers takes less.
  Seconds bound() const;
  /// False: no split has room for weights, gradients and optimizer alone.
  bool states_may_fit() const;

 private:
  /// A layer with experts or a dense one, the embedding, the head.
  struct Part {
    Seconds seconds = 0;                           ///< of a window, forward and backward
    Bytes states = 0;                              ///< of the fullest device
    Bytes reduction = 0;                           ///< as reduction_bytes()
    OpMemory attention, experts;                   ///< of ops
    Bytes attention_visit = 0, experts_visit = 0;  ///< of weights that live on hosts, with gradients
    Bytes inputs_wait = 0, rows_wait = 0;          ///< on hosts, of what ops keep
  };
  /// In the order in which they are fast. Local is ahead without what hides it.
  static constexpr std::array<Recompute, 4> kRecomputes = {Recompute::kOff, Recompute::kSelect,
                                                           Recompute::kAhead, Recompute::kResend};
  struct Figures {
    std::array<Part, kEnumCount<Recompute>> moe, dense;  ///< by Recompute
    Part embed, head;
    Seconds moves = 0;  ///< rows of a microbatch to the next stage and gradients to the one before
    i64 in_flight = 1;  ///< microbatches
  };
  Figures figures_of(const StageDevices& stage) const;
  void add_moves();
  std::vector<std::array<NodeId, 2>> nodes_of_stages() const;
  Seconds move(const StageDevices& stage, bool inside) const;
  Part layer(const StageDevices& stage, bool dense, Recompute recompute) const;
  Recompute fastest(i64 stage) const;
  i64 num_dense(i64 first, i64 count) const {
    return dense_before_[static_cast<std::size_t>(first + count)] -
           dense_before_[static_cast<std::size_t>(first)];
  }
  /// Calls f(parts by Recompute, how they recompute, layers) for the layers of a run that are alike.
  template <class F>
  void for_parts(const LayerRun& run, const RunRecompute& how, F f) const {
    const Figures& figures = figures_[static_cast<std::size_t>(run.stage)];
    const i64 num_first = how.num_first < run.count ? how.num_first : run.count;
    const auto part = [&](i64 first, i64 count, Recompute recompute) {
      const i64 dense = num_dense(first, count);
      if (dense > 0) f(figures.dense[static_cast<std::size_t>(recompute)], recompute, dense);
      if (count > dense) f(figures.moe[static_cast<std::size_t>(recompute)], recompute, count - dense);
    };
    part(run.first, num_first, how.first);
    part(run.first + num_first, run.count - num_first, how.rest);
  }
  /// Parameters of a part of the model, of whose gathered weights so many visits are there at once.
  struct Held {
    UnitPart part;
    double parameters, visits;
  };
  void add_states(Part& part, const StageDevices& stage, const Held& held) const;
  bool keeps_to_nodes(const StageDevices& stage, i64 first) const;
  Seconds exchange(const StageDevices& stage) const;
  Seconds end_of_step(const LayerRun& run) const;
  double tokens(const StageDevices& stage) const;  ///< of the fullest device
  double owned(const StageDevices& stage) const;   ///< experts of a layer
  i64 windows() const;

  const Rates& rates_;
  PipelineOrder order_;
  std::vector<StageDevices> stages_;
  bool shared_ = false;         // some stage has several devices
  bool keeps_to_nodes_ = true;  // the stage whose figures are made
  bool all_keep_to_nodes_ = true;
  Seconds busiest_port_ = 0;       // a microbatch's rows in one direction, of all stages of a node
  Plan plan_;                      // figures alone, for the memory of ops
  std::vector<Figures> figures_;   // [stage]
  std::vector<i64> dense_before_;  // [layer] dense layers before it; [num_layers] all
};

}  // namespace hetermoe
