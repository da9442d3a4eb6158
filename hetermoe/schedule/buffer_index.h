#pragma once
#include <algorithm>
#include <array>

#include "hetermoe/base/index.h"
#include "hetermoe/schedule/accesses.h"

namespace hetermoe {

/// Numbers the buffers of one kind on one device, so that tables about them are plain arrays.
class BufferIndex {
 public:
  explicit BufferIndex(const Placement& placement) {
    const Plan& plan = placement.plan();
    const i64 layers = placement.num_layers() + 2, chunks = plan.chunks;
    i64 slots = std::max({1, plan.slots.attention, plan.slots.experts, plan.slots.saved}), microbatches = 1;
    for (const State& state : placement.states())
      slots = std::max(slots, i64{state.first_slot + num_slots(plan, state.part)});
    for (i32 g = 0; g < placement.num_groups(); ++g)
      microbatches = std::max(microbatches, i64{placement.num_microbatches(g)});
    const auto by_layer = [&](i64 parts) {
      return Numbers{.first = microbatches * parts,  // there is a layer -1
                     .layer = microbatches * parts,
                     .microbatch = parts,
                     .size = layers * microbatches * parts};
    };
    for (i32 b = 0; b < kNumBuffers; ++b) {
      Numbers& numbers = of_[idx(b)];
      if (is_of_state(static_cast<Buffer>(b)))
        numbers = {.layer = 1, .size = static_cast<i64>(placement.states().size())};
      else
        numbers = by_layer(chunks);
    }
    of_[idx(Buffer::kHostHidden)] = by_layer(placement.num_saved_pieces());
    of_[idx(Buffer::kSlot)] = {.layer = slots, .size = slots * kNumSlotParts};
    of_[idx(Buffer::kGuestTurn)] = {.size = plan.guest_depth};
  }

  std::size_t size(Buffer buffer) const { return idx(of_[idx(buffer)].size); }
  std::size_t operator()(const Access& access) const {
    const Numbers& of = of_[idx(access.buffer)];
    return idx(of.first + access.layer * of.layer + std::max(access.microbatch, 0) * of.microbatch +
               access.chunk);
  }

 private:
  /// first + that of each layer, microbatch and chunk.
  struct Numbers {
    i64 first = 0, layer = 0, microbatch = 0, size = 0;
  };
  static bool is_of_state(Buffer buffer) {
    return buffer == Buffer::kGrad || buffer == Buffer::kParams || buffer == Buffer::kWeights ||
           buffer == Buffer::kPublished || buffer == Buffer::kTaken;
  }

  std::array<Numbers, kNumBuffers> of_;
};

}  // namespace hetermoe
