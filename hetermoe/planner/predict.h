#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "hetermoe/cost/measured.h"
#include "hetermoe/sim/folded_step.h"

namespace hetermoe {

/// Results of the simulator for one step of a plan.
struct Prediction {
  Seconds step = 0;
  double tokens_per_s = 0;
  std::vector<double> busy;        ///< [device] share of the step spent in compute ops
  std::vector<Seconds> group_end;  ///< [group] end of its last op that belongs to a microbatch
  std::vector<Bytes> memory;       ///< [device] peak; empty = not asked for
  bool from_first_windows =
      false;  ///< of many microbatches the first were simulated, the others extrapolated
};

/// The assumed routing.
struct AssumedRouting {
  std::shared_ptr<const RoutingLoad> load = nullptr;  ///< null = every expert gets as many tokens
  double margin = 1;  ///< devices have room for so many times the copies of the load
};
inline std::shared_ptr<const RoutingLoad> load_of(const AssumedRouting& routing, const ModelConfig& model) {
  return routing.load != nullptr ? routing.load : std::make_shared<ExpectedRouting>(model);
}
/// The margin of plans that are to be run: untrained routers are far from even.
inline constexpr double kRoutingMargin = 1.5;

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

/// Op-device visits up to which steps that are reported are simulated with all windows: a quarter of a
/// second.
inline constexpr i64 kAllWindows = 1'000'000;

/// Prices and simulates plans of one model on one cluster.
class Predictor {
 public:
  /// Keeps references to model and cluster. Reads the profiles that the cluster names.
  Predictor(const ModelConfig& model, const Cluster& cluster, SoftwareConstants software = {},
            StepOptions step = {}, AssumedRouting routing = {})
      : model_(model),
        cluster_(cluster),
        software_(software),
        step_(std::move(step)),
        routing_(std::move(routing)),
        profiles_(load_profiles(cluster)) {
    routing_.load = load_of(routing_, model);
  }

  Prediction predict(const Plan& plan);
  /// Empty when one simulation would take more than `max_visits` op-device visits, roughly.
  std::optional<Prediction> predict_within(i64 max_visits, const Plan& plan) {
    return predict(max_visits, plan, false);
  }
  /// The same with the peaks of memory. Where windows are left out, one more of them adds nothing to any
  /// peak; else all are simulated.
  std::optional<Prediction> judge_within(i64 max_visits, const Plan& plan) {
    return predict(max_visits, plan, true);
  }
  /// The same of all windows. Empty when that takes more than `max_visits`.
  std::optional<Prediction> whole_within(i64 max_visits, const Plan& plan);
  /// Op-device visits of all simulations so far: the work that they were.
  i64 work() const { return work_; }
  const ModelConfig& model() const { return model_; }
  const Cluster& cluster() const { return cluster_; }
  const SoftwareConstants& software() const { return software_; }
  std::unique_ptr<CostModel> cost(const Plan& plan) const {
    std::unique_ptr<CostModel> own = make_cost(model_, cluster_, plan, profiles_, software_);
    return reprice_ ? reprice_(std::move(own), plan) : std::move(own);
  }
  /// Makes another cost model of the usual one, for what no plan can say.
  using Reprice = std::function<std::unique_ptr<CostModel>(std::unique_ptr<CostModel>, const Plan&)>;
  void price_by(Reprice reprice) { reprice_ = std::move(reprice); }

 private:
  struct Run {
    Seconds step = 0;
    std::vector<Seconds> busy;       ///< [device]
    std::vector<Seconds> group_end;  ///< as Prediction's
    std::vector<Bytes> memory;       ///< likewise
  };
  std::optional<Prediction> predict(i64 max_visits, const Plan& plan, bool with_memory);
  std::optional<Run> simulate(i64 max_visits, const Plan& plan, bool with_memory);
  std::vector<Bytes> peaks(const FoldedStep& step, const OpTimes& times) const;
  static Prediction prediction_of(Run run, const Plan& plan);
  static void extend(Run& run, const Run& shorter, const Plan& plan, const std::vector<Repeat>& repeated);

  const ModelConfig& model_;
  const Cluster& cluster_;
  SoftwareConstants software_;
  StepOptions step_;
  AssumedRouting routing_;
  ProfileSet profiles_;
  Simulator simulator_;
  Reprice reprice_;
  i64 work_ = 0;
};

}  // namespace hetermoe
