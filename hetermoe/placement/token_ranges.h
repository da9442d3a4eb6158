#pragma once
#include <algorithm>
#include <cstddef>
#include <iterator>

#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// Tokens [begin, end) of a microbatch that a device computes. An empty range is legal: the device takes part
/// and has nothing to compute.
struct TokenRange {
  DeviceId device = 0;
  i64 begin = 0, end = 0;
  i64 tokens() const { return end - begin; }
};
/// Tokens that both ranges have.
inline i64 shared_tokens(const TokenRange& a, const TokenRange& b) {
  return std::max<i64>(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

/// The device of each token of a microbatch at a stage, as ranges that follow one another from token 0. A
/// view of a row of the plan, which must outlive it; cheap to copy. No other code turns shares into tokens.
class TokenRanges {
 public:
  TokenRanges(const ShareRow& row, i64 seq_len) : row_(&row), seq_len_(seq_len) {}

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = TokenRange;
    using difference_type = std::ptrdiff_t;
    using pointer = const TokenRange*;
    using reference = TokenRange;

    Iterator(const Share* share, i64 seq_len) : share_(share), seq_len_(seq_len) {}
    TokenRange operator*() const { return {share_->device, begin_, begin_ + tokens_of(*share_, seq_len_)}; }
    Iterator& operator++() {
      begin_ += tokens_of(*share_, seq_len_);
      ++share_;
      return *this;
    }
    bool operator==(const Iterator& other) const { return share_ == other.share_; }

   private:
    const Share* share_;
    i64 seq_len_, begin_ = 0;
  };
  Iterator begin() const { return {row_->data(), seq_len_}; }
  Iterator end() const { return {row_->data() + row_->size(), seq_len_}; }

  std::size_t size() const { return row_->size(); }
  DeviceId device(std::size_t i) const { return (*row_)[i].device; }
  i64 tokens(std::size_t i) const { return tokens_of((*row_)[i], seq_len_); }
  /// -1 = the device has no range.
  i64 index_of(DeviceId device) const {
    for (std::size_t i = 0; i < size(); ++i)
      if ((*row_)[i].device == device) return static_cast<i64>(i);
    return -1;
  }
  bool has(DeviceId device) const { return index_of(device) >= 0; }
  /// Empty where the device has none.
  TokenRange of(DeviceId device) const {
    for (const TokenRange range : *this)
      if (range.device == device) return range;
    return {device, 0, 0};
  }
  bool operator==(const TokenRanges& other) const { return *row_ == *other.row_; }

 private:
  const ShareRow* row_;
  i64 seq_len_;
};

}  // namespace hetermoe
