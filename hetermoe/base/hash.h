#pragma once
#include <concepts>
#include <string_view>
#include <type_traits>

#include "hetermoe/base/splitmix64.h"
#include "hetermoe/base/types.h"

namespace hetermoe {

/// FNV-1a over bytes, for values that ranks compare and for keys of tables. Numbers enter as eight bytes,
/// lowest first, so that the width of a type does not change the hash. For long data there is checksum().
class Fnv {
 public:
  template <class T>
  requires(std::integral<T> || std::is_enum_v<T>) Fnv& add(T value) {
    const auto bits = static_cast<u64>(static_cast<i64>(value));
    for (int shift = 0; shift < 64; shift += 8) add_byte((bits >> shift) & 0xff);
    return *this;
  }
  /// A text and its length, so that two texts in a row never equal another two.
  Fnv& add(std::string_view text) {
    for (const char c : text) add_byte(static_cast<unsigned char>(c));
    return add(text.size());
  }
  u64 value() const { return state_; }

 private:
  void add_byte(u64 byte) { state_ = (state_ ^ byte) * 0x100000001b3ULL; }
  u64 state_ = 0xcbf29ce484222325ULL;
};

}  // namespace hetermoe
