#pragma once
#include <memory>
#include <vector>

#include "hetermoe/base/types.h"

namespace hetermoe {

enum class TokenType { kU8, kI8, kI16, kU16, kI32, kU32, kI64 };
i64 bytes_of(TokenType type);
/// The smallest unsigned type, or kI32, for tokens below `vocab`.
TokenType type_for(i64 vocab);

/// Tokens of one type in a row, in memory or in a file that is mapped. Copies share them.
class TokenArray {
 public:
  TokenArray() = default;
  /// data: of `size` tokens, any alignment, for as long as `owner` lives.
  TokenArray(std::shared_ptr<const void> owner, const void* data, TokenType type, i64 size, bool mapped)
      : owner_(std::move(owner)), data_(data), type_(type), size_(size), mapped_(mapped) {}

  i64 size() const { return size_; }
  TokenType type() const { return type_; }
  i64 bytes() const { return size_ * bytes_of(type_); }
  const void* data() const { return data_; }
  bool mapped() const { return mapped_; }  ///< reading all of it may take long
  /// Tokens [first, first + count).
  void copy(i64 first, i64 count, i64* out) const;
  TokenArray part(i64 first, i64 count) const;

 private:
  std::shared_ptr<const void> owner_;
  const void* data_ = nullptr;
  TokenType type_ = TokenType::kU8;
  i64 size_ = 0;
  bool mapped_ = false;
};

/// Tokens that become an array.
class TokenBuilder {
 public:
  explicit TokenBuilder(TokenType type) : type_(type), bytes_(std::make_shared<std::vector<char>>()) {}
  i64 size() const { return static_cast<i64>(bytes_->size()) / bytes_of(type_); }
  void add(i64 token);
  void add_bytes(const char* data, std::size_t size);  ///< of type kU8: as many tokens
  void drop_to(i64 size);                              ///< those added after the first so many
  /// Takes what was added.
  TokenArray finish();

 private:
  TokenType type_;
  std::shared_ptr<std::vector<char>> bytes_;
};

}  // namespace hetermoe
