#pragma once
#include <cstddef>
#include <cstring>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// FNV-1a over 8-byte words, at memory speed. Each step is a bijection of the state, so any single changed
/// word changes the result: it catches cut and corrupted data, and is no protection against intent. `state`
/// continues an earlier call whose size was a multiple of 8.
inline u64 checksum(const void* data, std::size_t size, u64 state = 0xcbf29ce484222325ULL) {
  const char* at = static_cast<const char*>(data);
  for (; size >= 8; at += 8, size -= 8) {
    u64 word;
    std::memcpy(&word, at, 8);
    state = (state ^ word) * 0x100000001b3ULL;
  }
  for (; size > 0; ++at, --size) state = (state ^ static_cast<unsigned char>(*at)) * 0x100000001b3ULL;
  return state;
}

}  // namespace hetermoe
