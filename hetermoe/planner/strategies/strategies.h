#pragma once
#include <string>
#include <vector>

#include "hetermoe/base/integer_split.h"
#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// What a strategy is asked for. Everything left at its default is chosen by the strategy.
struct StrategyRequest {
  i64 seq_len = 0;                  ///< tokens per sequence
  i64 sequences = 0;                ///< of one step, all microbatches
  i64 microbatches = 1;             ///< sizes are made as equal as possible
  std::vector<DeviceId> attention;  ///< devices that compute attention; empty = default_roles()
  std::vector<DeviceId> experts;    ///< devices that own experts (dist_ep, zebra)
  std::vector<double>
      attention_weights;               ///< [attention] speed by which sequences are shared; empty = equally
  std::vector<double> expert_weights;  ///< [experts] speed by which experts are shared; empty = equally
  std::vector<i64> experts_moved;  ///< [num_layers] Asym-EA: experts that each expert device gives up (o_l)
  std::string balancer;  ///< row of balancers(); empty = asym_ea where experts move, else proportional
  /// [num_layers][num_experts] copies over the mean, for balancers that look at loads; empty = even. Rows of
  /// dense layers are not looked at.
  std::vector<std::vector<double>> expert_load;
  i64 expert_replicas = 0;           ///< for eplb: copies of experts in a layer beyond one of each
  i32 window = -1;                   ///< microbatches in flight; -1 = the strategy's own
  Dtype dtype = Dtype::kFp32;        ///< of devices, for strategies that ask for time or memory
  i64 staleness = 0;                 ///< steps that weights lag: with 1 steps overlap
  std::vector<std::string> offload;  ///< what plan.offload will be, for strategies that ask for memory
  // Of strategies with stages. Devices are cut in the order of their lists.
  i64 stages = 0;                                   ///< 0 = as many as the lists below have, else two
  i64 interleave = 1;                               ///< runs of layers on each stage's devices
  std::vector<i64> stage_layers;                    ///< [stage] empty = by the number of the stage's devices
  std::vector<i64> stage_attention, stage_experts;  ///< [stage] devices of each list; empty = equally many
};

/// How a strategy uses devices, the narrowest first.
enum class DeviceUse {
  kOne,    ///< one device does everything
  kAlike,  ///< every device computes attention and owns experts
  kApart,  ///< some devices compute attention, others have experts alone
};

struct Strategy {
  std::string name;     ///< with underscores
  std::string summary;  ///< one line for --help
  DeviceUse use;
  bool has_stages;  ///< layers are cut into stages, each on devices of its own
  bool one_node;    ///< its devices are on one node
  Plan (*make)(const ModelConfig&, const Cluster&, const StrategyRequest&);
};

/// The table: a new strategy is one function and one row.
const std::vector<Strategy>& strategies();
/// Their names as people write them: with '-'.
std::vector<std::string> strategy_names();
/// What keeps a strategy from all devices of a cluster, in words; empty = nothing.
std::string misfit(const Strategy& strategy, const ModelConfig& model, const Cluster& cluster);
/// Accepts '-' or '_'. Throws ConfigError with the known names.
const Strategy& find_strategy(const std::string& name);

/// Who computes attention and who owns experts when nobody says: the device type with the highest fp16 peak
/// computes attention, all others own experts; devices of one type only are split in halves.
struct Roles {
  std::vector<DeviceId> attention, experts;
};
Roles default_roles(const Cluster& cluster);
/// Who does what where devices are used so. asked: a list that is empty is chosen; where devices do not have
/// roles of their own, asked.experts is not looked at, and one device is the first with attention.
Roles roles_of(DeviceUse use, const Cluster& cluster, const Roles& asked);

/// Shares of a microbatch, one entry per device, zeros included.
ShareRow make_shares(const std::vector<DeviceId>& devices, i64 sequences, const std::vector<double>& weights);
/// Rows for all microbatches; a single one when they are equal.
Shares make_share_rows(const std::vector<DeviceId>& devices, const std::vector<i64>& microbatches,
                       const std::vector<double>& weights);

}  // namespace hetermoe
