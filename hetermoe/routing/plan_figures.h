#pragma once
#include <optional>
#include <vector>

#include "hetermoe/cost/cost_model.h"
#include "hetermoe/routing/metrics.h"
#include "hetermoe/routing/trace_routing.h"

// The cost of a trace's routing under a plan.
namespace hetermoe {

/// Seconds of expert work for a copy, all phases, near `copies` copies on a device: of the owners of a layer,
/// in the order of placement.owners(). Throws ConfigError where experts are computed at their tokens'
/// devices.
std::vector<Seconds> copy_seconds(const CostModel& cost, const Placement& placement, const ModelConfig& model,
                                  const Cluster& cluster, i32 group, i32 layer, double copies);

/// Speeds at expert work of the owners of a layer, in the order of placement.owners(): whole numbers, the
/// slowest device that costs most per copy has the least; inverse to the seconds per copy, forward and
/// backward, near `copies` copies on a device.
std::vector<double> expert_speeds(const CostModel& cost, const Placement& placement, const ModelConfig& model,
                                  const Cluster& cluster, i32 group, i32 layer, double copies);

/// How the copies of a whole step weigh on the devices of a plan; means over layers and groups.
struct StepRouting {
  double gini = 0;  ///< over experts
  // None where no device owns experts: every device computes those of its own tokens.
  std::optional<double> rank_ratio = {};  ///< largest over mean of the owners' copies
  std::optional<double> time_ratio = {};  ///< of the owners' expert work, see metrics.h
};

/// [num_devices][num_layers] copies that the experts of each of `devices` compute in a step, guests included;
/// empty for other devices. Layers whose experts are computed where their tokens are count as 0.
std::vector<std::vector<double>> copies_of_devices(const Placement& placement, const RoutingLoad& routing,
                                                   const std::vector<DeviceId>& devices);

/// Makes these figures step by step under one plan. All that is referred to must outlive it.
class RoutingWatch {
 public:
  RoutingWatch(const CostModel& cost, const Placement& placement, const ModelConfig& model,
               const Cluster& cluster);
  /// counts: [num_layers][experts] copies of the step; rows of dense layers are not looked at.
  /// computed: copies_of_devices() of all devices.
  StepRouting of(const std::vector<std::vector<double>>& counts,
                 const std::vector<std::vector<double>>& computed);

 private:
  const CostModel& cost_;
  const Placement& placement_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  std::vector<std::vector<std::vector<double>>> speeds_;  // [group][layer][owners], made at the first use
};

/// Figures of one layer over its exchanges (groups and microbatches of the plan).
struct PlanLayerFigures {
  i64 layer = 0;
  FigureRange time_ratio;  ///< of the owners' expert work, see metrics.h
  FigureRange rank_ratio;  ///< largest over mean of the owners' copies
  /// time_ratio if the copies of a node could be divided at will over its owners: what is left to who moves
  /// copies inside nodes alone.
  FigureRange node_ratio;
};

struct PlanFigures {
  std::vector<PlanLayerFigures> layers;
  /// Rows that change nodes, per token and layer: as many as the plan sends, and a row for each copy.
  double node_rows = 0, node_copies = 0;
  FigureRange over_layers(FigureRange PlanLayerFigures::*figure) const;
};

/// Adds up the steps of a trace under a plan. All that is referred to must outlive it.
class PlanAnalyser {
 public:
  PlanAnalyser(const CostModel& cost, const Placement& placement, const ModelConfig& model,
               const Cluster& cluster);
  /// routing: of a whole step of the plan.
  void add(const RoutingLoad& routing);
  PlanFigures finish() const;

 private:
  void add_exchange(const RoutingLoad& routing, std::size_t layer, i32 group, i32 microbatch);

  const CostModel& cost_;
  const Placement& placement_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  PlanFigures figures_;
  std::vector<std::vector<std::vector<double>>> speeds_;  // [layers][groups][owners], made at the first use
  double tokens_ = 0;                                     // of all layers
};

}  // namespace hetermoe
