#pragma once
#include <numeric>
#include <vector>

#include "hetermoe/planner/estimate/rates.h"

// A plan in a few numbers: how many devices of each class do what. Sketches are weighed by the thousand; the
// promising ones are rounded to plans and simulated.
namespace hetermoe {

/// Sum of numbers by class.
inline i64 sum_of(const std::vector<i64>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), i64{0});
}

struct SketchGroup {
  std::vector<i64> first, count;  ///< [class] the group has devices first .. first + count - 1 of the class
  std::vector<i64> attention;     ///< [class] the first so many of them compute attention
  bool by_speed = false;          ///< sequences in proportion to attention speed; else equally
  bool mixed = false;             ///< attention devices own experts too, as far as that evens the load
  i64 sequences = 0, microbatches = 1;
};

/// Equal but for which devices of their classes they have.
bool alike(const SketchGroup& a, const SketchGroup& b);

/// How experts become whole numbers. kByPart: devices of a part own equally many in a layer where the numbers
/// allow it, so that none of them waits for another. Other layers even out the remainder. kByDevice: every
/// device owns the number that is best for it over all layers.
enum class Rounding { kByPart, kByDevice };

struct Sketch {
  std::vector<SketchGroup> groups;
  Rounding rounding = Rounding::kByPart;
  i32 window = 0, chunks = 1;
  Recompute recompute = Recompute::kLocal;
  bool shard_optimizer = false;
  double bias =
      1;  ///< factor on attention times when experts are balanced: > 1 keeps experts off attention devices
};

/// Rounds to whole sequences per microbatch and whole experts per layer, uneven where nothing divides.
/// `squeeze` scales what of a class's free memory experts may take.
Plan realize(const Rates& rates, const Sketch& sketch, double squeeze = 1);

/// The same in two steps. Groups that follow one that is alike differ from it in their devices alone, so one
/// of each kind is made, with all layers, ...
std::vector<Group> realize_kinds(const Rates& rates, const Sketch& sketch, double squeeze);
/// [kind] groups of it.
std::vector<i64> groups_of_kinds(const Sketch& sketch);
/// ... and copied for all groups: the first `layers` of its layers.
Plan assemble(const Rates& rates, const Sketch& sketch, const std::vector<Group>& kinds, i64 layers);

}  // namespace hetermoe
