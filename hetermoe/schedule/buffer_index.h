#pragma once
#include <algorithm>

#include "hetermoe/schedule/accesses.h"

namespace hetermoe {

/// Numbers the buffers of one kind on one device, so that tables about them are plain arrays.
class BufferIndex {
 public:
  explicit BufferIndex(const Placement& placement)
      : num_layers_(static_cast<std::size_t>(placement.num_layers()) + 2),
        num_chunks_(static_cast<std::size_t>(placement.plan().chunks)),
        num_states_(placement.states().size()),
        num_slots_(static_cast<std::size_t>(
            std::max({1, placement.plan().slots.attention, placement.plan().slots.experts,
                      placement.plan().slots.saved}))),
        num_pieces_(static_cast<std::size_t>(placement.num_saved_pieces())),
        num_turns_(static_cast<std::size_t>(placement.plan().guest_depth)) {
    for (const State& state : placement.states()) {
      const auto end = static_cast<std::size_t>(state.first_slot + num_slots(placement.plan(), state.part));
      num_slots_ = std::max(num_slots_, end);
    }
    for (i32 g = 0; g < placement.num_groups(); ++g) {
      num_microbatches_ =
          std::max(num_microbatches_, static_cast<std::size_t>(placement.num_microbatches(g)));
    }
  }

  std::size_t size(Buffer buffer) const {
    if (buffer == Buffer::kSlot) return num_slots_ * kNumSlotParts;
    if (buffer == Buffer::kGuestTurn) return num_turns_;
    if (buffer == Buffer::kHostHidden) return num_layers_ * num_microbatches_ * num_pieces_;
    return is_of_state(buffer) ? num_states_ : num_layers_ * num_microbatches_ * num_chunks_;
  }
  std::size_t operator()(const Access& access) const {
    if (access.buffer == Buffer::kSlot)
      return static_cast<std::size_t>(access.layer) * num_slots_ + static_cast<std::size_t>(access.chunk);
    if (access.buffer == Buffer::kGuestTurn) return static_cast<std::size_t>(access.chunk);
    if (is_of_state(access.buffer)) return static_cast<std::size_t>(access.layer);
    const auto layer = static_cast<std::size_t>(access.layer + 1);
    const auto microbatch = static_cast<std::size_t>(std::max(access.microbatch, 0));
    const std::size_t parts = access.buffer == Buffer::kHostHidden ? num_pieces_ : num_chunks_;
    return (layer * num_microbatches_ + microbatch) * parts + static_cast<std::size_t>(access.chunk);
  }

 private:
  static bool is_of_state(Buffer buffer) {
    return buffer == Buffer::kGrad || buffer == Buffer::kParams || buffer == Buffer::kWeights ||
           buffer == Buffer::kPublished || buffer == Buffer::kTaken;
  }

  std::size_t num_layers_, num_microbatches_ = 1, num_chunks_, num_states_, num_slots_, num_pieces_;
  std::size_t num_turns_;
};

}  // namespace hetermoe
