#pragma once
#include <array>
#include <compare>
#include <initializer_list>
#include <string>
#include <vector>

#include "hetermoe/ops/buffer_list.h"
#include "hetermoe/ops/op_row.h"
#include "hetermoe/placement/placement.h"

// The buffers that live on a device during a step, as a table, and which of them an op touches.
namespace hetermoe {

enum class Buffer : std::uint8_t {
#define HM_BUFFER(buffer, ...) buffer,
  HM_BUFFERS(HM_BUFFER)
#undef HM_BUFFER
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
namespace buffer_list {
constexpr std::array<KeyShape, kNumBuffers> key_shapes() {
  std::array<KeyShape, kNumBuffers> all{};
  const auto set = [&](KeyShape shape, std::initializer_list<Buffer> buffers) {
    for (const Buffer buffer : buffers) all[static_cast<std::size_t>(buffer)] = shape;
  };
#define HM_ONE(buffer, ...) Buffer::buffer,
  set(KeyShape::kOfStep, {HM_BUFFERS_OF_STEP(HM_ONE)});
  set(KeyShape::kOfMicrobatch, {HM_BUFFERS_OF_MICROBATCH(HM_ONE)});
  set(KeyShape::kOfLayer, {HM_BUFFERS_OF_LAYER(HM_ONE)});
  set(KeyShape::kOfChunk, {HM_BUFFERS_OF_CHUNK(HM_ONE)});
  set(KeyShape::kOfPiece, {HM_BUFFERS_OF_PIECE(HM_ONE)});
  set(KeyShape::kOfState, {HM_BUFFERS_OF_STATE(HM_ONE)});
  set(KeyShape::kOfSlot, {HM_BUFFERS_OF_SLOT(HM_ONE)});
  set(KeyShape::kOfTurn, {HM_BUFFERS_OF_TURN(HM_ONE)});
#undef HM_ONE
  return all;
}
}  // namespace buffer_list
/// Constants of the compiler: building a schedule asks for a shape with every access.
inline constexpr std::array<KeyShape, kNumBuffers> kKeyShapes = buffer_list::key_shapes();
constexpr KeyShape shape_of(Buffer buffer) { return kKeyShapes[static_cast<std::size_t>(buffer)]; }

/// Beyond one step.
enum class Lifetime : std::uint8_t {
  kStep,   ///< each step has its own
  kSteps,  ///< two steps that overlap use the same memory for it: they have one store for each place
  kAlways  ///< likewise, and it is there before the step and after it: reading needs no writer
};
inline constexpr std::array<Lifetime, kNumBuffers> kLifetimes = {
#define HM_LIFETIME(buffer, name, holds, lifetime, ...) Lifetime::lifetime,
    HM_BUFFERS(HM_LIFETIME)
#undef HM_LIFETIME
};
constexpr Lifetime lifetime_of(Buffer buffer) { return kLifetimes[static_cast<std::size_t>(buffer)]; }
constexpr bool outlives_step(Buffer buffer) { return lifetime_of(buffer) == Lifetime::kAlways; }
constexpr bool spans_steps(Buffer buffer) { return lifetime_of(buffer) != Lifetime::kStep; }

/// In its slot of the executor (exec/slots.h).
enum class Holds : std::uint8_t {
  kNothing,  ///< it carries no data, or its data is elsewhere: in the store of a place, in a message
  kTensor,   ///< one, in a member of the buffer's name
  kTensors,  ///< likewise several
  kOther     ///< members that the slot names in visit()
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
  Holds holds;
  CountsAs counts_as;
  /// On a device; see BufferSizes. Null = a few numbers, a right to a place, or part of a state.
  Bytes (*size)(BufferSizes& sizes, const BufferKey& key, PlaceId place);
  const char* what;  ///< in a few words
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
  KeyShape shape() const { return shape_of(buffer_); }
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
  friend class AccessList;
  BufferKey(Buffer buffer, KeyShape shape, i32 first, i32 microbatch, i32 last)
      : buffer_(buffer), first_(first), microbatch_(microbatch), last_(last) {
    if (shape_of(buffer) != shape) has_another_key(buffer);
  }
  [[noreturn]] static void has_another_key(Buffer buffer);

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
