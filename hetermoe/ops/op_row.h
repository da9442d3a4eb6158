#pragma once
#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hetermoe/model/unit.h"
#include "hetermoe/placement/op.h"

// All that is true of every op of a kind stands in its row, in a file of this folder. Other code asks rows,
// and compares no kinds but where it makes ops (CONTRIBUTING.md lists these places).
namespace hetermoe {

class AccessList;
class BufferSizes;
class Placement;
class WorkModel;
struct ComputeWork;
struct ExchangeLoad;
struct PortBytes;

/// In which phases a kind occurs. kNone: its ops carry Phase::kForward, and their text names no phase.
enum class Phases : std::uint8_t { kNone, kForward, kForwardBackward, kForwardBackwardRecompute, kAll };

/// The queue of an op under each QueueBinding.
struct QueueRule {
  Queue forward, backward;                ///< kDirection; recompute counts as forward
  Queue by_name;                          ///< kName
  Queue phase_backward, phase_recompute;  ///< kPhase; all else as kDirection

  static constexpr QueueRule always(Queue queue) { return {queue, queue, queue, queue, queue}; }
};

/// Which devices take part in an op.
enum class Participants : std::uint8_t {
  kOneDevice,     ///< a compute op
  kExchange,      ///< sources and owners of the layer
  kOwners,        ///< owners of the layer
  kBothShares,    ///< the shares from which and to which a move goes
  kTeam,          ///< the devices of a team
  kBalanceSet,    ///< the shares of all layers with experts, of all microbatches of the set
  kStateDevices,  ///< those that sum the state's gradients: its devices, or their hosts
  kStateHolders,  ///< those that hold any state, hosts included
  kWithHost,      ///< a device and its host
  kMovers         ///< givers and takers of a migration, which a placement does not know
};

/// Whose tokens a compute op follows: Placement::ranges() of this stage. kNone: it runs on the owners of its
/// layer, or on the places of its state.
enum class Stage : std::uint8_t { kNone, kEmbed, kLayer, kLayerBefore, kHead };

/// How often a kind occurs.
enum class Occurs : std::uint8_t {
  kInMicrobatch,     ///< in the phases of its row, as OpRow::occurs_in says
  kPerBalanceSet,    ///< after the last router of a set
  kPerSharedState,   ///< once for a state with several devices, when its gradients are complete
  kPerShardedState,  ///< in the place of these once for a state whose optimizer is divided
  kPerStep,          ///< once, when all gradients are complete
  kPerState,         ///< then on every device of every state
  kPerLaggingState,  ///< on every host that updates a state a step late, when its gradients are complete
  kAfterUpdate,      ///< last, once for a state whose optimizer is divided
  kOfResidence,      ///< as the homes of states ask: see Residency
  kBetweenSteps      ///< no op of a step: see Migration
};

/// The rule for the seconds of a compute op. A cost model knows these rules, and no kinds of ops.
enum class Pricing : std::uint8_t {
  kEmbedding,   ///< reads and writes of tokens
  kAttention,   ///< products, scores and passes over the tokens of an attention part; of a team what is after
                ///< scores
  kProjection,  ///< of an attention part what comes before scores
  kScores,      ///< its attention kernel, of some heads
  kExperts,     ///< products and passes over copies
  kHead,        ///< products over tokens; backward belongs to the op
  kMerge,       ///< ComputeWork::merged_rows alone
  kUpdate,      ///< ComputeWork::params
  kHostCopy     ///< ComputeWork::copied, on hosts
};

/// The part whose weights or gradients a compute op uses, and the layer of its states.
struct UsedPart {
  UnitPart part = UnitPart::kEmbed;
  i32 layer = -1;
};

/// Saved activations on hosts: the input of a layer, or the rows of its experts.
enum class SavedPart : std::uint8_t { kInputs, kRows };

struct OpRow {
  Phases phases;
  QueueRule queue;
  Participants participants;
  Stage stage = Stage::kNone;
  Occurs occurs;
  bool has_layer = false, has_microbatch = false, has_chunk = false, has_state = false;
  bool has_part = false;   ///< Op::chunk is a part of the heads (Plan::head_parts)
  bool of_inputs = false;  ///< its layer is the one whose input it brings: num_layers is the head
  std::optional<Pricing> pricing = {};  ///< of a compute op; transfers have none

  // Fields of transfers.
  bool of_guests = false;                ///< carries experts that owners lend each other, or their gradients
  bool to_owners = false;                ///< of exchanges: rows go to owners, in backward back to sources
  bool carries_routing_weights = false;  ///< of exchanges: with each copy, in backward its gradient
  bool carries_gradients = true;         ///< of what carries gradients or weights: not weights
  bool from_host = false;                ///< of copies between a device and its host

  std::optional<SavedPart> saved = {};  ///< of a compute op: the saved activations that it makes or uses
  bool saved_in_backward = true;        ///< phase B uses them, too
  bool looks_back =
      false;  ///< what it works on depends on the layer before: in looks_back_in, empty = always
  std::optional<Phase> looks_back_in = {};

  /// The buffers that the op touches on one of its devices.
  void (*accesses)(AccessList& list) = nullptr;
  /// For kInMicrobatch: whether the op, with its group, layer, microbatch and phase, is part of a step.
  /// Called for the phases of the row; null = always.
  bool (*occurs_in)(const Op& op, const Placement& placement) = nullptr;
  /// Whether frozen units leave the op work. Null = it follows from has_state.
  bool (*has_work)(const Op& op, const Placement& placement) = nullptr;
  /// For compute ops: the part whose weights it reads, and the part to whose gradients it adds.
  std::optional<UsedPart> (*uses)(const Op& op, const Placement& placement) = nullptr;
  std::optional<UsedPart> (*grades)(const Op& op, const Placement& placement) = nullptr;
  /// For compute ops: fills the fields of the work that the kind has.
  void (*work)(const WorkModel& model, const ExchangeLoad* load, ComputeWork& work) = nullptr;
  /// For transfers: WorkModel::port_bytes().
  std::vector<PortBytes> (*bytes)(const WorkModel& model, const Op& op, std::span<const PlaceId> participants,
                                  const ExchangeLoad* load) = nullptr;
  /// BufferSizes::workspace(). Null = none.
  Bytes (*workspace)(BufferSizes& sizes, const Op& op, DeviceId device) = nullptr;
};

namespace op_rows {
#define HM_ROW(kind, name) extern const OpRow name;
HM_OP_KINDS(HM_ROW)
#undef HM_ROW
}  // namespace op_rows

inline constexpr std::array<const OpRow*, kNumOpKinds> kOpRows = {
#define HM_ADDRESS(kind, name) &op_rows::name,
    HM_OP_KINDS(HM_ADDRESS)
#undef HM_ADDRESS
};
inline const OpRow& row_of(OpKind kind) { return *kOpRows[static_cast<std::size_t>(kind)]; }

/// Ops of the kind may have this phase.
bool has_phase(OpKind kind, Phase phase);
/// Compute ops occupy one compute lane; all others are transfers with a lane on every participant.
inline bool is_compute(OpKind kind) { return row_of(kind).pricing.has_value(); }
/// Belongs to an exchange of rows and needs its counts (Buffer::kLoad): these are the kinds that chunks cut.
inline bool needs_load(OpKind kind) { return row_of(kind).has_chunk; }

/// Queue of an op under the plan's binding.
Queue queue_of_op(const Op& op, QueueBinding binding);

/// A copy between a device and its host.
inline bool is_host_copy(const Op& op) { return row_of(op.kind).participants == Participants::kWithHost; }
/// Whether the op copies activations from which backward starts (those of a layer and microbatch on the
/// device), not a state. Its chunk is their piece: 0 = the input of the layer, c + 1 = the rows of the
/// experts in chunk c.
inline bool is_saved_copy(const Op& op) { return op.state < 0 && is_host_copy(op); }
/// The chunk of the exchange whose counts (Buffer::kLoad) say how much the op works on; -1 = none.
i32 load_chunk(const Op& op);

/// The stage whose shares a compute op follows: -1 the embedding, num_layers the head.
i32 stage_of(const Op& op, i32 num_layers);
/// Devices with a lane in a transfer, ascending.
std::vector<DeviceId> participants(const Op& op, const Placement& placement);
/// False for ops that frozen units leave no work for: their reduces and updates, gradients of their weights,
/// and with a frozen embedding all that carries its gradient.
bool in_step(const Op& op, const Placement& placement);
/// An exchange whose owners do not know yet how much will come.
bool tells_sizes(const Op& op, const Placement& placement);
/// Rows of an exchange go to owners, not back to sources.
inline bool goes_to_owners(const Op& op) {
  return row_of(op.kind).to_owners == (op.phase != Phase::kBackward);
}
/// Whether the input of the op depends on the layer before.
inline bool looks_back(const Op& op) {
  const OpRow& row = row_of(op.kind);
  return row.looks_back && (!row.looks_back_in || *row.looks_back_in == op.phase);
}
/// The device whose forward pass made the piece that an op stores or fetches, and the number of the piece on
/// its host.
DeviceId maker_of(const Op& copy, const Placement& placement);
i32 saved_piece(const Op& copy, const Placement& placement);

/// The part whose weights a compute op reads; and the part to whose gradients it adds. A head with tied
/// embeddings adds to that of the embedding, which is the part that it uses.
std::optional<UsedPart> used_part(const Op& op, const Placement& placement);
std::optional<UsedPart> graded_part(const Op& op, const Placement& placement);

/// "attention.F l2 m0", "dispatch.B l0 m1 c2", "reduce s3".
std::string to_string(const Op& op);

}  // namespace hetermoe
