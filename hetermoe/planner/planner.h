#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "hetermoe/cost/trained.h"
#include "hetermoe/planner/expected.h"
#include "hetermoe/planner/predict.h"

// Who should do what, will it fit, what is gained over the newer devices alone: a search over plans, judged
// by the simulator alone. It needs no device.
namespace hetermoe {

/// The parts that plans keep in the main memory of their nodes: masters and moments of all parts, weights of
/// experts besides, or all parameters; with or without saved activations.
enum class HostUse { kNone, kOptimizer, kOptimizerSaved, kExperts, kAll, kAllSaved };
inline bool saves_on_hosts(HostUse use) {
  return use == HostUse::kOptimizerSaved || use == HostUse::kAllSaved;
}

/// Bounds on what the planner may propose and on how long it may look.
struct PlanLimits {
  i64 max_microbatches = 0;           ///< of a group; 0 = as many as there are sequences
  bool shard_optimizer = true;        ///< may be proposed
  bool gather_weights = false;        ///< every plan does (shard_weights()); chosen by find_plan()
  bool node_rows = true;              ///< rows may go once to each node
  bool offload = true;                ///< hosts may be used where no plan fits without
  HostUse host_use = HostUse::kNone;  ///< what every plan keeps on hosts; chosen by find_plan()
  std::vector<DeviceId> idle;         ///< devices that must stay out, as if the cluster had none of them
  bool weigh_newer = false;  ///< the newer devices are planned alone first: what do the others bring?
  Bytes memory_reserve = 0;  ///< per device, kept free of what usable_memory() allows
  /// Work of all simulations together, in op-device visits (about 4 million per second on one core). Counted,
  /// not timed, so that equal requests give equal plans on every machine. 0 = chosen by the size of the
  /// cluster.
  i64 simulation_budget = 0;
};

struct PlanRequest {
  ModelConfig model;
  Cluster cluster;
  i64 seq_len = 0;
  i64 sequences = 0;  ///< of a step; 0 = from `tokens`
  i64 tokens = 0;     ///< of a step, rounded down to whole sequences
  Dtype dtype = Dtype::kFp16;
  std::optional<Wire> wire = {};  ///< how rows travel; none = in dtype
  Master master = Master::kFp32;
  std::optional<Dtype> moments_dtype = {};  ///< see Plan
  std::optional<Dtype> grad_dtype = {};     ///< see Plan
  WireReduce wire_reduce = WireReduce::kFp32;
  SoftwareConstants software;
  PlanLimits limits;
  Trained trained = {};
  AssumedRouting routing = {.margin = kRoutingMargin};
  bool links_assumed = false;  ///< the cluster file does not state links: see assumed_links()
  std::vector<Plan> known;     ///< plans that are judged beside those that the search makes
  std::string newer_unfit;     ///< PlanResult::newer_unfit, by PlanLimits::weigh_newer
};
/// Predicts steps as the request has them.
inline Predictor predictor_of(const PlanRequest& request) {
  return Predictor(request.model, request.cluster, request.software,
                   step_options(request.trained, request.model, request.model), request.routing);
}
/// Bytes of a parameter, by the request's dtypes.
inline StateBytes state_bytes_of(const PlanRequest& request) {
  const Bytes element = bytes_of(request.dtype);
  const Bytes gradient = request.grad_dtype ? bytes_of(*request.grad_dtype) : std::max(element, 4.0);
  return state_bytes_per_parameter(element, gradient,
                                   optimizer_widths(request.master, request.moments_dtype));
}

/// How much of one device type a plan uses.
struct TypeUse {
  std::string type;
  i64 devices = 0, used = 0;
  std::string role;       ///< attention, expert, both or idle; of several "4 both, 2 expert"
  double busy = 0;        ///< mean share of the step that used devices compute
  double least_busy = 0;  ///< the same of the used device that computes least
  double most_busy = 0;   ///< and of the one that computes most
  Bytes memory = 0;       ///< of the fullest device
  Bytes unsharded = 0;    ///< the same if every replica kept all of the optimizer's state
  Bytes freed = 0;        ///< by sharding it, of the device that gains most
  double memory_gib = 0;  ///< that a device of the type has
  double limit_gib = 0;   ///< of which a plan may fill so much: see usable_memory()
};

/// Part of the critical path of a step.
struct Cause {
  std::string what;  ///< "attention on A40", "transfers", "reduction of gradients", ...
  double share = 0;
};

/// A plan that was considered and what the simulator says of it.
struct Candidate {
  std::string name;  ///< "zebra on all 12 devices", ...
  Plan plan;         ///< without groups when infeasible, without layers when it loses and is very large
  Prediction prediction;
  std::vector<Bytes> memory;     ///< [device] peak; where extrapolated, by estimate_memory()
  std::vector<Bytes> unsharded;  ///< [device] the same if every replica kept all of the optimizer's state
  std::vector<TypeUse> types;
  std::vector<Cause> path;  ///< of the best alone: what fills it, the largest first
  Timeline timeline;  ///< of the best alone, by listed_timeline(): where extrapolated, of the first layers
  std::string limited_by;     ///< the path in words; of others the busiest type
  bool extrapolated = false;  ///< the figures are those of the first layers, extended to all
  std::string verdict;        ///< why it is the best, or why it loses
  std::string infeasible;     ///< the limit that rules it out; empty = the figures hold
  bool newer_only = false, homogeneous = false;  ///< uses the newest type alone; one type alone
  double peak_share = 0;                         ///< of the peak of the devices that it uses
  i64 num_attention = 0;                         ///< devices that compute attention
};

/// A number of sequences of a step near the one that was asked for, of which each takes less.
struct GoodSequences {
  i64 sequences = 0;
  double tokens_per_s = 0;
};

/// A setting that lets messages be smaller, and what it would make of the best plan.
struct NarrowWire {
  std::string flag;  ///< of `plan`: "--wire fp8_row"
  std::string what;  ///< "rows of experts in 8 bits"
  double tokens_per_s = 0;
};

/// tried[0] is the plan to run. Always among `tried`, even when they lose or do not fit: the best plan on the
/// newer devices alone, the best on one type alone, plain expert parallelism on all devices, a single device.
struct PlanResult {
  std::vector<Candidate> tried;     ///< best first; infeasible ones last
  std::string infeasible;           ///< why no plan exists; empty = tried[0] is one
  std::string advice;               ///< what would help, where no plan exists
  std::string others_lack;          ///< why no plan with any but the newest type has room; empty = some have
  std::string newer_unfit;          ///< the newer devices, where no plan on them alone has room: "8 H100"
  std::vector<std::string> bounds;  ///< of the search that kept it from looking further, in words
  std::vector<std::string> explanation;
  std::optional<GoodSequences> good_sequences;  ///< at least 2 % better; none = none is known
  std::vector<NarrowWire> narrow_wires;         ///< at least 5 % better; see narrow_wires()
  Expected expected;                            ///< of the best plan
  std::vector<std::string> device_types;        ///< [device] of the cluster that was searched
  i64 num_sketches = 0;                         ///< weighed by estimate
  i64 num_simulated = 0;                        ///< judged by the simulator
  double routing_margin =
      1;  ///< that its plans have room for; less than was asked for where that has no room

  bool feasible() const { return infeasible.empty(); }
  const Candidate& best() const { return tried.front(); }
};

/// Throws ConfigError for requests that make no sense (no devices, no tokens, negative bandwidth). A request
/// that cannot be served is a result with `infeasible`.
PlanResult find_plan(const PlanRequest& request);

Json to_json(const PlanResult& result);

}  // namespace hetermoe
