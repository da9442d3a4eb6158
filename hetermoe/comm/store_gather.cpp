#include "hetermoe/comm/store_gather.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/numbers.h"

namespace hetermoe {
namespace {

/// The server takes values up to 8 MiB.
constexpr std::size_t kPart = std::size_t{4} << 20;

/// Between two looks at who has left.
constexpr Seconds kPatience = 0.5;

constexpr const char* kCount = "gather/count";
std::string text_key(i64 rank) { return fmt::format("gather/text/{}", rank); }
std::string joined_key(i64 number) { return fmt::format("gather/all/{}", number); }
std::string part_key(const std::string& key, i64 part) { return fmt::format("{}/{}", key, part); }

/// Takes a number and the character after it off the front of the text.
i64 take_number(std::string& text, char end) {
  const std::size_t at = text.find(end);
  const std::optional<i64> number = whole_number(text.substr(0, at));
  if (at == std::string::npos || !number) fail<TransportError>("gather", "a value of the store is corrupted");
  text.erase(0, at + 1);
  return *number;
}

}  // namespace

std::vector<std::string> StoreGather::gather(const std::string& text, Seconds limit, const Left& left) {
  if (num_ranks_ == 1) return {text};
  const Keys own_before = std::exchange(own_, put(text_key(rank_), fmt::format("{}\n{}", number_, text)));
  for (std::size_t part = own_.size(); part < own_before.size(); ++part) store_.remove(own_before[part]);
  // The number of calls grows from gather to gather: nobody comes to the next before all came to this one.
  const i64 come = store_.count(kCount) - number_ * num_ranks_;
  const std::string key = joined_key(number_);
  std::string joined;
  Keys keys;
  if (come == num_ranks_) {
    joined = join_texts();
    keys = put(key, joined);
  } else {
    const std::string head = await_joined(key, limit, left);
    joined = rest_of(key, head, keys);
  }
  // All have come here, so all have read what was joined before. One rank is enough to remove that.
  const Keys joined_before = std::exchange(joined_, keys);
  if (come == 1) {
    for (const std::string& old : joined_before) store_.remove(old);
  }
  ++number_;
  std::vector<i64> sizes;
  for (i32 r = 0; r < num_ranks_; ++r) sizes.push_back(take_number(joined, r + 1 < num_ranks_ ? ' ' : '\n'));
  std::vector<std::string> texts;
  std::size_t begin = 0;
  for (const i64 size : sizes) {
    texts.push_back(joined.substr(begin, idx(size)));
    begin += idx(size);
  }
  return texts;
}

/// A value is its number of further parts, a line end, and the first part. The others have keys of their own
/// and are there before it. Returns all keys.
StoreGather::Keys StoreGather::put(const std::string& key, const std::string& text) {
  Keys keys = {key};
  for (std::size_t begin = kPart; begin < text.size(); begin += kPart) {
    keys.push_back(part_key(key, static_cast<i64>(keys.size())));
    store_.set(keys.back(), text.substr(begin, kPart));
  }
  store_.set(key, fmt::format("{}\n{}", keys.size() - 1, text.substr(0, kPart)));
  return keys;
}

/// The whole text of a value, and its keys.
std::string StoreGather::rest_of(const std::string& key, const std::string& head, Keys& keys) {
  std::string text = head;
  const i64 num_parts = take_number(text, '\n');
  keys = {key};
  for (i64 part = 1; part <= num_parts; ++part) {
    keys.push_back(part_key(key, part));
    text += store_.get({keys.back()})[0];
  }
  return text;
}

/// Sizes of all texts, and the texts.
std::string StoreGather::join_texts() {
  Keys keys;
  for (i32 r = 0; r < num_ranks_; ++r) keys.push_back(text_key(r));
  const std::vector<std::string> heads = store_.get(keys);
  std::vector<std::size_t> sizes;
  std::string all;
  for (std::size_t r = 0; r < heads.size(); ++r) {
    Keys parts;
    std::string text = rest_of(keys[r], heads[r], parts);
    const i64 number = take_number(text, '\n');
    HM_CHECK(number == number_, "rank {} is in gather {}, expected {}", r, number, number_);
    sizes.push_back(text.size());
    all += text;
  }
  return fmt::format("{}\n", fmt::join(sizes, " ")) + all;
}

std::string StoreGather::await_joined(const std::string& key, Seconds limit, const Left& left) {
  const auto begin = std::chrono::steady_clock::now();
  while (true) {
    // Who has left had come before: so first who has left, then whether all have come.
    const std::vector<bool> gone = left();
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    const Seconds patience = std::clamp(limit - waited.count(), 0.001, kPatience);
    if (std::optional<std::string> head = store_.await(key, patience)) return *std::move(head);
    const bool is_late = waited.count() + patience >= limit;
    if (is_late || std::find(gone.begin(), gone.end(), true) != gone.end()) fail_missing(gone, limit);
  }
}

void StoreGather::fail_missing(const std::vector<bool>& left, Seconds limit) {
  std::vector<std::size_t> missing, gone;
  for (std::size_t r = 0; r < idx(num_ranks_); ++r) {
    const std::string key = text_key(static_cast<i64>(r));
    bool has_come = false;
    if (store_.has({key})) {
      std::string value = store_.get({key})[0];
      take_number(value, '\n');
      has_come = take_number(value, '\n') >= number_;
    }
    if (!has_come) (left[r] ? gone : missing).push_back(r);
  }
  if (!gone.empty()) {
    fail<TransportError>(fmt::format("rank {}", fmt::join(gone, ", ")),
                         "ended while rank {} waits for it in a gather", rank_);
  }
  if (missing.empty()) {
    fail<TransportError>("gather", "all ranks came, but nobody joined their texts within {:.3g} s", limit);
  }
  fail<TransportError>(fmt::format("rank {}", fmt::join(missing, ", ")),
                       "did not come within {:.3g} s: rank {} waits. Was it started?", limit, rank_);
}

}  // namespace hetermoe
