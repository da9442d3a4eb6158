#pragma once
#include <functional>
#include <optional>

#include "hetermoe/cost/trained.h"
#include "hetermoe/planner/predict.h"

namespace hetermoe {

/// Deep models repeat themselves: from a few layers on, each further layer adds the same time. Simulates the
/// first layers of a plan, twice, and extrapolates to all. Exact models are simulated as they are.
class ShortModel {
 public:
  /// Keeps references to model and cluster. Models that are shallow, or whose dense layers are not the first
  /// ones, are not shortened.
  ShortModel(const ModelConfig& model, const Cluster& cluster, const SoftwareConstants& software,
             const Trained& trained = {}, const AssumedRouting& routing = {});

  bool shortens() const { return longer_.has_value(); }
  /// Layers that one prediction simulates.
  i64 layers_simulated() const;
  /// Leaves the plan as it is. Empty when one simulation would take more than `max_visits` op-device visits.
  std::optional<Prediction> predict_within(i64 max_visits, Plan& plan);
  /// make: the plan with so many of its first layers.
  std::optional<Prediction> predict_within(i64 max_visits, const std::function<Plan(i64)>& make);
  /// Op-device visits of all simulations so far.
  i64 work() const;

  /// Both plans and the weight of their difference: value(all) = longer + extra * (longer - shorter).
  const ModelConfig& shorter_model() const { return shorter_model_; }
  const ModelConfig& longer_model() const { return longer_model_; }
  double extra() const { return extra_; }
  /// The first layers of a plan, which is left as it is.
  static Plan cut(Plan& plan, i64 layers);

 private:
  Prediction extrapolate(Prediction longer, const Prediction& shorter) const;

  ModelConfig shorter_model_, longer_model_;
  double extra_ = 0;
  Predictor full_;
  std::optional<Predictor> shorter_, longer_;
};

}  // namespace hetermoe
