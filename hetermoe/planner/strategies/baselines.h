#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/planner/predict.h"

// Plans of the compared systems, as HeterMoE (arXiv 2504.03871) defines them, and how each is tuned.
namespace hetermoe {

/// Settings that a comparison holds fixed for every system.
struct Setting {
  i64 seq_len = 0;
  i64 sequences = 0;  ///< of a step
  Dtype dtype = Dtype::kFp16;
  std::optional<Wire> wire = {};         ///< how rows travel; none = in dtype
  std::optional<Dtype> grad_dtype = {};  ///< in which gradients are kept and reduced; none = fp32
  WireReduce wire_reduce = WireReduce::kFp32;
  Bytes memory_reserve = 0;  ///< of each device, kept free of what usable_memory() allows
  /// true: as the published systems. A row travels per expert copy, EP sends tokens again for recomputation,
  /// and zebra's queues are bound by name. Gradients are kept and reduced in the 16 bits of the weights, as
  /// DeepSpeed does in fp16. Pipelines and EP divide the optimizer's state over replicas. false: a token
  /// travels once per device and never again, queues are bound by direction, and gradients are in grad_dtype.
  bool published = false;
  bool check_memory = true;
  bool one_sequence = false;  ///< EP: only microbatches of one sequence per device
};

/// The best plan found of one system.
struct Tuned {
  Plan plan;  ///< without groups when nothing fits
  Prediction prediction;
  std::vector<i64> experts_moved;  ///< zebra: per layer, experts that each expert device gives up
  std::string infeasible;          ///< why nothing fits; empty = plan and prediction hold
};

/// Dtype of gradients by the setting; none = fp32.
std::optional<Dtype> grad_dtype_of(const Setting& setting);
/// Sets dtypes and traffic by the setting.
void apply(const Setting& setting, Plan& plan);

/// [device] what a plan needs: by the estimate or, where that overfills a device but not by far, the peaks of
/// the simulated step.
std::vector<Bytes> memory_of(Predictor& predictor, const Setting& setting, const Plan& plan);
/// The plan, with as much on hosts as it takes to fit where all nodes have one; nothing = it does not fit,
/// for the reason in `over`.
std::optional<Plan> with_room(Predictor& predictor, const Setting& setting, Plan plan, std::string& over);

/// Partition degrees that are tried.
inline const std::vector<i32> kPartitionDegrees = {1, 2, 4, 8, 16};

/// Larger microbatches gain nothing: their ops are long enough.
inline constexpr i64 kMostSequencesEach = 32;

/// Microbatch counts worth trying when `devices` share `sequences`: the same whole number of
/// sequences on each, most microbatches first.
std::vector<i64> microbatch_counts(i64 sequences, i64 devices);

/// EP over `devices` (empty = all): equal sequences, experts spread evenly, microbatch count and partition
/// degree searched.
Tuned tune_ep(Predictor& predictor, const Setting& setting, const std::vector<DeviceId>& devices = {});
/// Zebra's placement with one microbatch in flight; microbatch count and partition degree searched.
Tuned tune_dist_ep(Predictor& predictor, const Setting& setting);
/// Zebra, microbatch count searched; with `asym_ea` experts move by gather and squeeze where that helps, and
/// as many as memory forces out. Where not all microbatches in flight have room, fewer are, but not as
/// published.
Tuned tune_zebra(Predictor& predictor, const Setting& setting, bool asym_ea);
/// Whether some plan that tune_zebra() would begin with fits: with the experts that times move alone or,
/// where `forced`, also those that memory does.
bool zebra_fits(Predictor& predictor, const Setting& setting, bool asym_ea, bool forced);
/// Heterogeneous pipelines, one device per stage, all types mixed in each, 1F1B, data parallel over
/// pipelines: their number, order of the types, layers per stage and microbatch count searched. As published
/// all devices take part, in as many pipelines as have room.
Tuned tune_pp(Predictor& predictor, const Setting& setting);
/// AF-Pipe with as many depth groups of both roles: their number, that of the microbatches and of those in
/// flight, and the head's devices searched.
Tuned tune_depth_groups(Predictor& predictor, const Setting& setting);
/// SP-EP: the size of teams, that of microbatches, and how a team shares tokens and heads searched: by the
/// speeds of its devices, or tokens by their memory.
Tuned tune_teams(Predictor& predictor, const Setting& setting);
/// Any strategy, as it is by default; its microbatch count searched. Throws ConfigError for an unknown name.
Tuned tune_microbatches(Predictor& predictor, const Setting& setting, const std::string& strategy);

/// Forward times of one layer under a zebra plan, as the offline profiler measures them.
struct ZebraTimes {
  Seconds attention = 0;     ///< T_A
  Seconds local_expert = 0;  ///< T_X: the rows of one expert device on an attention device
  Seconds expert = 0;        ///< T_E
};
ZebraTimes zebra_times(Predictor& predictor, const Plan& zebra);

}  // namespace hetermoe
