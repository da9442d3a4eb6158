#include "hetermoe/data/condition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace hetermoe {
namespace {

Batch text() {
  Batch batch{.num_sequences = 2, .seq_len = 64, .tokens = {}, .targets = {}, .starts = {}};
  for (i64 t = 0; t < 128; ++t) {
    batch.tokens.push_back(t % 7);
    batch.targets.push_back((t + 1) % 7);
  }
  batch.target_count = 128;
  return batch;
}

Batch under(TextCondition condition, i64 first = 0) {
  Batch batch = text();
  apply_condition(condition, 256, 1, first, batch);
  return batch;
}

// Claim (Condition.*): the six conditions change tokens as they say, by draws that batches and machines do
// not change
TEST(Condition, TextStaysAsItIs) {
  EXPECT_EQ(under(TextCondition::kText).tokens, text().tokens);
  EXPECT_EQ(under(TextCondition::kHeldout).targets, text().targets);
}

TEST(Condition, ShuffledHasTheSameTokensOfEachSequenceInAnotherOrder) {
  Batch batch = under(TextCondition::kShuffled);
  EXPECT_NE(batch.tokens, text().tokens);
  Batch plain = text();
  for (Batch* one : {&batch, &plain}) {
    std::sort(one->tokens.begin(), one->tokens.begin() + 64);
    std::sort(one->tokens.begin() + 64, one->tokens.end());
  }
  EXPECT_EQ(batch.tokens, plain.tokens);
}

TEST(Condition, UnigramDrawsFromTheTextMockFromTheVocabularyConstantOneToken) {
  const auto kinds = [](const Batch& batch) {
    return std::set<i64>(batch.tokens.begin(), batch.tokens.end());
  };
  EXPECT_EQ(kinds(under(TextCondition::kUnigram)).size(), 7u);
  EXPECT_LT(*kinds(under(TextCondition::kUnigram)).rbegin(), 7);
  EXPECT_GT(kinds(under(TextCondition::kMock)).size(), 80u);
  EXPECT_LT(*kinds(under(TextCondition::kMock)).rbegin(), 256);
  EXPECT_EQ(kinds(under(TextCondition::kConstant)).size(), 1u);
}

TEST(Condition, TargetsAreTheNextTokensAndDrawsDependOnTheSequence) {
  const Batch batch = under(TextCondition::kMock);
  for (std::size_t t = 0; t + 1 < 64; ++t) ASSERT_EQ(batch.targets[t], batch.tokens[t + 1]);
  EXPECT_EQ(batch.targets[63], -100);
  EXPECT_EQ(batch.target_count, 126);
  EXPECT_EQ(under(TextCondition::kMock).tokens, batch.tokens);
  const Batch later = under(TextCondition::kMock, 1);
  EXPECT_TRUE(std::equal(batch.tokens.begin() + 64, batch.tokens.end(), later.tokens.begin()));
}

}  // namespace
}  // namespace hetermoe
