#pragma once
#include <span>
#include <vector>

#include "hetermoe/placement/placement.h"

// Which of an expert's owners computes which copy. Executor and simulator ask this one rule.
namespace hetermoe {

/// An owner of an expert: destination index (position in the list of expert devices) and its share of the
/// copies.
struct ExpertShare {
  i32 destination = 0;
  double share = 1;
};
using OwnerTable = std::vector<std::vector<ExpertShare>>;  ///< [E], each in device order, shares sum to 1

/// The owners of the experts of a layer. Destinations are positions in placement.owners(group, layer); with
/// experts at their sources there is one.
OwnerTable owner_table(const Placement& placement, i32 group, i32 layer);

/// The destination of each copy, in the order of the ids; -1 for ids that are no expert. The copies of a
/// replicated expert are split by position in proportion to the shares. Id: an integer type.
template <class Id>
std::vector<i32> copy_destinations(std::span<const Id> ids, const OwnerTable& owners) {
  std::vector<i64> total(owners.size(), 0), seen(owners.size(), 0);
  const auto is_expert = [&](Id id) { return static_cast<std::size_t>(id) < owners.size(); };
  for (const Id id : ids) {
    if (is_expert(id)) ++total[static_cast<std::size_t>(id)];
  }
  std::vector<i32> out(ids.size(), -1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!is_expert(ids[i])) continue;
    const auto expert = static_cast<std::size_t>(ids[i]);
    const std::vector<ExpertShare>& shares = owners[expert];
    const double position = static_cast<double>(seen[expert]++) + 0.5,
                 count = static_cast<double>(total[expert]);
    std::size_t owner = 0;
    double end = shares[0].share * count;
    while (owner + 1 < shares.size() && position > end) end += shares[++owner].share * count;
    out[i] = shares[owner].destination;
  }
  return out;
}

}  // namespace hetermoe
