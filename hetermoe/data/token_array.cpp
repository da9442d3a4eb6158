#include "hetermoe/data/token_array.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

template <class T>
void widen(const char* from, i64 count, i64* out) {
  for (i64 i = 0; i < count; ++i, from += sizeof(T)) {
    T token;
    std::memcpy(&token, from, sizeof(T));
    out[i] = static_cast<i64>(token);
  }
}

}  // namespace

i64 bytes_of(TokenType type) {
  constexpr std::array<i64, 7> kBytes = {1, 1, 2, 2, 4, 4, 8};
  return kBytes[idx(type)];
}

TokenType type_for(i64 vocab) {
  return vocab <= 256 ? TokenType::kU8 : vocab <= 65536 ? TokenType::kU16 : TokenType::kI32;
}

void TokenArray::copy(i64 first, i64 count, i64* out) const {
  HM_CHECK(first >= 0 && count >= 0 && first + count <= size_, "tokens {} + {} of {}", first, count, size_);
  const char* from = static_cast<const char*>(data_) + first * bytes_of(type_);
  switch (type_) {
    case TokenType::kU8:
      return widen<std::uint8_t>(from, count, out);
    case TokenType::kI8:
      return widen<std::int8_t>(from, count, out);
    case TokenType::kI16:
      return widen<std::int16_t>(from, count, out);
    case TokenType::kU16:
      return widen<std::uint16_t>(from, count, out);
    case TokenType::kI32:
      return widen<std::int32_t>(from, count, out);
    case TokenType::kU32:
      return widen<std::uint32_t>(from, count, out);
    case TokenType::kI64:
      return widen<i64>(from, count, out);
  }
}

TokenArray TokenArray::part(i64 first, i64 count) const {
  HM_CHECK(first >= 0 && count >= 0 && first + count <= size_, "tokens {} + {} of {}", first, count, size_);
  return {owner_, static_cast<const char*>(data_) + first * bytes_of(type_), type_, count, mapped_};
}

void TokenBuilder::add(i64 token) {
  const std::size_t at = bytes_->size();
  bytes_->resize(at + idx(bytes_of(type_)));
  std::memcpy(bytes_->data() + at, &token, idx(bytes_of(type_)));  // little-endian: the low bytes
}

void TokenBuilder::add_bytes(const char* data, std::size_t size) {
  HM_CHECK(type_ == TokenType::kU8, "bytes as tokens of type {}", static_cast<int>(type_));
  bytes_->insert(bytes_->end(), data, data + size);
}

void TokenBuilder::drop_to(i64 size) { bytes_->resize(idx(size * bytes_of(type_))); }

TokenArray TokenBuilder::finish() {
  const i64 count = size();
  const void* data = bytes_->data();
  return {std::exchange(bytes_, std::make_shared<std::vector<char>>()), data, type_, count, false};
}

}  // namespace hetermoe
