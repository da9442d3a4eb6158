#include "hetermoe/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hetermoe/base/error.h"
#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// One pass of a Feistel network: a bijection of the numbers of 2 * half_bits bits, whatever splitmix64()
/// does.
u64 permute(u64 x, int half_bits, u64 key) {
  const u64 mask = (u64{1} << half_bits) - 1;
  u64 left = x >> half_bits, right = x & mask;
  for (u64 round = 0; round < 6; ++round) {
    const u64 next = left ^ (splitmix64(key ^ splitmix64(right * 8 + round)) & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

/// Of the windows of source i; that of the first is the run's own.
u64 seed_of(u64 seed, i64 source) { return source == 0 ? seed : splitmix64(seed + static_cast<u64>(source)); }

/// `total` divided by shares that sum to 1, by largest remainders.
std::vector<i64> divided(i64 total, const std::vector<double>& shares) {
  std::vector<i64> out;
  std::vector<std::pair<double, std::size_t>> rests;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double exact = shares[i] * real(total);
    out.push_back(static_cast<i64>(std::floor(exact)));
    rests.emplace_back(real(out.back()) - exact, i);
  }
  std::stable_sort(rests.begin(), rests.end());
  const i64 missing = total - std::accumulate(out.begin(), out.end(), i64{0});
  for (i64 i = 0; i < missing; ++i) ++out[rests[idx(i) % rests.size()].second];
  return out;
}

}  // namespace

WindowOrder::WindowOrder(i64 num_windows, u64 seed) : num_windows_(num_windows), half_bits_(1), seed_(seed) {
  while ((i64{1} << (2 * half_bits_)) < num_windows_) ++half_bits_;
}

i64 WindowOrder::window_of(i64 index) const {
  HM_CHECK(index >= 0, "sequence {}", index);
  const u64 epoch = static_cast<u64>(index / num_windows_);
  const u64 key = splitmix64(seed_ ^ splitmix64(epoch));
  u64 window = static_cast<u64>(index % num_windows_);
  do {  // walking along the cycle until the range is hit again keeps it a permutation
    window = permute(window, half_bits_, key);
  } while (window >= static_cast<u64>(num_windows_));
  return static_cast<i64>(window);
}

Sampler::Sampler(const Dataset& data, const SamplerOptions& options)
    : seq_len_(options.seq_len), seed_(options.seed), masked_(data.masked) {
  for (i64 s = 0; s < static_cast<i64>(data.sources.size()); ++s) {
    if (options.source >= 0 && s != options.source) continue;
    const Source& source = data.sources[idx(s)];
    const TokenStream& tokens = options.validation ? source.validation : source.train;
    const i64 num_windows = (tokens.size() - 1) / seq_len_;
    if (num_windows < 1) {
      fail<ConfigError>("data", "too little text: got {} tokens, expected at least {}", tokens.size(),
                        seq_len_ + 1);
    }
    parts_.push_back({s, source.name, tokens, WindowOrder(num_windows, seed_of(seed_, s))});
  }
  if (parts_.size() > 1) divide_block(data);
}

void Sampler::divide_block(const Dataset& data) {
  std::vector<double> shares;
  for (const Part& part : parts_) shares.push_back(data.sources[idx(part.source)].share);
  const std::vector<i64> counts = divided(kBlock, shares);
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    if (counts[p] == 0) {
      fail<ConfigError>("data.weights", "{} has a share of {:.2g}, expected at least {:.2g}", parts_[p].name,
                        shares[p], 0.5 / real(kBlock));
    }
    parts_[p].in_block = counts[p];
    for (i64 i = 0; i < counts[p]; ++i) {
      part_of_.push_back(static_cast<std::int32_t>(p));
      rank_of_.push_back(static_cast<std::int32_t>(i));
    }
  }
}

i64 Sampler::num_windows() const {
  i64 sum = 0;
  for (const Part& part : parts_) sum += part.order.num_windows();
  return sum;
}

Sampler::Drawn Sampler::draw(i64 index) const {
  HM_CHECK(index >= 0, "sequence {}", index);
  std::size_t p = 0;
  i64 of_part = index;
  if (parts_.size() > 1) {
    // Sources alternate in an order that is new in each block: 2^12 places.
    const i64 block = index / kBlock;
    const u64 key = splitmix64(seed_ ^ splitmix64(~static_cast<u64>(block)));
    const u64 place = permute(static_cast<u64>(index % kBlock), 6, key);
    p = idx(part_of_[place]);
    of_part = block * parts_[p].in_block + rank_of_[place];
  }
  const Part& part = parts_[p];
  return {static_cast<i64>(p), part.order.window_of(of_part), of_part / part.order.num_windows()};
}

/// The last token of a document has no target: the next one is of another.
void Sampler::mask_documents(const Part& part, i64 first, i64* targets, Batch& out) const {
  std::vector<i64> starts(idx(seq_len_ + 1));
  part.tokens.mark_starts(first, seq_len_ + 1, starts.data());
  out.starts.insert(out.starts.end(), starts.begin(), starts.end() - 1);
  for (i64 i = 0; i < seq_len_; ++i) {
    if (starts[idx(i + 1)] != 0) targets[i] = -100;
  }
}

Batch Sampler::batch(i64 first, i64 count, i64 vocab) const {
  Batch out{count, seq_len_, {}, {}, {}, 0};
  out.tokens.resize(idx(count * seq_len_));
  out.targets.resize(out.tokens.size());
  std::vector<i64> window(idx(seq_len_ + 1));
  for (i64 i = 0; i < count; ++i) {
    const Drawn drawn = draw(first + i);
    const Part& part = parts_[idx(drawn.source)];
    const i64 begin = drawn.window * seq_len_;
    part.tokens.copy(begin, seq_len_ + 1, window.data());
    const auto wrong =
        std::find_if(window.begin(), window.end(), [&](i64 token) { return token < 0 || token >= vocab; });
    if (wrong != window.end()) {
      fail<InputError>("data.paths", "token {}{} is {}, expected 0 to {}: the model's vocabulary",
                       begin + (wrong - window.begin()), part.name.empty() ? "" : " of " + part.name, *wrong,
                       vocab - 1);
    }
    std::copy(window.begin(), window.end() - 1, out.tokens.begin() + i * seq_len_);
    i64* targets = out.targets.data() + i * seq_len_;
    std::copy(window.begin() + 1, window.end(), targets);
    part.tokens.mark_counted(begin + 1, seq_len_, window.data());
    for (i64 t = 0; t < seq_len_; ++t) {
      if (window[idx(t)] == 0) targets[t] = -100;
    }
    if (masked_) mask_documents(part, begin, targets, out);
  }
  out.target_count =
      static_cast<i64>(out.targets.size()) - std::count(out.targets.begin(), out.targets.end(), -100);
  return out;
}

}  // namespace hetermoe
