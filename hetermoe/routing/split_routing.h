#pragma once
#include "hetermoe/routing/exchange_split.h"
#include "hetermoe/routing/trace_routing.h"

namespace hetermoe {

/// The load of a recorded step when copies are divided within the step. Keeps references.
class SplitRouting : public RoutingLoad {
 public:
  SplitRouting(const TraceRouting& trace, const Cluster& cluster, CopySplit kind);
  ExchangeLoad exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                        i32 chunk) const override;
  bool is_uniform() const override { return false; }
  /// [chunks] as exchange() decides; of shares and oracle empty ones.
  std::vector<ExchangeSplit> split(const Placement& placement, i32 group, i32 layer, i32 microbatch) const;

 private:
  std::vector<SourceCopies> copies(const Placement& placement, i32 group, i32 layer, i32 microbatch) const;

  const TraceRouting& trace_;
  const Cluster& cluster_;
  CopySplit kind_;
};

}  // namespace hetermoe
