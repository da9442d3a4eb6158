#pragma once
#include <vector>

#include "hetermoe/base/types.h"

// Splits of whole numbers: sequences over devices, experts over layers and devices. Pure functions.
namespace hetermoe {

/// Splits `total` into parts proportional to `weights`, largest remainder first; every part gets its floor.
std::vector<i64> proportional_split(i64 total, const std::vector<double>& weights);

/// Row i of the result adds up to rows[i], column j to columns[j] (equal totals). Every column is spread over
/// the rows as evenly as whole numbers allow.
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
