#pragma once
#include "hetermoe/planner/search/blocks.h"
#include "hetermoe/planner/search/evaluator.h"

namespace hetermoe {

/// Goes from a plan to faster neighbours, in its sketch and its order, until none is faster or the budget is
/// used up.
class Climb {
 public:
  /// Keeps references. Stops when no more than `kept` of the evaluator's budget is left.
  Climb(const PlanRequest& request, Evaluator& evaluator, GroupChoice& choice, i64 kept)
      : request_(request), evaluator_(evaluator), choice_(choice), kept_(kept) {}

  bool may_go_on() const { return evaluator_.budget() > kept_; }
  void run(i64 start);
  /// By experts of single layers, and in its order.
  void run_by_layer(i64 start);

 private:
  bool improve_sketch();
  bool improve_blocks();
  /// Evaluates sketches, the promising ones first. True when one is better than the current plan.
  bool try_sketches(const Sketch& current, std::vector<Sketch> sketches);
  bool improve_order();
  bool improve_layers();
  /// An expert of each of these layers, where the device has one.
  void move_experts(std::size_t first, std::size_t end, DeviceId from, DeviceId to);

  const PlanRequest& request_;
  Evaluator& evaluator_;
  GroupChoice& choice_;
  i64 kept_;
};

/// In a small cluster: by layer from the best plan, then with a part of the budget from the best of others
/// that share their sequences out differently. With the same owners in all layers these may be slower, and
/// faster without.
void climb_by_layer(const PlanRequest& request, Evaluator& evaluator, GroupChoice& choice);
/// From the best plan alone, with some more budget, also in a cluster that is a little larger: a plan of a
/// part of the cluster may give experts to the rest.
void climb_winner_by_layer(const PlanRequest& request, Evaluator& evaluator, GroupChoice& choice);

}  // namespace hetermoe
