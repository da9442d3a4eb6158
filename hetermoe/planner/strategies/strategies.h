#pragma once
#include <string>
#include <vector>

#include "hetermoe/base/integer_split.h"
#include "hetermoe/cost/trained.h"
#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// The devices that compute the head of a plan with depth groups: those with experts of the last layer, or
/// those with attention that a layer after it would have.
enum class HeadOn { kExperts, kAttention };
template <>
struct EnumNames<HeadOn> {
  static const std::vector<std::string>& names() {
    static const std::vector<std::string> all = names_of_all<HeadOn>({"experts", "attention"});
    return all;
  }
};

/// How layers are cut into stages or depth groups, or sequences among teams, and devices with them in the
/// order of their lists. Keys that a request and a job's `plan` have alike, described once.
struct CutOptions {
  i64 stages = 0;                                   ///< 0 = as many as the lists below have, else two
  i64 interleave = 1;                               ///< runs of layers on each stage's devices
  std::vector<i64> stage_layers;                    ///< [stage] empty = by the number of the stage's devices
  std::vector<i64> stage_attention, stage_experts;  ///< [stage] devices of each list; empty = equally many
  std::vector<i64> depth_groups;                    ///< with attention, with experts; one number = both
  HeadOn head_on = HeadOn::kExperts;
  std::vector<i64> team;             ///< devices of each team; one number = of every team
  std::vector<double> head_weights;  ///< [devices with attention] by which query heads are shared
  bool operator==(const CutOptions&) const = default;
  template <class V>
  void fields(V& v) {
    v("stages", stages, "of a pipeline (pp-ep, pp-zebra); 0 = as many as the lists below have, else two",
      at_least(0));
    v("interleave", interleave,
      "runs of layers on the devices of each stage: up to that much smaller a bubble", between(1, 64));
    v("stage_layers", stage_layers,
      "layers of each stage, interleaved of each run; empty = by their numbers of devices", at_least(1));
    v("stage_attention", stage_attention,
      "per stage or depth group: devices with attention; empty = equally many, depth groups by their speeds",
      at_least(1));
    v("stage_experts", stage_experts,
      "per stage or depth group: devices with experts (pp-zebra, af-pipe); empty = as above", at_least(1));
    v("depth_groups", depth_groups,
      "af-pipe: groups of devices with attention and with experts, each with every so-maniest layer; one "
      "number = of both, empty = 2 where there are devices for 2",
      at_least(1));
    v("head_on", head_on,
      "af-pipe: who computes the head: devices with experts of the last layer, or with attention");
    v("team", team,
      "devices of each team, which share their sequences (docs/teams.md); one number = of every team, empty "
      "= "
      "none, with sp-ep as many teams as a microbatch has sequences",
      at_least(1));
    v("head_weights", head_weights,
      "of teams: per device with attention, by which its team shares the heads of the attention kernel; "
      "empty = "
      "as attention_weights",
      at_least(0));
  }
};

/// The request to a strategy. The strategy chooses every field that is left at its default.
struct StrategyRequest : CutOptions {
  i64 seq_len = 0;                  ///< tokens per sequence
  i64 sequences = 0;                ///< of one step, all microbatches
  i64 microbatches = 1;             ///< sizes are made as equal as possible
  std::vector<DeviceId> attention;  ///< devices that compute attention; empty = default_roles()
  std::vector<DeviceId> experts;    ///< devices that own experts (dist-ep, zebra)
  std::vector<double>
      attention_weights;               ///< [attention] speed by which sequences are shared; empty = equally
  std::vector<double> expert_weights;  ///< [experts] speed by which experts are shared; empty = equally
  std::vector<i64> experts_moved;  ///< [num_layers] Asym-EA: experts that each expert device gives up (o_l)
  std::string balancer;  ///< row of balancers(); empty = asym_ea where experts move, else proportional
  /// [num_layers][num_experts] copies over the mean, for balancers that look at loads; empty = even. Rows of
  /// dense layers are not looked at.
  std::vector<std::vector<double>> expert_load;
  i64 expert_replicas = 0;     ///< for eplb: copies of experts in a layer beyond one of each
  i32 window = -1;             ///< microbatches in flight; -1 = the strategy's own
  Dtype dtype = Dtype::kFp32;  ///< of devices, for strategies that ask for time or memory
  bool expects_times = true;   ///< af-pipe: sets Plan::expected; else that is left to the caller
  CombineTo combine_to = CombineTo::kSource;  ///< af-pipe: of the plan, for the times that are expected
  std::vector<i64> nics;                      ///< af-pipe: likewise
  i64 staleness = 0;                          ///< steps that weights lag: with 1 steps overlap
  std::vector<std::string> offload;  ///< what plan.offload will be, for strategies that ask for memory
  TrainedShares trained = {};        ///< likewise, of the model; for time as well
};

/// How a strategy uses devices, the narrowest first.
enum class DeviceUse {
  kOne,    ///< one device does everything
  kAlike,  ///< every device computes attention and owns experts
  kApart,  ///< some devices compute attention, others have experts alone
};

/// How a strategy cuts a model. stages: its layers into runs, each on devices of its own. depth: group i of p
/// has layers i, i + p, i + 2p ... teams: sequences, among the devices of teams.
enum class Cut { kNone, kStages, kDepth, kTeams };

struct Strategy {
  std::string name;     ///< with underscores
  std::string summary;  ///< one line for --help
  DeviceUse use;
  Cut cut;
  bool one_node;  ///< its devices are on one node
  Plan (*make)(const ModelConfig&, const Cluster&, const StrategyRequest&);
  /// Devices with attention may share sequences in teams.
  bool may_have_teams() const { return use != DeviceUse::kOne && !one_node; }
};

/// The table: a new strategy is one function and one row.
const std::vector<Strategy>& strategies();
/// Their names as people write them: with '-'.
std::vector<std::string> strategy_names();
/// Back to their defaults what the strategy does not look at.
void drop_unused(const Strategy& strategy, CutOptions& options);
/// The reason why a strategy cannot use a cluster, in words; empty = it can.
std::string misfit(const Strategy& strategy, const ModelConfig& model, const Cluster& cluster);
/// What `compare --seq` predicts beside strategies, and nothing trains by.
struct Baseline {
  std::string name, summary;
};
const std::vector<Baseline>& baselines();
/// Accepts '-' or '_'. Throws ConfigError with the known names.
const Strategy& find_strategy(const std::string& name);

/// The devices with attention and the owners of experts when the request names none. The device type with the
/// highest fp16 peak computes attention, all others own experts. Devices of one type only are split in
/// halves.
struct Roles {
  std::vector<DeviceId> attention, experts;
};
Roles default_roles(const Cluster& cluster);
/// Roles of devices for a use. asked: an empty list is chosen here. If devices have no roles of their own,
/// asked.experts is ignored; a single device is the first with attention.
Roles roles_of(DeviceUse use, const Cluster& cluster, const Roles& asked);

/// Shares of a microbatch, one entry per device, zeros included.
ShareRow make_shares(const std::vector<DeviceId>& devices, i64 sequences, const std::vector<double>& weights);
/// Rows for all microbatches; a single one when they are equal.
Shares make_share_rows(const std::vector<DeviceId>& devices, const std::vector<i64>& microbatches,
                       const std::vector<double>& weights);

}  // namespace hetermoe
