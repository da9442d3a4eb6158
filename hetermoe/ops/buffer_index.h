#pragma once
#include <algorithm>
#include <array>

#include "hetermoe/base/index.h"
#include "hetermoe/ops/buffers.h"

namespace hetermoe {

/// Buffers of a layer and microbatch that KeyShape::kOfChunk tells apart: chunks of rows, or parts of the
/// heads.
inline i32 num_chunk_slots(const Plan& plan) { return std::max(plan.chunks, plan.head_parts); }

/// Numbers the buffers of one row on one device, so that tables about them are plain arrays.
class BufferIndex {
 public:
  explicit BufferIndex(const Placement& placement);

  std::size_t size(Buffer buffer) const { return idx(of_[idx(buffer)].size); }
  std::size_t operator()(const BufferKey& key) const {
    const Numbers& of = of_[idx(key.buffer())];
    return idx(of.first + key.layer() * of.layer + key.microbatch() * of.microbatch + key.chunk());
  }

 private:
  /// first + that of each layer (state, part), microbatch and chunk (slot, piece, turn).
  struct Numbers {
    i64 first = 0, layer = 0, microbatch = 0, size = 1;
  };

  std::array<Numbers, kNumBuffers> of_;
};

}  // namespace hetermoe
