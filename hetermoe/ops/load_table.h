#pragma once
#include <deque>
#include <vector>

#include "hetermoe/placement/routing_load.h"

namespace hetermoe {

/// The loads of all exchanges of a step, each asked for once. Where the routing is uniform, layers and
/// microbatches that are placed alike share one load.
class LoadTable {
 public:
  /// Keeps references to both.
  LoadTable(const Placement& placement, const RoutingLoad& routing);

  /// Load of the exchange that `op` belongs to (load_chunk); null for other ops.
  const ExchangeLoad* of(const Op& op);
  const ExchangeLoad& of(i32 group, i32 layer, i32 microbatch, i32 chunk);

  bool is_uniform() const { return routing_.is_uniform(); }
  /// The first layer (microbatch) of the group that is placed and routed like this one.
  i32 layer_class(i32 group, i32 layer) const {
    return classes_[static_cast<std::size_t>(group)].layers[static_cast<std::size_t>(layer)];
  }
  i32 microbatch_class(i32 group, i32 microbatch) const {
    return classes_[static_cast<std::size_t>(group)].microbatches[static_cast<std::size_t>(microbatch)];
  }

 private:
  struct Classes {
    std::vector<i32> layers, microbatches;
    std::vector<const ExchangeLoad*> loads;  // [layer][microbatch][chunk], null = not asked for yet
  };
  Classes make_classes(i32 group) const;

  const Placement& placement_;
  const RoutingLoad& routing_;
  std::vector<Classes> classes_;  // [group]
  std::deque<ExchangeLoad> loads_;
};

}  // namespace hetermoe
