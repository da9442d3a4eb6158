#include "hetermoe/data/token_stream.h"

#include <algorithm>

#include "hetermoe/base/checksum.h"
#include "hetermoe/base/error.h"
#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

i64 count_below(const std::vector<i64>& ascending, i64 limit) {
  return std::lower_bound(ascending.begin(), ascending.end(), limit) - ascending.begin();
}

/// Of a mapped array: its size, and 64 samples of 4 KiB spread over it.
u64 sampled_checksum(const TokenArray& tokens) {
  constexpr i64 kSamples = 64, kSample = 4096;
  const char* data = static_cast<const char*>(tokens.data());
  const i64 size = tokens.bytes();
  u64 state = Fnv().add(size).value();
  if (size <= kSamples * kSample) return checksum(data, idx(size), state);
  for (i64 i = 0; i < kSamples; ++i)
    state = checksum(data + (size - kSample) / (kSamples - 1) * i, idx(kSample), state);
  return state;
}

}  // namespace

template <class F>
void TokenStream::for_each_uncounted(i64 first, i64 count, const F& take) const {
  const i64 begin = first_ + first, end = begin + count;
  auto span = std::lower_bound(uncounted_->begin(), uncounted_->end(), begin,
                               [](const TokenSpan& s, i64 token) { return s.end <= token; });
  for (; span != uncounted_->end() && span->begin < end; ++span)
    take(std::max(span->begin, begin) - begin, std::min(span->end, end) - begin);
}

void TokenStream::append(const TokenArray& tokens, std::span<const i64> starts,
                         std::span<const TokenSpan> uncounted) {
  HM_CHECK(first_ == 0, "a part of a stream takes no more tokens");
  if (tokens.size() == 0) return;
  for (const i64 start : starts) starts_->push_back(size_ + start);
  for (const TokenSpan& span : uncounted) uncounted_->push_back({size_ + span.begin, size_ + span.end});
  pieces_.push_back({tokens, size_});
  size_ += tokens.size();
}

void TokenStream::copy(i64 first, i64 count, i64* out) const {
  HM_CHECK(first >= 0 && count >= 0 && first + count <= size_, "tokens {} + {} of {}", first, count, size_);
  if (count == 0) return;
  i64 at = first_ + first;
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), at,
                                [](i64 token, const Piece& p) { return token < p.begin; });
  for (--piece; count > 0; ++piece) {
    const i64 inside = at - piece->begin, taken = std::min(count, piece->tokens.size() - inside);
    piece->tokens.copy(inside, taken, out);
    at += taken, out += taken, count -= taken;
  }
}

std::vector<i64> TokenStream::tokens(i64 first, i64 count) const {
  std::vector<i64> out(idx(count));
  if (count > 0) copy(first, count, out.data());
  return out;
}

TokenStream TokenStream::part(i64 first, i64 count) const {
  HM_CHECK(first >= 0 && count >= 0 && first + count <= size_, "tokens {} + {} of {}", first, count, size_);
  TokenStream out = *this;
  out.first_ = first_ + first;
  out.size_ = count;
  return out;
}

i64 TokenStream::first_document() const { return count_below(*starts_, first_); }
i64 TokenStream::end_document() const { return count_below(*starts_, first_ + size_); }

i64 TokenStream::document(i64 index) const { return (*starts_)[idx(first_document() + index)] - first_; }

void TokenStream::mark_starts(i64 first, i64 count, i64* out) const {
  std::fill(out, out + count, 0);
  const i64 begin = first_ + first;
  for (i64 d = count_below(*starts_, begin); idx(d) < starts_->size() && (*starts_)[idx(d)] < begin + count;
       ++d)
    out[(*starts_)[idx(d)] - begin] = 1;
}

void TokenStream::mark_counted(i64 first, i64 count, i64* out) const {
  std::fill(out, out + count, 1);
  for_each_uncounted(first, count, [&](i64 begin, i64 end) { std::fill(out + begin, out + end, 0); });
}

i64 TokenStream::num_counted(i64 first, i64 count) const {
  i64 out = count;
  for_each_uncounted(first, count, [&](i64 begin, i64 end) { out -= end - begin; });
  return out;
}

bool TokenStream::mapped() const {
  return std::any_of(pieces_.begin(), pieces_.end(), [](const Piece& p) { return p.tokens.mapped(); });
}

u64 TokenStream::checksum() const {
  Fnv all;
  u64 only = 0;
  for (const Piece& piece : pieces_) {
    const i64 begin = std::max(first_, piece.begin);
    const i64 end = std::min(first_ + size_, piece.begin + piece.tokens.size());
    if (begin >= end) continue;
    const TokenArray part = piece.tokens.part(begin - piece.begin, end - begin);
    only = part.mapped() ? sampled_checksum(part) : hetermoe::checksum(part.data(), idx(part.bytes()));
    all.add(only);
  }
  if (pieces_.size() == 1 && counts_all()) return only;
  for_each_uncounted(0, size_, [&](i64 begin, i64 end) { all.add(begin).add(end); });
  return all.value();
}

}  // namespace hetermoe
