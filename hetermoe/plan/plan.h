#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hetermoe/base/enum_count.h"
#include "hetermoe/base/small_vector.h"
#include "hetermoe/cluster/cluster.h"
#include "hetermoe/model/model_config.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/model/unit.h"
#include "hetermoe/plan/residence.h"
#include "hetermoe/plan/wire.h"

// A Plan says where everything lives; its order policy says when. Everything known of the field (expert
// parallelism, disaggregated experts, zebra, pipelines) is a way to fill this object.
namespace hetermoe {

/// layer_major: layer by layer over a window of microbatches (window 1 = one microbatch after another, all =
/// zebra). one_f_one_b: pipeline stages alternate forward and backward. explicit: the lanes of
/// `explicit_order`. round_robin: rounds of `window` microbatches go from turn to turn. timed: each set of
/// devices takes what is ready first by `expected` times, forward and backward in turn.
/// Its file is schedule/order_<name>.cpp.
#define HM_ORDER_POLICIES(X)  \
  X(kLayerMajor, layer_major) \
  X(kOneFOneB, one_f_one_b)   \
  X(kExplicit, explicit)      \
  X(kRoundRobin, round_robin) \
  X(kTimed, timed)

enum class OrderPolicy {
#define HM_POLICY(policy, name) policy,
  HM_ORDER_POLICIES(HM_POLICY)
#undef HM_POLICY
};
/// Which queue a transfer uses: its direction, its name (the paper's: dispatch, combine), or one queue for
/// all. phase: as direction, and moves of each phase have a queue of their own. Then no move waits for those
/// of another phase, also in orders in which devices send while they receive.
enum class QueueBinding { kDirection, kName, kPhase };
/// off: activations stay. local: backward recomputes from the op's saved input. resend: as local, but tokens
/// travel through dispatch and combine again, as expert parallelism over checkpointed layers does.
/// ahead: as local, but in ops of their own, which run while the gradient is on its way. select: results of
/// products and of the attention kernel stay; what norms and activations make of them is made again, and rows
/// are sent to their experts again.
enum class Recompute { kOff, kLocal, kResend, kAhead, kSelect };
/// with: a backward op computes gradients of inputs and weights. after: of inputs alone; those of weights are
/// ops of their own (phase W), which run while the gradients of inputs travel.
enum class WeightGradients { kWith, kAfter };
/// Whether an fp32 copy of bf16 parameters is kept, which the optimizer updates; none: it updates the
/// parameters themselves and rounds them stochastically.
enum class Master { kFp32, kNone };
/// How gradients travel to the device that sums them. fp32: as they are kept, see grad_dtype_of(). bf16: the
/// sum of a device's microbatches is rounded once; what is added there is decoded first.
enum class WireReduce { kFp32, kBf16 };
/// The devices that compute a token's experts. owners: only those that own them. sources: the device with the
/// token's attention part, which owns all experts of the layer; nothing travels.
enum class ExpertsAt { kOwners, kSources };
/// Where results of experts go if the next layer is on other devices. source: to the devices that sent the
/// rows, which add them up and send the sum on. next: to the devices of the next layer, while the residual
/// stream goes there by itself.
enum class CombineTo { kSource, kNext };

template <>
struct EnumNames<OrderPolicy> {
  static const std::vector<std::string>& names();
};
template <>
struct EnumNames<QueueBinding> {
  static const std::vector<std::string>& names();
};
template <>
struct EnumNames<Recompute> {
  static const std::vector<std::string>& names();
};
template <>
struct EnumNames<WeightGradients> {
  static const std::vector<std::string>& names();
};
template <>
struct EnumNames<Master> {
  static const std::vector<std::string>& names();
};
template <>
struct EnumNames<WireReduce> {
  static const std::vector<std::string>& names();
};
template <>
struct EnumNames<ExpertsAt> {
  static const std::vector<std::string>& names();
};
template <>
struct EnumNames<CombineTo> {
  static const std::vector<std::string>& names();
};

/// A device computes `sequences` consecutive sequences of a microbatch. 0 is legal: the device holds the
/// state, joins every transfer and has nothing to compute.
/// A team is several devices that have the same sequences: consecutive shares with the same `team` and the
/// same `sequences`. Its tokens are divided in the order of the row, and the query heads of its attention
/// kernel likewise. 0 tokens and 0 heads are legal. A row has teams in all of its shares or in none.
struct Share {
  DeviceId device = 0;
  i64 sequences = 0;  ///< of a team: of all of it
  i64 tokens = 0;     ///< of a team: of its sequences * seq_len
  i64 heads = 0;      ///< of a team: query heads
  i32 team = -1;      ///< 0, 1 ... in the order of the row; -1 = none
  bool operator==(const Share&) const = default;
  template <class V>
  void fields(V& v) {
    v("device", device, "device of the cluster", required(at_least(0)));
    v("sequences", sequences, "sequences of a microbatch", required(at_least(0)));
    v("team", team, "number of a team in the row: its devices have the same sequences", unset_at(-1));
    v("tokens", tokens, "of a team's tokens, those of this device", unset_at(0));
    v("heads", heads, "of a team's query heads, those of this device", unset_at(0));
  }
};
using ShareRow = std::vector<Share>;
/// Tokens of a share.
inline i64 tokens_of(const Share& share, i64 seq_len) {
  return share.team >= 0 ? share.tokens : share.sequences * seq_len;
}
inline bool has_teams(const ShareRow& row) { return !row.empty() && row[0].team >= 0; }
/// Whether share `i` of a row is the first of its team, or of none.
inline bool begins_team(const ShareRow& row, std::size_t i) {
  return i == 0 || row[i].team < 0 || row[i].team != row[i - 1].team;
}
/// Sequences of all shares; those of a team once.
i64 sequences_of(const ShareRow& row);
/// One row serves all microbatches, or there is one row per microbatch. Ranges follow in the order of the
/// row.
using Shares = std::vector<ShareRow>;

struct ExpertOwner {
  DeviceId device = 0;
  double share = 1;  ///< part of the rows of each source that this replica computes
  bool operator==(const ExpertOwner&) const = default;
  template <class V>
  void fields(V& v) {
    v("device", device, "device of the cluster", required(at_least(0)));
    v("share", share, "part of the expert's rows", between(0, 1));
  }
};

using ExpertOwners = SmallVector<ExpertOwner>;
/// [num_experts]
using LayerOwners = std::vector<ExpertOwners>;

struct LayerPlacement {
  Shares attention;
  LayerOwners experts;                                         ///< empty in a dense layer
  std::optional<Home> attention_home = {}, experts_home = {};  ///< none: all on the devices
  std::optional<Recompute> recompute = std::nullopt;           ///< none = the plan's; see recompute_of()
  Shares attention_backward = {};  ///< empty = as `attention`; see backward_shares()
  ExpertsAt experts_at = ExpertsAt::kOwners;
  /// Where inputs of the layer and of its experts wait for the backward pass: device or host. Choices of
  /// experts stay on the device.
  Residence saved = Residence::kDevice;
  bool operator==(const LayerPlacement&) const = default;
  template <class V>
  void fields(V& v) {
    v("attention", attention, "who computes the attention part of how many sequences", required());
    v("experts", experts, "owners of each expert", required());
    v("attention_home", attention_home, "where parameters of the attention part live");
    v("experts_home", experts_home, "where parameters of the experts live");
    v("recompute", recompute, "activation checkpointing of this layer; null = the plan's");
    v("attention_backward", attention_backward, "who computes backward; empty = as attention");
    v("experts_at", experts_at, "who computes a token's experts");
    v("saved", saved, "where inputs wait for the backward pass: device or host");
  }
};

/// One complete copy of the model on some devices (a ZP group). Groups are data parallel to each other and
/// may differ in shape. Group g takes the sequences of a step that follow those of groups 0..g-1.
struct Group {
  std::vector<DeviceId> devices;
  std::vector<i64> microbatches;  ///< sequences in each
  Shares embed, head;
  std::vector<LayerPlacement> layers;
  std::optional<Home> embed_home = {}, head_home = {};  ///< with tied embeddings that of the embedding counts
  template <class V>
  void fields(V& v) {
    v("devices", devices, "devices of this group", required());
    v("microbatches", microbatches, "sequences in each microbatch", required(at_least(0)));
    v("embed", embed, "who computes the embedding", required());
    v("head", head, "who computes the head", required());
    v("layers", layers, "placement of each layer", required());
    v("embed_home", embed_home, "where parameters of the embedding live");
    v("head_home", head_home, "where parameters of the head live");
  }
};

/// order timed: how long the parts of a microbatch are expected to take, in any unit. The order follows from
/// these alone, so that all processes find the same one.
struct ExpectedTimes {
  std::vector<double> attention = {1}, experts = {1};  ///< forward, of each layer; one entry = of all
  double transfer = 0.25;                              ///< from a part to the next
  double head = 1;                                     ///< forward and backward, which are one op
  double backward = 2;                                 ///< time over that of forward
  bool operator==(const ExpectedTimes&) const = default;
  template <class V>
  void fields(V& v) {
    v("attention", attention, "attention part of each layer, forward; one number = of all layers",
      between(0, 1e9));
    v("experts", experts, "experts of each layer, forward; one number = of all layers", between(0, 1e9));
    v("transfer", transfer, "from a part to the next", between(0, 1e9));
    v("head", head, "head, forward and backward", between(0, 1e9));
    v("backward", backward, "backward over forward", between(0, 1e3));
  }
};

/// Keys that a plan and a job's `plan` have alike, described once.
struct PlanChoices {
  i32 chunks = 1;
  i32 head_parts = 1;  ///< of teams: parts in which heads travel and are computed
  QueueBinding queue_binding = QueueBinding::kDirection;
  bool row_dedup = true;  ///< a token whose experts share a device is sent once
  Recompute recompute = Recompute::kLocal;
  WeightGradients weight_gradients = WeightGradients::kWith;
  CombineTo combine_to = CombineTo::kSource;
  std::optional<Dtype> grad_dtype;  ///< of parameter gradients; none = see grad_dtype_of()
  WireReduce wire_reduce = WireReduce::kFp32;
  /// What a device's gradients lose on their way is kept there, and is added before they are rounded again.
  bool error_feedback = false;
  Master master = Master::kFp32;
  std::optional<Dtype> moments_dtype;  ///< of the optimizer: bf16; none = fp32, of fp64 parameters fp64
  /// Master and moments of a replicated parameter are divided over its replicas, each of which updates its
  /// part.
  bool shard_optimizer = false;
  /// Sources tell each other how many copies each expert has in a layer of a microbatch. The copies are
  /// divided over the expert's owners so that the slowest ends earliest. The owners' shares are then not
  /// used.
  bool tally = false;
  VisitSlots slots = {};
  /// [num_devices] network ports of its node that a device has for itself; 0 = it shares those that no device
  /// has. Empty = all share all. Only the cost model asks.
  std::vector<i64> nics = {};

  bool operator==(const PlanChoices&) const = default;
  /// In three parts: files keep the order of their keys.
  template <class V>
  void step_fields(V& v) {
    v("chunks", chunks, "partition degree: parts in which a layer is dispatched", between(1, 64));
    v("head_parts", head_parts,
      "parts in which the heads of a team travel: one is computed while the next is on its way "
      "(docs/teams.md)",
      between(1, 64));
    v("queue_binding", queue_binding, "queue of a transfer");
    v("row_dedup", row_dedup, "send a token once per device");
    v("recompute", recompute, "activation checkpointing");
    v("weight_gradients", weight_gradients,
      "with those of inputs, or after them, while those of inputs travel (more memory)");
    v("combine_to", combine_to,
      "where results of experts go if the next layer is on other devices: back to their source, or to the "
      "next layer at once (docs/af-pipe.md)");
  }
  template <class V>
  void state_fields(V& v) {
    v("grad_dtype", grad_dtype,
      "dtype in which gradients of parameters are summed and reduced; null = fp32, and fp64 where devices "
      "compute in it");
    v("wire_reduce", wire_reduce,
      "how gradients travel to the device that sums them: bf16, or fp32, which is as they are kept "
      "(docs/precision.md)");
    v("error_feedback", error_feedback,
      "with wire_reduce bf16: what rounding takes from gradients is kept and added in the next step");
    v("master", master, "fp32: a copy of 16-bit parameters; none (bf16 alone): docs/precision.md");
    v("moments_dtype", moments_dtype, "of the optimizer: fp32 or bf16; null = fp32");
    v("shard_optimizer", shard_optimizer,
      "devices that hold the same parameters divide their master copies and moments among them (ZeRO-1): "
      "less memory, equal results");
    v("tally", tally,
      "sources tell each other their counts of copies in each exchange, and copies are divided over the "
      "owners of an expert so that the slowest ends earliest (docs/balancing.md)");
  }
  template <class V>
  void slot_fields(V& v) {
    v("slots", slots,
      "how many layers of weights, and inputs of layers, from the host fit on a device at once");
  }
  template <class V>
  void network_fields(V& v) {
    v("nics", nics,
      "network ports (NICs) of its node that each device has for itself, 0 = it shares the rest; empty = all "
      "share all (docs/af-pipe.md)",
      between(0, 65536));
  }
};

struct Plan : PlanChoices {
  std::string strategy;  ///< who made it: single, ep, dist-ep, zebra, ...
  std::string model;     ///< name of the model it was made for
  std::string made_for;  ///< Cluster::types_text() of what it was made for; empty = not known
  i64 seq_len = 0;       ///< tokens per sequence
  std::vector<Group> groups;
  OrderPolicy order = OrderPolicy::kLayerMajor;
  /// layer_major: microbatches in flight, 0 = all. one_f_one_b: microbatches that go through a stage
  /// together, 0 = one. round_robin: microbatches of a round, 0 = all. timed: microbatches in flight, 0 =
  /// all.
  i32 window = 0;
  /// round_robin: [turn] how long a microbatch takes in it, in any unit; empty = equally long. Where devices
  /// differ [device of the group][turn], one device after another. Transfers of a device are in one order,
  /// and this is what that order is made by.
  std::vector<double> turn_lengths = {};
  std::optional<ExpectedTimes> expected = {};  ///< timed: none = the defaults
  std::vector<Dtype> dtype;                    ///< [num_devices of the cluster] compute dtype
  Wire wire_forward = Wire::kFp32, wire_backward = Wire::kFp32;  ///< of rows and of their gradients
  /// Copies are divided so by the choices that a step replays, which all devices know: nothing is told. A
  /// step without choices (validation) divides by shares. Beside tally it means nothing.
  bool foreseen = false;
  std::vector<i64> split_speeds = {};  ///< [num_devices] at expert work, for both; empty = all alike
  /// Room on each owner for experts of other owners, lent for one layer of one microbatch where that relieves
  /// the slowest. Who lends what follows from the counts of an exchange: with tally from those that are told,
  /// else from replayed choices.
  i64 guest_slots = 0;
  i64 guest_depth = 2;  ///< exchanges whose guests may be there at once: one computes, the next is lent
  /// [num_devices] copies that a device computes in the time that a guest costs; empty = 0
  std::vector<i64> guest_cost = {};
  /// [num_devices] the node whose host a device uses, which is its own; empty = nothing is on a host.
  std::vector<NodeId> hosts = {};
  /// [num_devices] the node of a device: a token goes once to each node with owners of its experts, and one
  /// of these passes it on to the others there (NodeRows). Empty = a token goes straight to each owner.
  std::vector<NodeId> row_nodes = {};
  std::string explicit_order;              ///< schedule text, for order = explicit
  std::optional<double> predicted_step_s;  ///< of the planner that chose it
  template <class V>
  void fields(V& v) {
    v("strategy", strategy, "who made the plan");
    v("model", model, "model it was made for", required());
    v("made_for", made_for, "types of the devices it was made for, in their order; empty = not known");
    v("seq_len", seq_len, "tokens per sequence", required(at_least(1)));
    v("order", order, "order policy");
    v("window", window, "microbatches in flight, 0 = all", at_least(0));
    v("turn_lengths", turn_lengths,
      "of a microbatch in each turn of a round, in any unit, of unequal devices one after another; empty = "
      "equal",
      above(0));
    v("expected", expected, "order timed: how long parts of a microbatch take, in any unit");
    step_fields(v);
    v("wire_forward", wire_forward, "how rows travel");
    v("wire_backward", wire_backward, "how gradients of rows travel");
    v("dtype", dtype, "compute dtype per device", required());
    state_fields(v);
    v("foreseen", foreseen, "as tally, by the choices that a step replays; nothing is told");
    v("split_speeds", split_speeds,
      "speeds of devices at expert work, for tally and foreseen; empty = all alike", between(1, 1e9));
    v("guest_slots", guest_slots, "experts of other owners that are lent to a device for one exchange",
      between(0, 4096));
    v("guest_depth", guest_depth, "exchanges whose guests may be on a device at once", between(1, 64));
    v("guest_cost", guest_cost, "copies that a device computes in the time that a guest costs; empty = 0",
      between(0, 1e9));
    v("hosts", hosts, "node whose host each device uses; empty = nothing is on a host", at_least(0));
    v("row_nodes", row_nodes,
      "node of each device: a token goes once to each node, and a device there passes it on; empty = once to "
      "each device",
      at_least(0));
    slot_fields(v);
    network_fields(v);
    v("predicted_step_s", predicted_step_s, "predicted seconds per step");
    v("explicit_order", explicit_order, "schedule text for order: explicit", text_of_lines());
    v("groups", groups, "data-parallel copies of the model", required());
  }
};

/// The row of `shares` that holds for microbatch `m`.
inline const ShareRow& share_row(const Shares& shares, i32 m) {
  return shares[shares.size() == 1 ? 0 : static_cast<std::size_t>(m)];
}
/// Calls f(device) for each share.
template <class F>
void for_devices(const Shares& shares, F f) {
  for (const ShareRow& row : shares) {
    for (const Share& share : row) f(share.device);
  }
}
/// Adds the devices that the shares list.
inline void add_devices(const Shares& shares, std::set<DeviceId>& devices) {
  for_devices(shares, [&](DeviceId device) { devices.insert(device); });
}
/// Sequences of `device` in a row, 0 when it is absent. For a device of a team: the sequences of its team.
i64 sequences_of(const ShareRow& row, DeviceId device);
/// Some attention part is computed by teams.
bool has_teams(const Plan& plan);

i64 total_sequences(const Group& group);
i64 total_sequences(const Plan& plan);  ///< of a step, all groups
i64 total_tokens(const Group& group, const Plan& plan);
i64 total_tokens(const Plan& plan);
i64 microbatch_tokens(const Group& group, std::size_t microbatch, const Plan& plan);

/// In which dtype a device sums, keeps and reduces gradients of parameters: plan.grad_dtype, else fp32, and
/// fp64 for fp64 parameters. A sum of many microbatches in 16 bits loses what each of them adds.
Dtype grad_dtype_of(const Plan& plan, DeviceId device);
/// In which dtype a device sends its gradients to the one that sums them.
Dtype reduce_dtype_of(const Plan& plan, DeviceId device);
OptimizerWidths optimizer_widths(Master master, std::optional<Dtype> moments_dtype);
inline OptimizerWidths optimizer_widths_of(const Plan& plan) {
  return optimizer_widths(plan.master, plan.moments_dtype);
}
/// Bytes of a parameter on a device, by the plan's dtypes.
StateBytes state_bytes_of(const Plan& plan, DeviceId device);
/// The plan gets the dtypes of another for the same cluster.
void take_dtypes(Plan& plan, const Plan& from);
/// Faults that validate() finds in the dtypes and wires of gradients, and in the dtypes of masters and
/// moments.
std::vector<std::string> dtype_faults(const Plan& plan);

/// Where the parameters of a part of a layer live (kEmbed, kHead: any layer) in a group.
Home home_of(const Group& group, UnitPart part, i32 layer);
/// Copies of an exchange are divided by their counts, told or foreseen.
inline bool divides_copies(const Plan& plan) { return plan.tally || plan.foreseen || plan.guest_slots > 0; }
/// NICs that a device has for itself.
inline i64 nics_of(const Plan& plan, DeviceId device) {
  return plan.nics.empty() ? 0 : plan.nics[static_cast<std::size_t>(device)];
}
/// Something of the plan is on a host.
inline bool uses_hosts(const Plan& plan) { return !plan.hosts.empty(); }

/// [device] attention, expert, both or idle: what it does in some layer of its group; attention where it has
/// an embedding or a head alone.
std::vector<std::string> roles_of(const Plan& plan);
/// The first device at work that uses the host of a node: all of these have one dtype. Without any, the first
/// that is there.
DeviceId user_of_host(const Plan& plan, NodeId node);

/// All faults of a plan against model and cluster, in words; empty = it fits.
std::vector<std::string> validate(const Plan& plan, const ModelConfig& model, const Cluster& cluster);

Json to_json(const Plan& plan);
Plan plan_from_json(const Json& json, const std::string& where);

/// Takes keys that plans had once out of `plan`, which is no object or has the keys of a plan or of a job's
/// plan. Throws ConfigError where such a key holds another value than its default: `place` and the key name
/// it.
void drop_retired_keys(Json& plan, const std::string& place);

}  // namespace hetermoe
