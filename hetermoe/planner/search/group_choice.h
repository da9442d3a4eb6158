#pragma once
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "hetermoe/planner/estimate/estimate.h"

namespace hetermoe {

/// [class] devices of one group.
using Shape = std::vector<i64>;

/// Settings that all groups of a plan share.
struct GroupOrder {
  i32 window = 0;
  Recompute recompute = Recompute::kLocal;
  bool shard_optimizer = false;

  auto operator<=>(const GroupOrder&) const = default;
};

GroupOrder order_of(const Sketch& sketch);

/// Microbatch counts for so many sequences, ascending: divisors up to `limit` (0 = none). If there is none
/// between a number and its double, the double is added. For few sequences every number is in it.
std::vector<i64> microbatch_choices(i64 sequences, i64 limit);

/// Keeps at most `limit` of sorted values, both ends included.
std::vector<i64> thin(const std::vector<i64>& values, std::size_t limit);

/// Numbers of attention devices worth trying in a group: borders of classes and, between them, all of a small
/// group or a few.
std::vector<i64> attention_cuts(const Shape& shape);

/// A group of this shape whose first `cut` devices, in the order of advantage, compute attention.
SketchGroup cut_group(const Shape& shape, i64 cut);

/// Groups of this shape in which exactly the devices of one class compute attention, though another class
/// comes before it in the order of advantage. The advantage of a class matters less if the class is much the
/// fastest.
std::vector<SketchGroup> later_class_groups(const Shape& shape);

/// Sequences per second that devices of this shape cannot exceed: attention and experts in any mixture, each
/// at its best rate, nothing else.
double ideal_rate(const Rates& rates, const Shape& shape);

/// Chooses the devices with attention in a group and the number of microbatches: the best by estimate, found
/// by climbing from the borders of classes. Remembers its results. For one thread.
class GroupChoice {
 public:
  /// Keeps a reference.
  explicit GroupChoice(const Rates& rates) : rates_(rates) {}

  struct Chosen {
    SketchGroup group;
    GroupTime time;
  };
  /// Null when a group of this shape cannot hold the model in this order, as one of `groups` of a plan.
  const Chosen* best(const GroupOrder& order, const Shape& shape, i64 groups, i64 sequences);

  /// Among all groups that had no room the one that lacks least, and its need over the memory there is.
  const std::optional<Shortage>& nearest_miss() const { return nearest_.shortage; }
  void miss(const Shortage& shortage, const Shape& shape);
  /// The same of groups with devices of some class besides `cls`.
  const std::optional<Shortage>& nearest_miss_besides(std::size_t cls) const;

 private:
  class Climber;
  const std::vector<i64>& choices(i64 sequences);

  const Rates& rates_;
  std::map<i64, std::vector<i64>> choices_;
  /// The number of groups counts where the optimizer is sharded over them; else it is 1 here.
  std::map<std::tuple<GroupOrder, i64, i64, Shape>, std::optional<Chosen>> known_;
  struct Miss {
    std::optional<Shortage> shortage;
    double ratio = 0;  ///< what it needs over what there is
  };
  Miss nearest_;
  std::map<std::size_t, Miss> besides_;
};

}  // namespace hetermoe
