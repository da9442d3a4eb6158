#pragma once
#include <vector>

#include "hetermoe/cost/roofline.h"
#include "hetermoe/sim/simulator.h"

namespace hetermoe {

/// What the simulator says of one step of a plan.
struct Prediction {
  Seconds step = 0;
  double tokens_per_s = 0;
  std::vector<double> busy;  ///< [device] share of the step spent in compute ops
};

/// Prices and simulates plans of one model on one cluster, with evenly routed tokens.
class Predictor {
 public:
  /// Keeps references to model and cluster.
  Predictor(const ModelConfig& model, const Cluster& cluster, SoftwareConstants software = {})
      : model_(model), cluster_(cluster), software_(software) {}

  Prediction predict(const Plan& plan);
  const ModelConfig& model() const { return model_; }
  const Cluster& cluster() const { return cluster_; }
  const SoftwareConstants& software() const { return software_; }

 private:
  Prediction simulate(const Plan& plan);

  const ModelConfig& model_;
  const Cluster& cluster_;
  SoftwareConstants software_;
  Simulator simulator_;
};

}  // namespace hetermoe
