#pragma once
#include <string>
#include <vector>

#include "hetermoe/planner/planner.h"
#include "hetermoe/planner/run_cost.h"
#include "hetermoe/planner/strategies/allocation.h"
#include "hetermoe/planner/strategies/baselines.h"

namespace hetermoe {

/// One line of a comparison: the best plan of one strategy at one sequence length.
struct CompareRow {
  std::string model, cluster;
  i64 seq_len = 0;
  std::string strategy;    ///< printed form: dist-ep, ep-ideal, tp
  std::string plan;        ///< in words: what best is, and how a strategy cuts layers or sequences
  std::string on_hosts;    ///< what is kept there, in words
  std::string infeasible;  ///< why the strategy cannot run; empty = the figures hold
  /// ep, ep-ideal: what overfills even with the smallest microbatch. The figures are those as if it fitted:
  /// nothing that could run, so tables do not show them and JSON keeps them apart.
  std::string over_memory;
  i64 sequences = 0;  ///< of a step
  double tokens_per_s = 0;
  double speed_over_first = 0;  ///< tokens/s over the first strategy's at this length; 0 = one cannot run
  Seconds step_s = 0;
  double utilization_attention = 0,
         utilization_expert = 0;  ///< share of the step in compute, newer and older
  /// [layer] given up by each expert device; empty where the planner's plan has no such devices
  std::vector<i64> experts_moved;
  std::vector<Bytes> memory_bytes;  ///< [device]
  RunCost cost;                     ///< money and energy, of the devices that the plan uses
  std::optional<Allocation> roles;  ///< of plans with depth groups: see allocation_of_plan()
  i64 microbatches = 0;
  i64 chunks = 0;                        ///< partition degree
  bool from_first_microbatches = false;  ///< see Prediction
};

struct CompareOptions {
  /// Any of compared_strategies() ('_' for '-' is accepted).
  std::vector<std::string> strategies = {"zebra", "ep", "ep-ideal", "dist-ep", "pp-ep", "best"};
  bool asym_ea = true;
  i64 sequences = 0;  ///< of a step; 0 = from `tokens`, else default_sequences()
  i64 tokens = 0;     ///< of a step, rounded down to whole sequences
  PlanLimits
      limits;  ///< of `best`, as of `hetermoe plan`; devices that must stay out do so for all strategies
  Dtype dtype = Dtype::kFp16;
  std::optional<Wire> wire = {};         ///< see Setting
  std::optional<Dtype> grad_dtype = {};  ///< see Setting
  WireReduce wire_reduce = WireReduce::kFp32;
  bool published = false;    ///< see Setting; of `best` the dtype of gradients alone
  bool check_memory = true;  ///< a plan that overfills a device is no candidate
  SoftwareConstants software;
};

/// Names of strategies() and baselines(), with '-'. best is what find_plan() finds or, where that is slower,
/// the fastest plan of the other strategies.
std::vector<std::string> compared_strategies();

/// Tokens of a step beyond which no strategy gains from a larger one, where each device has so many
/// sequences: fewer do not fill pipelines. The larger of both limits the batch where memory does not.
inline constexpr i64 kMaxStepTokens = i64{1} << 20;
inline constexpr i64 kSequencesToFill = 8;

/// Sequences of a step when the request has none: the most that zebra, and so every strategy, can hold within
/// the limits above. Each device of every strategy gets whole sequences, whose number has factors of 2, 3 and
/// 5 alone. If not even one per device fits, it is that one, and each strategy reports the lack itself.
i64 default_sequences(const ModelConfig& model, const Cluster& cluster, i64 seq_len,
                      const CompareOptions& options);

/// One row per strategy and sequence length, each strategy with its own best microbatch count and partition
/// degree. Throws ConfigError for an unknown strategy or a length that the model does not allow.
std::vector<CompareRow> compare_strategies(const ModelConfig& model, const Cluster& cluster,
                                           const std::vector<i64>& seq_lens, const CompareOptions& options);

/// {"rows": [...]} as `hetermoe compare --json` prints it. Figures of what cannot run are null.
Json to_json(const std::vector<CompareRow>& rows);

}  // namespace hetermoe
