#pragma once
#include <utility>
#include <vector>

#include "hetermoe/base/hash.h"
#include "hetermoe/base/types.h"

namespace hetermoe::hf {

/// A pair of tokens that becomes one. Lower ranks merge first.
struct Merge {
  i32 rank, token;
};

/// Merges by their pairs: a hash table with open addressing, which is read far more often than written.
class MergeTable {
 public:
  explicit MergeTable(std::size_t most) {
    std::size_t size = 16;
    while (size < 2 * most) size *= 2;
    slots_.resize(size);
  }
  /// Replaces what the pair had. At most as many pairs as were announced.
  void set(i32 left, i32 right, Merge merge) {
    slots_[slot_of(key_of(left, right))] = {key_of(left, right), merge};
  }
  /// Null where the pair does not merge.
  const Merge* find(i32 left, i32 right) const {
    const Slot& slot = slots_[slot_of(key_of(left, right))];
    return slot.key == kFree ? nullptr : &slot.merge;
  }

 private:
  static constexpr u64 kFree = ~u64{0};
  struct Slot {
    u64 key = kFree;
    Merge merge{};
  };
  static u64 key_of(i32 left, i32 right) {
    return static_cast<u64>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(u64 key) const {
    std::size_t at = splitmix64(key) & (slots_.size() - 1);
    while (slots_[at].key != key && slots_[at].key != kFree) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  std::vector<Slot> slots_;
};

}  // namespace hetermoe::hf
