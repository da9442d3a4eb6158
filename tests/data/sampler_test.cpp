#include "hetermoe/data/sampler.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

Dataset counting(i64 size) {
  std::vector<std::uint8_t> out;
  for (i64 i = 0; i < size; ++i) out.push_back(static_cast<std::uint8_t>(i % 251));
  return byte_dataset(out, {});
}

Sampler sampler_of(i64 size, i64 seq_len, u64 seed) { return {counting(size), {seq_len, seed}}; }

TEST(Sampler, EveryWindowExactlyOncePerEpoch) {
  for (const i64 size : {3, 4, 5, 18, 33, 100, 1000, 65540}) {
    const Sampler sampler = sampler_of(size, 2, 7);
    ASSERT_EQ(sampler.num_windows(), (size - 1) / 2);
    for (i64 epoch = 0; epoch < 3; ++epoch) {
      std::set<i64> seen;
      for (i64 i = 0; i < sampler.num_windows(); ++i) {
        const Sampler::Drawn drawn = sampler.draw(epoch * sampler.num_windows() + i);
        EXPECT_EQ(drawn.pass, epoch);
        seen.insert(drawn.window);
      }
      EXPECT_EQ(static_cast<i64>(seen.size()), sampler.num_windows());
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), sampler.num_windows() - 1);
    }
  }
}

TEST(Sampler, OrderFollowsFromSeedAndEpoch) {
  const WindowOrder one(1000, 1), same(1000, 1), other(1000, 2);
  i64 equal_to_other = 0, equal_to_next_epoch = 0, in_file_order = 0;
  for (i64 i = 0; i < 1000; ++i) {
    EXPECT_EQ(one.window_of(i), same.window_of(i));
    equal_to_other += one.window_of(i) == other.window_of(i);
    equal_to_next_epoch += one.window_of(i) == one.window_of(1000 + i);
    in_file_order += one.window_of(i) == i;
  }
  // Two random permutations agree in one place on average.
  EXPECT_LT(equal_to_other, 8);
  EXPECT_LT(equal_to_next_epoch, 8);
  EXPECT_LT(in_file_order, 8);
}

// Written down so that no change of compiler, library or code moves the data of a resumed run.
TEST(Sampler, OrderIsFixedForever) {
  const Sampler sampler = sampler_of(21, 2, 1);
  std::vector<i64> windows;
  for (i64 i = 0; i < 20; ++i) windows.push_back(sampler.draw(i).window);
  EXPECT_EQ(windows, (std::vector<i64>{5, 1, 6, 8, 4, 0, 3, 9, 7, 2, 1, 5, 2, 3, 4, 6, 8, 0, 9, 7}));
}

TEST(Sampler, SameSequencesForAnySplitOfASteps) {
  const Sampler sampler = sampler_of(500, 7, 3);
  const Batch whole = sampler.batch(5, 90, 256);  // across an epoch's end
  std::vector<i64> tokens, targets;
  i64 first = 5;
  for (const i64 count : {1, 0, 30, 7, 52}) {
    const Batch part = sampler.batch(first, count, 256);
    tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
    targets.insert(targets.end(), part.targets.begin(), part.targets.end());
    EXPECT_EQ(part.target_count, count * 7);
    first += count;
  }
  EXPECT_EQ(first, 95);
  EXPECT_EQ(tokens, whole.tokens);
  EXPECT_EQ(targets, whole.targets);
}

TEST(Sampler, TargetIsTheNextToken) {
  const Sampler sampler = sampler_of(200, 9, 3);
  const Batch batch = sampler.batch(0, sampler.num_windows(), 256);
  ASSERT_EQ(batch.tokens.size(), 22U * 9);
  EXPECT_TRUE(batch.starts.empty());
  std::set<i64> seen;
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);  // the counting does not wrap below 251
    seen.insert(batch.targets[i]);
  }
  EXPECT_EQ(*seen.rbegin(), 22 * 9);
}

TEST(Sampler, TooFewTokensIsAnError) {
  EXPECT_EQ(sampler_of(9, 8, 1).num_windows(), 1);
  EXPECT_THROW(sampler_of(8, 8, 1), ConfigError);
}

TEST(Sampler, ATokenThatTheModelLacksIsNamed) {
  EXPECT_EQ(error_of<InputError>([] { sampler_of(9, 8, 1).batch(0, 1, 6); }),
            "[data.paths] token 6 is 6, expected 0 to 5: the model's vocabulary");
}

/// Sources of one token each, `size` times.
Dataset mixed(const std::vector<std::pair<double, i64>>& share_and_size) {
  Dataset out;
  for (const auto& [share, size] : share_and_size) {
    const auto token = static_cast<std::uint8_t>(out.sources.size());
    Dataset one = byte_dataset(std::vector<std::uint8_t>(static_cast<std::size_t>(size), token), {});
    one.sources[0].share = share;
    one.sources[0].name = std::string(1, static_cast<char>('a' + token));
    out.sources.push_back(one.sources[0]);
  }
  return out;
}

TEST(SourcesWithWeights, ComeAsOftenAsTheirSharesSayInEveryStretch) {
  const Sampler sampler(mixed({{0.5, 1001}, {0.3, 21}, {0.2, 401}}), {2, 5});
  EXPECT_EQ(sampler.num_windows(), 500 + 10 + 200);
  std::map<i64, i64> counts;
  for (i64 i = 0; i < 4096; ++i) ++counts[sampler.draw(4096 * 7 + i).source];
  EXPECT_EQ(counts, (std::map<i64, i64>{{0, 2048}, {1, 1229}, {2, 819}}));
  counts.clear();
  for (i64 i = 0; i < 400; ++i) ++counts[sampler.draw(i).source];
  EXPECT_NEAR(static_cast<double>(counts[0]), 200, 40);  // four standard deviations
}

TEST(SourcesWithWeights, EachIsReadThroughBeforeItRepeats) {
  const Sampler sampler(mixed({{0.5, 1001}, {0.5, 2001}}), {2, 5});
  std::map<std::pair<i64, i64>, std::multiset<i64>> windows;  // by source and pass
  for (i64 i = 0; i < 4096; ++i) {
    const Sampler::Drawn drawn = sampler.draw(i);
    windows[{drawn.source, drawn.pass}].insert(drawn.window);
  }
  for (const auto& [key, seen] : windows)
    EXPECT_EQ(std::set<i64>(seen.begin(), seen.end()).size(), seen.size()) << key.first << " " << key.second;
  EXPECT_EQ((windows[{0, 0}].size()), 500U);
  EXPECT_EQ((windows[{0, 3}].size()), 500U);
  EXPECT_EQ((windows[{1, 1}].size()), 1000U);
}

TEST(SourcesWithWeights, TokensAreThoseOfTheSource) {
  const Sampler sampler(mixed({{0.25, 101}, {0.75, 51}}), {2, 5});
  const Batch batch = sampler.batch(100, 50, 256);
  for (i64 i = 0; i < 50; ++i)
    EXPECT_EQ(batch.tokens[static_cast<std::size_t>(2 * i)], sampler.draw(100 + i).source);
}

TEST(SourcesWithWeights, AShareThatWouldNeverComeIsRefused) {
  EXPECT_EQ(error_of<ConfigError>([] {
              Sampler(mixed({{0.99999, 9}, {0.00001, 9}}), {2, 1});
            }),
            "[data.weights] b has a share of 1e-05, expected at least 0.00012");
}

TEST(MaskedDocuments, StartsAreMarkedAndLastTokensHaveNoTarget) {
  Dataset data;
  data.masked = true;
  Source source;
  TokenBuilder tokens(TokenType::kU8);
  for (i64 i = 0; i < 9; ++i) tokens.add(i);
  const std::vector<i64> starts = {0, 3, 4, 8};
  source.all.append(tokens.finish(), starts);
  source.train = source.all;
  data.sources.push_back(source);
  const Sampler sampler(data, {4, 1});
  ASSERT_EQ(sampler.num_windows(), 2);
  const Batch batch = sampler.batch(0, 2, 256);
  const std::size_t at = sampler.draw(0).window == 0 ? 0 : 4;  // of the first window
  const auto four = [&](const std::vector<i64>& all, std::size_t from) {
    return std::vector<i64>(all.begin() + static_cast<i64>(from), all.begin() + static_cast<i64>(from) + 4);
  };
  EXPECT_EQ(four(batch.starts, at), (std::vector<i64>{1, 0, 0, 1}));
  EXPECT_EQ(four(batch.targets, at), (std::vector<i64>{1, 2, -100, -100}));
  EXPECT_EQ(four(batch.starts, 4 - at), (std::vector<i64>{1, 0, 0, 0}));
  EXPECT_EQ(four(batch.targets, 4 - at), (std::vector<i64>{5, 6, 7, -100}));
  EXPECT_EQ(batch.target_count, 5);
}

}  // namespace
}  // namespace hetermoe
