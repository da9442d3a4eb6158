#pragma once
#include <array>
#include <compare>
#include <string>
#include <vector>

#include "hetermoe/ops/op_row.h"
#include "hetermoe/placement/placement.h"

// The buffers that live on a device during a step, as a table, and which of them an op touches.
namespace hetermoe {

enum class Buffer : std::uint8_t {
  kHidden,  ///< input of a layer (of the head: layer = num_layers); the saved input that backward starts from
  // In a team, between the ops that its attention part is cut into:
  kQkv,              ///< queries, keys and values of own tokens
  kSavedProjection,  ///< activations up to these
  kHeads,            ///< queries, keys and values of own heads, of all tokens of the team
  kSavedScores,      ///< those, and what the attention kernel made of them
  kContext,          ///< output of the attention kernel, of own heads
  kAttended,         ///< of own tokens, all heads; backward starts from it, too
  kDAttended,        ///< its gradient
  kDContext,         ///< the same on the devices of the heads
  kDHeads,           ///< gradients of queries, keys and values, by heads
  kDQkv,             ///< the same by tokens
  kDInput,           ///< gradient of the layer's input, of all that comes after the attention kernel
  kResidual,         ///< residual stream after the attention part, until the expert rows are added
  kSend,             ///< normed rows that dispatch sends
  kRouting,          ///< top-k choice and weights, kept until attention.B
  kSavedAttention,   ///< activations of the attention part (recompute off, or made by attention.R)
  kLeftAttention,    ///< what attention.B leaves for attention.W: inputs of products, gradients of results
  kLoad,  ///< counts of an exchange: dispatch.F tells all participants, the other transfers reuse them
  kRows,  ///< received rows and routing weights on an expert owner; the saved input of experts.B
  kSavedExperts,  ///< activations of the experts (recompute off, or made by experts.R)
  kLeftExperts,   ///< what experts.B leaves for experts.W: gradients of gate and up, inner activations
  kOut,           ///< weighted rows an owner returns
  kReturned,      ///< rows that came back to the attention device
  kMoveOut,       ///< merged rows before a move
  kDHidden,       ///< gradient of a layer's output (layer -1: of the embedding), on the attention devices
  kDOut,          ///< gradient rows on an owner
  kDRows,         ///< gradients of rows and routing weights that an owner returns
  kDSend,         ///< those gradients back on the attention device
  kDMove,         ///< gradient rows before a backward move
  kCounts,        ///< expert counts of a microbatch
  kBalance,       ///< gradient of the load-balancing loss
  kGrad,          ///< gradient of a state
  kNorm,          ///< global gradient norm
  kFigures,       ///< losses that a device tells in norm
  kParams,        ///< parameters of a state
  kPublished,     ///< of a state that is updated a step late: the parameters that devices fetch
  kTaken,         ///< of such a state, and of gathered ones: summed gradients, until the update
  kWeights,       ///< parameters of a state that visit the device, or are gathered there
  kSlot,          ///< the place of a visit
  kHostHidden,    ///< hidden or rows on a host
  kTally,         ///< who computes how many copies of an exchange, on its sources, and on its owners where
                  ///< they lend experts
  kGuest,         ///< weights of experts that are lent to an owner for an exchange
  kGuestTurn,     ///< the right to have guests
  kGuestGrad      ///< gradients of these experts
};
inline constexpr i32 kNumBuffers = kEnumCount<Buffer>;

/// The key that distinguishes the buffers of a row on a device.
enum class KeyShape : std::uint8_t {
  kOfStep,        ///< there is one
  kOfMicrobatch,  ///< microbatch
  kOfLayer,       ///< layer (-1 the embedding, num_layers the head), microbatch
  kOfChunk,       ///< layer, microbatch, chunk
  kOfPiece,       ///< layer, microbatch, Placement::saved_piece()
  kOfState,       ///< index of a state
  kOfSlot,        ///< SlotPart, slot
  kOfTurn         ///< Placement::guest_turn()
};

/// Beyond one step.
enum class Lifetime : std::uint8_t {
  kStep,   ///< each step has its own
  kSteps,  ///< two steps that overlap use the same memory for it: they have one store for each place
  kAlways  ///< likewise, and it is there before the step and after it: reading needs no writer
};

/// As what memory it counts.
enum class CountsAs : std::uint8_t { kInFlight, kSaved, kWeights, kGradients };

/// Contents of a slot: weights of a part of the model, or saved activations.
enum class SlotPart : std::uint8_t { kEmbed, kAttention, kExperts, kHead, kInputs, kRows };
constexpr SlotPart slot_part(UnitPart part) { return static_cast<SlotPart>(part); }
constexpr SlotPart slot_part(SavedPart part) {
  return part == SavedPart::kInputs ? SlotPart::kInputs : SlotPart::kRows;
}
static_assert(slot_part(UnitPart::kHead) == SlotPart::kHead && kEnumCount<UnitPart> == 4);
inline constexpr i32 kNumSlotParts = kEnumCount<SlotPart>;

class BufferKey;

struct BufferRow {
  Buffer buffer;
  const char* name;  ///< in texts
  KeyShape key;
  Lifetime lifetime = Lifetime::kStep;
  CountsAs counts_as = CountsAs::kInFlight;
  /// On a device; see BufferSizes. Null = a few numbers, a right to a place, or part of a state.
  Bytes (*size)(BufferSizes& sizes, const BufferKey& key, PlaceId place) = nullptr;
};
extern const std::array<BufferRow, kNumBuffers> kBufferRows;  ///< in the order of Buffer
inline const BufferRow& row_of(Buffer buffer) { return kBufferRows[static_cast<std::size_t>(buffer)]; }
template <>
struct EnumNames<Buffer> {
  static const std::vector<std::string>& names();
};
template <>
struct EnumNames<SlotPart> {
  static const std::vector<std::string>& names();
};

inline bool outlives_step(Buffer buffer) { return row_of(buffer).lifetime == Lifetime::kAlways; }
inline bool spans_steps(Buffer buffer) { return row_of(buffer).lifetime != Lifetime::kStep; }

/// A buffer on a device. It is made, and asked, by what tells it apart.
class BufferKey {
 public:
  static BufferKey of_step(Buffer buffer) { return {buffer, KeyShape::kOfStep, 0, 0, 0}; }
  static BufferKey of_microbatch(Buffer buffer, i32 microbatch) {
    return {buffer, KeyShape::kOfMicrobatch, 0, microbatch, 0};
  }
  static BufferKey of_layer(Buffer buffer, i32 layer, i32 microbatch) {
    return {buffer, KeyShape::kOfLayer, layer, microbatch, 0};
  }
  static BufferKey of_chunk(Buffer buffer, i32 layer, i32 microbatch, i32 chunk) {
    return {buffer, KeyShape::kOfChunk, layer, microbatch, chunk};
  }
  static BufferKey of_piece(Buffer buffer, i32 layer, i32 microbatch, i32 piece) {
    return {buffer, KeyShape::kOfPiece, layer, microbatch, piece};
  }
  static BufferKey of_state(Buffer buffer, i32 state) { return {buffer, KeyShape::kOfState, state, 0, 0}; }
  static BufferKey of_slot(Buffer buffer, SlotPart part, i32 slot) {
    return {buffer, KeyShape::kOfSlot, static_cast<i32>(part), 0, slot};
  }
  static BufferKey of_turn(Buffer buffer, i32 turn) { return {buffer, KeyShape::kOfTurn, 0, 0, turn}; }

  Buffer buffer() const { return buffer_; }
  KeyShape shape() const { return row_of(buffer_).key; }
  i32 layer() const { return first_; }
  i32 microbatch() const { return microbatch_; }
  i32 chunk() const { return last_; }
  i32 piece() const { return last_; }
  i32 state() const { return first_; }
  SlotPart part() const { return static_cast<SlotPart>(first_); }
  i32 slot() const { return last_; }
  i32 turn() const { return last_; }
  bool has_layer() const {
    return shape() == KeyShape::kOfLayer || shape() == KeyShape::kOfChunk || shape() == KeyShape::kOfPiece;
  }
  auto operator<=>(const BufferKey&) const = default;

 private:
  BufferKey(Buffer buffer, KeyShape shape, i32 first, i32 microbatch, i32 last)
      : buffer_(buffer), first_(first), microbatch_(microbatch), last_(last) {
    HM_CHECK(row_of(buffer).key == shape, "{} has another key", row_of(buffer).name);
  }

  Buffer buffer_;
  i32 first_, microbatch_, last_;
};
/// "rows (layer 1, microbatch 0, chunk 2)", "grad (state 3)".
std::string to_string(const BufferKey& key);

/// kTake reads and leaves nothing: the next to add begins with zeros.
enum class Mode : std::uint8_t { kRead, kWrite, kAdd, kTake };

struct Access {
  BufferKey key;
  Mode mode;
  Buffer buffer() const { return key.buffer(); }
};

/// Appends to `out` the buffers that `op` touches on `device`.
void accesses(const Op& op, DeviceId device, const Placement& placement, std::vector<Access>& out);

}  // namespace hetermoe
