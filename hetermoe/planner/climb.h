#pragma once
#include <functional>

#include "hetermoe/planner/blocks.h"
#include "hetermoe/planner/evaluator.h"
#include "hetermoe/planner/moves.h"

namespace hetermoe {

/// What a climb changes: sketches and the order alone; also single devices, experts and sequences of a plan,
/// which takes many simulations for a small gain; also experts between layers, for the smallest.
enum class ClimbBy { kSketches, kPlans, kSwaps };

/// Goes from a plan to faster neighbours until none is faster or the budget is used up.
class Climb {
 public:
  /// Keeps references. Stops when no more than `kept` of the evaluator's budget is left.
  Climb(const PlanRequest& request, Evaluator& evaluator, GroupChoice& choice, i64 kept)
      : request_(request), evaluator_(evaluator), choice_(choice), kept_(kept) {}

  bool may_go_on() const { return evaluator_.budget() > kept_; }
  void run(i64 start, ClimbBy by);

 private:
  bool improve_plan(bool swaps);
  bool improve_sketch();
  bool improve_blocks();
  /// Evaluates sketches, the promising ones first. True when one is better than the current plan.
  bool try_sketches(const Sketch& current, std::vector<Sketch> sketches);
  bool improve_order();
  bool improve_devices();
  bool improve_columns();
  bool improve_experts();
  bool improve_layers();
  bool improve_sequences();
  /// Calls try_moves(context of the current plan, exchanges of a group) for every group that is worth it.
  bool improve_groups(const std::function<void(const MoveContext&, const std::vector<Move>&)>& try_moves);
  /// Evaluates what a move made, if it applied.
  void consider(std::optional<Plan> plan);

  const PlanRequest& request_;
  Evaluator& evaluator_;
  GroupChoice& choice_;
  i64 kept_;
};

}  // namespace hetermoe
