#include "hetermoe/data/condition.h"

#include <algorithm>

#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<TextCondition>::names() {
  static const std::vector<std::string> all = {"text", "heldout", "shuffled", "unigram", "mock", "constant"};
  return all;
}

namespace {

u64 drawn(u64 seed, i64 sequence, i64 token) {
  return splitmix64(splitmix64(splitmix64(seed) ^ static_cast<u64>(sequence)) ^ static_cast<u64>(token));
}

void shuffle(std::vector<i64>& tokens, std::size_t begin, i64 length, u64 seed, i64 sequence) {
  for (i64 t = length - 1; t > 0; --t) {
    const auto other = static_cast<i64>(drawn(seed, sequence, t) % static_cast<u64>(t + 1));
    std::swap(tokens[begin + idx(t)], tokens[begin + idx(other)]);
  }
}

}  // namespace

void apply_condition(TextCondition condition, i64 vocab, u64 seed, i64 first, Batch& batch) {
  if (condition == TextCondition::kText || condition == TextCondition::kHeldout) return;
  const std::vector<i64> text = batch.tokens;
  for (i64 s = 0; s < batch.num_sequences; ++s) {
    const std::size_t begin = idx(s * batch.seq_len);
    if (condition == TextCondition::kShuffled) shuffle(batch.tokens, begin, batch.seq_len, seed, first + s);
    for (i64 t = 0; t < batch.seq_len; ++t) {
      i64& token = batch.tokens[begin + idx(t)];
      const u64 random = drawn(seed, first + s, t);
      if (condition == TextCondition::kUnigram)
        token = text[static_cast<std::size_t>(random % text.size())];
      else if (condition == TextCondition::kMock)
        token = static_cast<i64>(random % static_cast<u64>(vocab));
      else if (condition == TextCondition::kConstant)
        token = text[0];
    }
    // The last token's successor is not known.
    for (i64 t = 0; t < batch.seq_len; ++t)
      batch.targets[begin + idx(t)] = t + 1 < batch.seq_len ? batch.tokens[begin + idx(t + 1)] : -100;
  }
  batch.target_count =
      std::count_if(batch.targets.begin(), batch.targets.end(), [](i64 t) { return t >= 0; });
}

}  // namespace hetermoe
