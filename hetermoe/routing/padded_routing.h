#pragma once
#include "hetermoe/placement/routing_load.h"

namespace hetermoe {

/// A load as kernels of fixed sizes would send it: every source that sends any rows to other nodes sends as
/// many as the one that sends most, so that time follows that one and not the mean. To compare with such
/// kernels; ours pad nothing. Padding takes memory, what is computed stays. Keeps references.
class PaddedRouting : public RoutingLoad {
 public:
  PaddedRouting(const RoutingLoad& inner, const Cluster& cluster) : inner_(inner), cluster_(cluster) {}
  ExchangeLoad exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                        i32 chunk) const override;
  bool is_uniform() const override { return inner_.is_uniform(); }

 private:
  const RoutingLoad& inner_;
  const Cluster& cluster_;
};

}  // namespace hetermoe
