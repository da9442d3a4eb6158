#pragma once
#include <vector>

#include "hetermoe/cost/measured.h"
#include "hetermoe/sim/folded_step.h"

namespace hetermoe {

/// What the simulator says of one step of a plan.
struct Prediction {
  Seconds step = 0;
  double tokens_per_s = 0;
  std::vector<double> busy;        ///< [device] share of the step spent in compute ops
  std::vector<Seconds> group_end;  ///< [group] end of its last op that belongs to a microbatch
  bool from_first_windows =
      false;  ///< of many microbatches the first were simulated, the others extrapolated
};

/// Runs of layers with the same shares: the stages of a pipeline. [stage] layers.
std::vector<i64> stage_layers(const Group& group);

/// Microbatches of a group that repeat the ones before them, whole windows of them.
struct Repeat {
  i64 unit = 0;   ///< microbatches after which all is as before
  i64 times = 0;  ///< units that need not be simulated
};
/// [group] of a plan; empty = all microbatches must be simulated.
std::vector<Repeat> repeated_windows(const Plan& plan);
/// Without them and, where there are any, `more` units.
Plan without_repeats(const Plan& plan, const std::vector<Repeat>& repeats, i64 more);

/// Prices and simulates plans of one model on one cluster, with evenly routed tokens.
class Predictor {
 public:
  /// Keeps references to model and cluster. Reads the profiles that the cluster names.
  Predictor(const ModelConfig& model, const Cluster& cluster, SoftwareConstants software = {},
            StepOptions step = {})
      : model_(model),
        cluster_(cluster),
        software_(software),
        step_(std::move(step)),
        profiles_(load_profiles(cluster)) {}

  Prediction predict(const Plan& plan);
  /// Empty when one simulation would take more than `max_visits` op-device visits, roughly.
  std::optional<Prediction> predict_within(i64 max_visits, const Plan& plan);
  /// Op-device visits of all simulations so far: the work that they were.
  i64 work() const { return work_; }
  const ModelConfig& model() const { return model_; }
  const Cluster& cluster() const { return cluster_; }
  const SoftwareConstants& software() const { return software_; }
  std::unique_ptr<CostModel> cost(const Plan& plan) const {
    return make_cost(model_, cluster_, plan, profiles_, software_);
  }

 private:
  struct Run {
    Seconds step = 0;
    std::vector<Seconds> busy;       ///< [device]
    std::vector<Seconds> group_end;  ///< as Prediction's
  };
  std::optional<Run> simulate(i64 max_visits, const Plan& plan);
  static void extend(Run& run, const Run& shorter, const Plan& plan, const std::vector<Repeat>& repeated);

  const ModelConfig& model_;
  const Cluster& cluster_;
  SoftwareConstants software_;
  StepOptions step_;
  ProfileSet profiles_;
  Simulator simulator_;
  i64 work_ = 0;
};

}  // namespace hetermoe
