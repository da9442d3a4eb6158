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
  /// By experts of single layers alone.
  void run_by_layer(i64 start);

 private:
  bool improve_sketch();
  bool improve_blocks();
  /// Evaluates sketches, the promising ones first. True when one is better than the current plan.
  bool try_sketches(const Sketch& current, std::vector<Sketch> sketches);
  bool improve_order();
  bool improve_layers();

  const PlanRequest& request_;
  Evaluator& evaluator_;
  GroupChoice& choice_;
  i64 kept_;
};

}  // namespace hetermoe
