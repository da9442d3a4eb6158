#include "hetermoe/routing/synthetic.h"

#include <gtest/gtest.h>

#include "hetermoe/routing/metrics.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

TraceHeader header_of(i64 num_layers, i64 num_experts, i64 top_k) {
  TraceHeader header;
  for (i64 l = 0; l < num_layers; ++l) header.layers.push_back(l);
  header.num_experts = num_experts;
  header.top_k = top_k;
  return header;
}

std::vector<double> counts_of(const TraceStep& step, std::size_t layer, i64 num_experts) {
  std::vector<double> out(static_cast<std::size_t>(num_experts), 0);
  for (std::size_t i = 0; i < step.counts[layer].size(); ++i) out[i % out.size()] += step.counts[layer][i];
  return out;
}

/// Means over seeds of the per-rank ratios at 4, 8, 16 and 32 ranks, and of one rank per expert.
std::vector<double> rank_ratios(double gini, i64 num_seeds) {
  std::vector<FigureRange> ranges(5);
  const std::vector<i64> degrees = {4, 8, 16, 32, 64};
  for (i64 seed = 1; seed <= num_seeds; ++seed) {
    SyntheticOptions options{.seq_len = 1024, .sequences = 8, .seed = static_cast<u64>(seed)};
    const TraceHeader header = header_of(1, 64, 6);
    options.spread = SyntheticTrace(header, options).spread_for(gini);
    const SyntheticTrace trace(header, options);
    EXPECT_NEAR(trace.gini() / gini, 1, 0.01);
    const std::vector<double> counts = counts_of(trace.step(0), 0, 64);
    for (std::size_t i = 0; i < degrees.size(); ++i)
      ranges[i].add(straggler_ratio(rank_copies(counts, degrees[i])));
  }
  std::vector<double> out;
  for (const FigureRange& range : ranges) out.push_back(range.mean);
  return out;
}

TEST(SyntheticTrace, ReachesThePublishedFiguresOfAResilientRouter) {
  const std::vector<double> got = rank_ratios(0.105, 40), expected = {1.05, 1.10, 1.18, 1.31, 1.54};
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i] / expected[i], 1, 0.05) << i << ": " << got[i];
}

TEST(SyntheticTrace, ReachesThePublishedFiguresOfAConcentratedRouter) {
  const std::vector<double> got = rank_ratios(0.24, 40), expected = {1.12, 1.25, 1.46, 1.84, 2.54};
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i] / expected[i], 1, 0.06) << i << ": " << got[i];
}

TEST(SyntheticTrace, TokensHaveKDifferentExperts) {
  const SyntheticTrace trace(header_of(2, 9, 4), {.seq_len = 20, .sequences = 3, .spread = 3, .drift = 1});
  const TraceStep step = trace.step(0);
  for (const auto& ids : step.choices) {
    ASSERT_EQ(ids.size(), 240u);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_LT(ids[i], 9);
      for (std::size_t j = i / 4 * 4; j < i; ++j) EXPECT_NE(ids[i], ids[j]);
    }
  }
}

TEST(SyntheticTrace, IsTheSameEveryTimeAndAnotherForAnotherSeed) {
  const SyntheticOptions options{
      .seq_len = 16, .sequences = 4, .microbatches = 2, .spread = 0.5, .domains = 2};
  SyntheticOptions other = options;
  other.seed = 2;
  const SyntheticTrace a(header_of(2, 8, 2), options), b(header_of(2, 8, 2), options),
      c(header_of(2, 8, 2), other);
  EXPECT_EQ(a.step(3).choices, b.step(3).choices);
  EXPECT_NE(a.step(3).choices, a.step(4).choices);
  EXPECT_NE(a.step(3).choices, c.step(3).choices);
}

TEST(SyntheticTrace, DriftChangesTheBusyExpertsBetweenMicrobatches) {
  const auto drift_of = [](double sigma) {
    const SyntheticTrace trace(
        header_of(1, 64, 6),
        {.seq_len = 2048, .sequences = 2, .microbatches = 2, .spread = 0.5, .drift = sigma});
    const TraceStep step = trace.step(0);
    const std::vector<double> all(step.counts[0].begin(), step.counts[0].end());
    return *drift(std::span(all).subspan(0, 64), std::span(all).subspan(64, 64));
  };
  EXPECT_LE(drift_of(0), 0.25);
  EXPECT_GE(drift_of(1), 0.5);
}

TEST(SyntheticTrace, DomainsPreferTheirOwnExperts) {
  const SyntheticTrace trace(header_of(1, 16, 2),
                             {.seq_len = 4096, .sequences = 8, .domains = 2, .domain_spread = 1});
  const TraceStep step = trace.step(0);
  std::vector<std::vector<double>> by_domain(2, std::vector<double>(16, 0));
  for (std::size_t i = 0; i < step.counts[0].size(); ++i)
    by_domain[step.sequences[i / 16].domain][i % 16] += step.counts[0][i];
  EXPECT_NE(busiest_experts(by_domain[0], 4), busiest_experts(by_domain[1], 4));
}

TEST(SyntheticTrace, AGiniCoefficientOutOfReachIsRefusedWithTheRange) {
  const SyntheticTrace trace(header_of(1, 8, 2), {.seq_len = 64, .sequences = 1});
  EXPECT_TRUE(error_of<InputError>([&] { trace.spread_for(0.9); }).find("got 0.9, expected 0.") !=
              std::string::npos);
  EXPECT_TRUE(error_of<InputError>([&] { trace.spread_for(0.0001); }).find("got 0.0001, expected 0.") !=
              std::string::npos);
}

}  // namespace
}  // namespace hetermoe
