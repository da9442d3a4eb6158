#pragma once
#include <vector>

#include "hetermoe/schedule/placement.h"

// The one table from which dependencies, frees and peak memory follow.
namespace hetermoe {

/// What lives on a device during a step, per (layer, microbatch, chunk) unless said otherwise.
enum class Buffer : std::uint8_t {
  kHidden,  ///< input of a layer (of the head: layer = num_layers); the saved input that backward starts from
  kResidual,        ///< residual stream after the attention part, until the expert rows are added
  kSend,            ///< normed rows that dispatch sends
  kRouting,         ///< top-k choice and weights, kept until attention.B
  kSavedAttention,  ///< activations of the attention part (recompute off, or made by attention.R)
  kLeftAttention,   ///< what attention.B leaves for attention.W: inputs of products, gradients of results
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
  kCounts,        ///< expert counts of a microbatch (layer -1)
  kBalance,       ///< gradient of the load-balancing loss (layer -1)
  kGrad,          ///< gradient of a state (layer = state index, microbatch -1)
  kNorm,          ///< global gradient norm (layer and microbatch -1)
  kFigures,       ///< losses that a device tells in norm (layer and microbatch -1)
  kParams,        ///< parameters of a state (layer = state index, microbatch -1)
  kPublished,     ///< of a state that is updated a step late: the parameters that devices fetch
  kTaken,         ///< of such a state, and of gathered ones: summed gradients, until the update
  kWeights,       ///< parameters of a state that visit the device, or are gathered there (layer = state
                  ///< index, microbatch -1)
  kSlot,          ///< the place of a visit (layer = UnitPart or SavedPart, microbatch -1, chunk = slot)
  kHostHidden,    ///< hidden or rows on a host (chunk = Placement::saved_piece)
  kTally,         ///< who computes how many copies of an exchange, on its sources (chunk 0 for all chunks),
                  ///< and on its owners where they lend experts
  kGuest,         ///< weights of experts that are lent to an owner for an exchange
  kGuestTurn,     ///< the right to have guests (layer and microbatch -1, chunk = Placement::guest_turn)
  kGuestGrad      ///< gradients of these experts
};
/// What kSlot says of saved activations in the place of a UnitPart.
enum class SavedPart : std::uint8_t { kInputs = kEnumCount<UnitPart>, kRows };
inline constexpr i32 kNumSlotParts = static_cast<i32>(SavedPart::kRows) + 1;
inline constexpr i32 kNumBuffers = kEnumCount<Buffer>;
/// The buffer is there before the step and after it: reading needs no writer, and nothing frees it.
constexpr bool outlives_step(Buffer buffer) {
  return buffer == Buffer::kParams || buffer == Buffer::kPublished;
}
/// Two steps that overlap use the same memory for it: they have one store of parameters for each place. Of
/// all other buffers each step has its own.
constexpr bool spans_steps(Buffer buffer) {
  return outlives_step(buffer) || buffer == Buffer::kTaken || buffer == Buffer::kGrad ||
         buffer == Buffer::kWeights || buffer == Buffer::kSlot;
}
template <>
struct EnumNames<Buffer> {
  static const std::vector<std::string>& names();
};

/// kTake reads and leaves nothing: the next to add begins with zeros.
enum class Mode : std::uint8_t { kRead, kWrite, kAdd, kTake };

struct Access {
  Buffer buffer;
  Mode mode;
  i32 layer, microbatch, chunk;
};

/// Appends to `out` the buffers that `op` touches on `device`.
void accesses(const Op& op, DeviceId device, const Placement& placement, std::vector<Access>& out);

}  // namespace hetermoe
