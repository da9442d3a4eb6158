#pragma once
#include <cstring>
#include <vector>

#include "hetermoe/base/checksum.h"
#include "hetermoe/comm/wire.h"

namespace hetermoe::fuzz {

/// Of all messages that targets read.
inline constexpr Stamp kStamp{.step = 7, .op = 3};

/// Makes magic number and checksum of a message's bytes right, so that what lies behind them is reached.
inline void seal(std::vector<char>& bytes) {
  static const std::vector<char> empty = to_bytes(kStamp, {});
  if (bytes.size() < 16) return;
  std::memcpy(bytes.data(), empty.data(), 8);
  const u64 sum = checksum(bytes.data() + 16, bytes.size() - 16);
  std::memcpy(bytes.data() + 8, &sum, 8);
}

/// One of each sort of content.
inline std::vector<Message> seed_messages() {
  Message tensors;
  tensors.tensors = {at::ones({2, 3}), at::arange(4), at::empty({0, 4}, at::kBFloat16)};
  Message numbers;
  numbers.numbers = {1, 2, -3};
  numbers.values = {0.5};
  numbers.ready = 1;
  return {tensors, numbers, {}};
}

}  // namespace hetermoe::fuzz
