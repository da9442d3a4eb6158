#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/planner/rates.h"

// A plan in a few numbers: how many devices of each class do what. Sketches are weighed by the thousand; the
// promising ones are rounded to plans and simulated.
namespace hetermoe {

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
/// allow it, so that nobody in it waits for another; what that leaves over or short, other layers even out.
/// kByDevice: every device owns what is best for it over all layers.
enum class Rounding { kByPart, kByDevice };

struct Sketch {
  std::vector<SketchGroup> groups;
  Rounding rounding = Rounding::kByPart;
  i32 window = 0, chunks = 1;
  Recompute recompute = Recompute::kLocal;
  double bias =
      1;  ///< factor on attention times when experts are balanced: > 1 keeps experts off attention devices
};

/// Devices of equal load within a group.
struct Part {
  std::size_t cls = 0;
  double count = 0;
  bool attention = false, experts = false;  ///< what they may do
  double sequences = 0;                     ///< per microbatch, mean
  double most = 0;                          ///< in the fullest microbatch
  Seconds attention_s = 0;                  ///< per step: attention parts and head
  Seconds unit_s = 0;                       ///< per step: one expert of one layer
  Bytes fixed = 0;                          ///< memory without experts
  Bytes unit = 0;                           ///< memory of one expert of one layer
  double owned = 0;                         ///< experts per MoE layer
};

/// The device class whose memory a sketch overfills most.
struct Shortage {
  std::size_t cls = 0;
  Bytes need = 0;
  bool attention = false;
  double sequences = 0;  ///< at once, with attention
  double experts = 0;    ///< of all layers
};
/// "device 2 (V100 16 GiB) needs 18.2 GiB at 1 sequence"; with experts of its own: "... with 24 experts".
std::string to_string(const Rates& rates, const Shortage& shortage);

/// Splits the work of a group: sequences by speed, experts so that the busiest device is as little busy as
/// possible, within memory. Sets `shortage` when that is not enough.
std::vector<Part> weigh(const Rates& rates, const Sketch& sketch, const SketchGroup& group,
                        std::optional<Shortage>& shortage);

struct Estimate {
  Seconds step = 0;
  std::optional<Shortage> shortage;  ///< of memory; without one the figure holds

  bool feasible() const { return !shortage; }
};
Estimate estimate(const Rates& rates, const Sketch& sketch);

/// Rounds to whole sequences per microbatch and whole experts per layer, uneven where nothing divides.
/// `squeeze` scales what of a class's free memory experts may take.
Plan realize(const Rates& rates, const Sketch& sketch, double squeeze = 1);

/// Row i of the result adds up to rows[i], column j to columns[j] (equal totals), and every column is spread
/// over the rows as evenly as whole numbers allow.
std::vector<std::vector<i64>> spread(const std::vector<i64>& rows, const std::vector<i64>& columns);

/// Part p has sizes[p] equal devices that own totals[p] of the experts of all layers together. Returns
/// [layers][parts] experts of one device, `experts` in every layer, near the totals at any time; empty when
/// no whole numbers fit. unit_s: [parts] how much it matters that a device of the part has one more or less.
std::vector<std::vector<i64>> equal_counts(i64 layers, i64 experts, const std::vector<i64>& sizes,
                                           const std::vector<i64>& totals, const std::vector<double>& unit_s);

/// Units to bins so that the largest load + units * cost is least, at most `capacity` in each. Returns fewer
/// than `units` only when the capacities do not suffice.
std::vector<i64> balance_units(i64 units, const std::vector<double>& load, const std::vector<double>& cost,
                               const std::vector<i64>& capacity);

}  // namespace hetermoe
