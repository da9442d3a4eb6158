#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/balance/balancers.h"
#include "hetermoe/balance/device_loads.h"
#include "hetermoe/balance/knows.h"
#include "hetermoe/balance/lent.h"
#include "hetermoe/cost/measured.h"
#include "hetermoe/routing/domain_use.h"
#include "hetermoe/routing/metrics.h"
#include "hetermoe/routing/plan_figures.h"
#include "hetermoe/routing/split_routing.h"
#include "hetermoe/sim/memory.h"

// Balancers on recorded routing, without training.
namespace hetermoe {

/// The quantity that balancers make equal: the time of devices, or (as the papers do) their copies.
enum class Weigh { kTime, kCount };

struct TraceBalanceOptions {
  std::string balancer;  ///< see balancer_choice()
  std::string parts = kAllParts;
  Knows knows = Knows::kHistory;
  i64 replicas = 0;  ///< copies of experts in a layer beyond one of each, for balancers that make some
  i64 guests = 2;    ///< slots for guests on each device, where the balancer has guests
  /// Copies that a guest must save, see Plan::guest_cost; none = its cost by the cost model.
  std::optional<i64> guest_cost = 0;
  Weigh weigh = Weigh::kTime;
  std::string topology = {};  ///< for lplb, see topology_columns()
  /// The choice of a balancer is taken for a step only if it shortens the simulated step by more than
  /// kLeastGain of the time with the plan's own owners; else these stay.
  bool guard = false;
  std::string groups = "node";  ///< where sequences are ordered, see device_groups()
  double load_cap = 1.1;        ///< for locality: time ratio of device groups, 0 = none
  bool padded = false;          ///< exchanges are simulated as PaddedRouting has them
};

/// The gain must be more than this part of a step, so that chance decides nothing.
inline constexpr double kLeastGain = 0.005;
/// The guard's decision from two simulated steps: with the balancer's choice, and without.
inline bool shortens(Seconds with, Seconds without) { return with < (1 - kLeastGain) * without; }

/// A balancer over the steps of a trace.
struct TraceBalanceResult {
  FigureRange time_ratio, rank_ratio, node_ratio;  ///< over steps, layers, groups, microbatches
  double node_rows = 0;                            ///< rows between nodes per token and layer
  double owners = 0;                               ///< of a layer's experts together, mean
  double guests = 0;                               ///< lent per exchange, mean
  Seconds plan = 0;                                ///< of placing on this machine, per step, measured
  double moved = 0;                ///< per step and layer: owners that an expert had not in the step before
  Seconds step = 0;                ///< of the last step, simulated with contention
  Seconds exchanges = 0;           ///< of its dispatches and combines, each alone on its links
  std::vector<MemoryPeak> memory;  ///< [num_devices] in the last step
  std::vector<i64> steps;          ///< numbers of those looked at
  std::vector<double> time_ratio_of_step;  ///< [steps] mean over layers, groups, microbatches
  i64 kept = 0;                            ///< steps for which the guard kept the plan's owners
  Bytes moved_bytes = 0;                   ///< per step, of what changes its device, moments included
  Seconds move = 0;                        ///< of moving that, per step, simulated
  Lent lent;                               ///< in the last step
  std::vector<DeviceLoads> loads;          ///< [layers with experts] of the last step; none with oracle
};

/// Steps of a trace in their order. Each is read when its turn comes, so that one or two are in memory.
struct RecordedSteps {
  std::size_t count = 0;
  std::function<TraceRouting(std::size_t)> read;  ///< the step at this place, 0 to count - 1

  RecordedSteps(std::size_t num_steps, std::function<TraceRouting(std::size_t)> read_step)
      : count(num_steps), read(std::move(read_step)) {}
  /// Steps in memory, which must outlive this.
  RecordedSteps(const std::vector<TraceRouting>& all)
      : RecordedSteps(all.size(), [&all](std::size_t s) { return all[s]; }) {}
};

/// `plan` with the owners of `from`.
Plan with_owners(Plan plan, const Plan& from);

/// Balances a trace on a model, a cluster and a plan. All referenced objects must outlive it.
class TraceBalance {
 public:
  TraceBalance(const ModelConfig& model, const Cluster& cluster, const Plan& plan, const StepOptions& step,
               const ProfileSet& profiles);
  /// steps: of the trace, with choices, at least two where the balancer knows the history: the first is only
  /// known. Throws InputError and ConfigError.
  TraceBalanceResult run(const TraceBalanceOptions& options, const RecordedSteps& steps) const;
  /// For each layer and two microbatches in a row of a step: the time ratio when `lpt` places by the one
  /// before over that when it places by the one itself. At least 1, but for what greedy placing leaves to
  /// chance.
  FigureRange history_cost(const TraceStep& step) const;
  /// Loads of all experts: [layers with experts][experts].
  using Loads = std::vector<std::vector<double>>;
  /// The plan with the owners that a balancer chooses by these loads, and by the microbatches of `step`
  /// where there is one; and with tally, where it divides copies in the step. use: by what the domains choose
  /// rather than by the sequences of `step`, with locality.
  Plan placed(const TraceBalanceOptions& options, const Loads& loads, const TraceRouting* step = nullptr,
              const DomainUse& use = {}) const;

  /// A step with contention under the plan, which may have other owners.
  Seconds simulated(const Plan& plan, const RoutingLoad& routing) const;

  /// [places of the step] which of its sequences is best at each under the plan. rows: [sequences of the
  /// step] copies of each, see order_places(). Empty: the balancer orders none, or nothing is known.
  std::vector<i64> order(const TraceBalanceOptions& options, const Plan& plan, const Activations& rows) const;
  /// The step as order() has it.
  TraceRouting ordered(const TraceBalanceOptions& options, const Plan& plan, const Activations& rows,
                       const TraceRouting& step) const;

 private:
  BalanceInput input_of(i32 group, const Loads& loads) const;
  void add_usage(const TraceBalanceOptions& options, i32 group, const TraceRouting* step,
                 const DomainUse& use, BalanceInput& input) const;
  std::vector<Loads> microbatches_of_group(i32 group, const TraceRouting& step) const;
  struct Known;
  static Activations rows_of(const TraceBalanceOptions& options, const Known& known,
                             const TraceRouting& step);
  Plan chosen(const TraceBalanceOptions& options, const Known& known, bool& kept) const;
  void simulate_last(const TraceBalanceOptions& options, const Plan& plan, const SplitRouting& routing,
                     TraceBalanceResult& out) const;
  std::vector<DeviceLoads> loads_with_speeds(const Plan& plan, const TraceRouting& step,
                                             const SplitRouting& routing) const;
  void add_move(const Plan& before, const Plan& plan, TraceBalanceResult& out) const;
  void add_figures(const Plan& plan, const Plan& before, const SplitRouting& routing,
                   TraceBalanceResult& out) const;
  Plan with_experts_more(std::size_t num_layers) const;
  void find_room();
  void check_copies(const BalanceInput& input) const;
  std::vector<NodePort> ports_of_group(i32 group) const;
  std::vector<i64> split_speeds() const;
  std::vector<i64> guest_cost(const TraceBalanceOptions& options) const;
  double guests_per_exchange(const Plan& plan, const SplitRouting& routing) const;

  const ModelConfig& model_;
  const Cluster& cluster_;
  Plan plan_;
  StepOptions step_;
  Placement placement_;
  std::unique_ptr<CostModel> cost_;
  std::vector<i64> layers_;                     // with experts
  std::vector<std::vector<DeviceId>> devices_;  // [group] that own experts in some layer, ascending
  std::vector<std::vector<double>> speeds_;     // [group][of devices_]
  std::vector<std::vector<i64>> room_;  // [group][of devices_] experts of all layers that memory holds
};

}  // namespace hetermoe
