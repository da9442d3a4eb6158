#pragma once
#include <memory>
#include <vector>

#include "hetermoe/placement/routing_load.h"
#include "hetermoe/routing/domain_use.h"

// The step that comes, as far as the steps before tell.
namespace hetermoe {

/// Every layer has a popularity of its own.
class LayerPopularity : public RoutingLoad {
 public:
  /// layers: those with experts, ascending; copies: [of these][experts] mean copies.
  LayerPopularity(const ModelConfig& model, const std::vector<i64>& layers,
                  const std::vector<std::vector<double>>& copies);
  ExchangeLoad exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                        i32 chunk) const override;
  bool is_uniform() const override { return false; }

 private:
  std::vector<std::unique_ptr<ExpectedRouting>> loads_;
  std::vector<const ExpectedRouting*> of_layer_;  // [num_layers]
};

/// Every sequence chooses as those of its domain did, so that sources differ by their sequences.
class DomainRouting : public RoutingLoad {
 public:
  /// domains: [places of the step] of the sequence that is there; all must have had sequences.
  DomainRouting(const ModelConfig& model, const std::vector<i64>& layers, const DomainUse& use,
                std::vector<i32> domains);
  ExchangeLoad exchange(const Placement& placement, i32 group, i32 layer, i32 microbatch,
                        i32 chunk) const override;
  bool is_uniform() const override { return false; }

 private:
  std::vector<std::unique_ptr<LayerPopularity>> of_domain_;  // null where it has no sequence
  std::vector<i32> domains_;
};

}  // namespace hetermoe
