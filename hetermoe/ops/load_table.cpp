#include "hetermoe/ops/load_table.h"

#include <numeric>

#include "hetermoe/ops/exchange.h"
#include "hetermoe/plan/backward_shares.h"

namespace hetermoe {
namespace {

bool same_rows(const Shares& shares, i32 a, i32 b) { return share_row(shares, a) == share_row(shares, b); }

bool alike(const Group& group, i32 a, i32 b) {
  if (group.microbatches[static_cast<std::size_t>(a)] != group.microbatches[static_cast<std::size_t>(b)])
    return false;
  if (!same_rows(group.embed, a, b) || !same_rows(group.head, a, b)) return false;
  for (const LayerPlacement& layer : group.layers) {
    if (!same_rows(layer.attention, a, b) || !same_rows(backward_shares(layer), a, b)) return false;
  }
  return true;
}

/// [index] the first that is equal to it.
template <class Equal>
std::vector<i32> first_equal(i32 count, Equal equal) {
  std::vector<i32> classes, firsts;
  for (i32 i = 0; i < count; ++i) {
    i32 found = i;
    for (const i32 first : firsts) {
      if (equal(first, i)) {
        found = first;
        break;
      }
    }
    if (found == i) firsts.push_back(i);
    classes.push_back(found);
  }
  return classes;
}

}  // namespace

LoadTable::LoadTable(const Placement& placement, const RoutingLoad& routing)
    : placement_(placement), routing_(routing) {
  for (i32 g = 0; g < placement.num_groups(); ++g) classes_.push_back(make_classes(g));
}

LoadTable::Classes LoadTable::make_classes(i32 group) const {
  const Group& g = placement_.plan().groups[static_cast<std::size_t>(group)];
  const i32 num_layers = placement_.num_layers(), num_microbatches = placement_.num_microbatches(group);
  const bool uniform = routing_.is_uniform();
  const auto shares_after = [&](i32 l) -> const Shares& {
    return l + 1 == num_layers ? g.head : g.layers[static_cast<std::size_t>(l) + 1].attention;
  };
  // Whether these are others, and who they are, tells where results go.
  const auto same_after = [&](i32 a, i32 b) {
    return placement_.plan().combine_to == CombineTo::kSource || shares_after(a) == shares_after(b);
  };
  Classes classes;
  classes.layers = first_equal(num_layers, [&](i32 a, i32 b) {
    return uniform && placement_.is_moe(a) == placement_.is_moe(b) &&
           g.layers[static_cast<std::size_t>(a)] == g.layers[static_cast<std::size_t>(b)] && same_after(a, b);
  });
  classes.microbatches =
      first_equal(num_microbatches, [&](i32 a, i32 b) { return uniform && alike(g, a, b); });
  classes.loads.assign(static_cast<std::size_t>(num_layers * num_microbatches * placement_.plan().chunks),
                       nullptr);
  return classes;
}

const ExchangeLoad* LoadTable::of(const Op& op) {
  return load_chunk(op) >= 0 ? &of(op.group, op.layer, op.microbatch, load_chunk(op)) : nullptr;
}

const ExchangeLoad& LoadTable::of(i32 group, i32 layer, i32 microbatch, i32 chunk) {
  layer = layer_class(group, layer);
  microbatch = microbatch_class(group, microbatch);
  const i32 index =
      (layer * placement_.num_microbatches(group) + microbatch) * placement_.plan().chunks + chunk;
  const ExchangeLoad*& load =
      classes_[static_cast<std::size_t>(group)].loads[static_cast<std::size_t>(index)];
  if (!load) {
    loads_.push_back(routing_.exchange(placement_, group, layer, microbatch, chunk));
    if (placement_.joins_at(group, layer + 1, microbatch))
      add_next(loads_.back(), placement_.ranges(group, layer + 1, microbatch).size(),
               next_segments(placement_, group, layer, microbatch, chunk));
    load = &loads_.back();
  }
  return *load;
}

}  // namespace hetermoe
