#include "hetermoe/routing/clusters.h"

#include <gtest/gtest.h>

#include "hetermoe/routing/crossing.h"
#include "hetermoe/routing/synthetic.h"
#include "hetermoe/routing/told.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

const Activations kRows = {{8, 1, 0, 1}, {0, 1, 9, 0}, {16, 2, 1, 1},
                           {1, 0, 4, 1}, {5, 1, 1, 0}, {0, 2, 20, 3}};

// Claim (Clusters.*): clusters of sequences: golden labels, domains told from activations (nearest mean,
// logistic regression) and not from shuffled labels, prefixes
TEST(Clusters, KMeansGivesTheLabelsOfAnIndependentScript) {
  EXPECT_EQ(k_means(kRows, 2).of_sequence, (std::vector<i32>{1, 0, 1, 0, 1, 0}));
  EXPECT_EQ(k_means(kRows, 1).of_sequence, std::vector<i32>(6, 0));
}

TEST(Clusters, SequencesWithoutCopiesAreOfTheFirstCluster) {
  Activations rows = kRows;
  rows.push_back({0, 0, 0, 0});
  EXPECT_EQ(k_means(rows, 2).of_sequence.back(), 0);
}

TEST(Clusters, BigClustersGetSeveralGroupsAndManyClustersShareThem) {
  Clusters two = labelled(kRows, {1, 0, 1, 0, 1, 0}, 2);
  EXPECT_EQ(groups_of_clusters(kRows, two, 2), (std::vector<std::vector<i32>>{{0}, {1}}));
  EXPECT_EQ(groups_of_clusters(kRows, two, 3), (std::vector<std::vector<i32>>{{0, 2}, {1}}));
  const auto usage = usage_of(kRows, two, {{0, 2}, {1}}, 3);
  EXPECT_EQ(usage[0], (std::vector<double>{0.5, 1.5, 16.5, 2}));
  EXPECT_EQ(usage[1], (std::vector<double>{29, 4, 2, 2}));
  EXPECT_EQ(usage[2], usage[0]);
  const Clusters three = labelled(kRows, {1, 0, 1, 0, 2, 0}, 3);
  const auto shared = groups_of_clusters(kRows, three, 2);
  EXPECT_EQ(shared[1], shared[2]);
  EXPECT_NE(shared[0], shared[1]);
}

TEST(Clusters, CorrelationIsPearsons) {
  EXPECT_DOUBLE_EQ(correlation({1, 2, 3}, {2, 4, 6}), 1);
  EXPECT_DOUBLE_EQ(correlation({1, 2, 3}, {3, 2, 1}), -1);
  EXPECT_EQ(correlation({1, 1, 1}, {3, 2, 1}), 0);
}

struct Made {
  TraceHeader header;
  TraceStep step;
  Made(double domain_spread, u64 seed = 1) {
    header.layers = {0, 1, 2};
    header.num_experts = 64;
    header.top_k = 4;
    SyntheticOptions options;
    options.seq_len = 512;
    options.sequences = 140;
    options.spread = 0.6;
    options.domains = 7;
    options.domain_spread = domain_spread;
    options.seed = seed;
    const SyntheticTrace trace(header, options);
    header = trace.header();
    step = trace.step(0);
  }
  std::vector<i32> domains() const {
    std::vector<i32> out;
    for (const TraceSequence& s : step.sequences) out.push_back(static_cast<i32>(s.domain));
    return out;
  }
};

TEST(Clusters, DomainsAreToldFromActivationsAndShuffledOnesAreNot) {
  const Made made(0.4);
  const Activations rows = activations(made.header, made.step, -1, 0, "made");
  for (const Teller teller : {told_by_mean, told_by_regression}) {
    const Told told = tell_labels(rows, 64, made.domains(), 7, teller);
    ASSERT_EQ(told.of_layer.size(), 3u);
    for (const double right : told.of_layer) EXPECT_GE(right, 0.94);
    EXPECT_GE(told.vote, 0.94);
    EXPECT_GE(told.tested, 20);
    const Told by_chance = tell_labels(rows, 64, shuffled(made.domains(), 1), 7, teller);
    EXPECT_LT(by_chance.vote, 0.45);
  }
  EXPECT_EQ(k_means(rows, 7).num_clusters(), 7);
}

/// How often the first expert is used says nothing; which of the two others is used more, all.
TEST(Clusters, RegressionTellsWhatWeighsLittle) {
  Activations rows, asked;
  std::vector<i32> labels;
  for (i32 i = 0; i < 40; ++i) {
    const double more = i % 2 == 0 ? 1.5 : -1.5, noise = 40.0 * (i / 2 % 2 == 0 ? 1 : -1) + i % 5;
    rows.push_back({100 + noise, 20 + more, 20 - more});
    asked.push_back({90 - noise, 20 + more, 20 - more});
    labels.push_back(i % 2);
  }
  const auto right = [&](Teller teller) {
    const std::vector<i32> told = teller(rows, labels, 2, asked);
    i64 same = 0;
    for (std::size_t i = 0; i < told.size(); ++i) same += told[i] == labels[i] ? 1 : 0;
    return same;
  };
  EXPECT_EQ(right(told_by_regression), 40);
}

TEST(Clusters, APrefixTellsTheClusterOfTheRest) {
  const Made made(0.8);
  const Activations all = activations(made.header, made.step, -1, 0, "made"),
                    prefix = activations(made.header, made.step, -1, 64, "made"),
                    rest = without_prefix(all, prefix);
  const Clusters clusters = k_means(all, 7);
  const std::vector<i32> guessed = nearest(prefix, clusters.centres);
  double right = 0, related = 0;
  for (std::size_t s = 0; s < all.size(); ++s) {
    right += guessed[s] == clusters.of_sequence[s] ? 1 : 0;
    related += correlation(prefix[s], rest[s]);
  }
  EXPECT_GT(right / static_cast<double>(all.size()), 0.95);
  EXPECT_GT(related / static_cast<double>(all.size()), 0.8);
  EXPECT_TRUE(error_of<InputError>([&] {
                activations(made.header, made.step, -1, 513, "made");
              }).find("expected at least the prefix of 513") != std::string::npos);
  TraceStep counts = made.step;
  for (auto& choices : counts.choices) choices.clear();
  EXPECT_TRUE(error_of<InputError>([&] {
                activations(made.header, counts, -1, 64, "made");
              }).find("routing.detail: choices") != std::string::npos);
}

TEST(Clusters, CopiesAndRowsThatChangeGroupsAreCounted) {
  TraceHeader header;
  header.layers = {0};
  header.num_experts = 4;
  header.top_k = 2;
  TraceStep step;
  step.sequences = {{.index = 0, .tokens = 2, .prompt = 2}, {.index = 1, .tokens = 1, .prompt = 1}};
  index_tokens(step);
  step.choices = {{2, 3, 0, 2, 3, kNoExpert}};
  count_choices(step, header);
  const std::vector<i32> groups = {0, 1};
  Crossing crossed(2);
  add_crossing(crossed, header, step, 0, groups, {0, 0, 1, 1});
  EXPECT_EQ(crossed.copies, 3);
  EXPECT_EQ(crossed.rows, 2);
  EXPECT_EQ(crossed.most(), 3);
  add_crossing(crossed, header, step, 0, groups, {0, 0, 1, 1});  // the same again adds up
  EXPECT_EQ(crossed.copies, 6);
  EXPECT_EQ(crossed.rows, 4);
  EXPECT_EQ(crossed.most(), 6);
}

}  // namespace
}  // namespace hetermoe
