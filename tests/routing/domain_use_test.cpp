#include "hetermoe/routing/domain_use.h"

#include <gtest/gtest.h>

namespace hetermoe {
namespace {

/// Two layers of three experts; domains 0, 1, 0 and a sequence without one.
TraceStep small_step(const TraceHeader& header) {
  TraceStep step;
  step.sequences = {
      {.tokens = 2, .domain = 0}, {.tokens = 2, .domain = 1}, {.tokens = 2, .domain = 0}, {.tokens = 2}};
  step.choices = {{0, 0, 1, 2, 0, 1, 2, 2}, {1, 1, 2, 2, 1, kNoExpert, 0, 0}};
  index_tokens(step);
  count_choices(step, header);
  return step;
}

TraceHeader small_header() {
  TraceHeader header;
  header.layers = {1, 3};
  header.num_experts = 3;
  header.top_k = 1;
  header.domains = {"code", "prose", "none yet"};
  return header;
}

// Claim (DomainUse.*, DomainRouting.*): what a domain chose: counts, means, and the exchange of a source
// whose sequences are of several domains
TEST(DomainUse, CountsWhatTheSequencesOfADomainChose) {
  const TraceHeader header = small_header();
  const DomainUse use = domain_use(header, small_step(header));
  EXPECT_EQ(use.copies, (Activations{{3, 1, 0, 0, 3, 0}, {0, 1, 1, 0, 0, 2}, {0, 0, 0, 0, 0, 0}}));
  EXPECT_EQ(use.sequences, (std::vector<double>{2, 1, 0}));
}

TEST(DomainUse, RowsAreMeansOfADomainWhereAllDomainsHadSequences) {
  const TraceHeader header = small_header();
  const DomainUse use = domain_use(header, small_step(header));
  EXPECT_EQ(expected_rows(use, {1, 0}), (Activations{{0, 1, 1, 0, 0, 2}, {1.5, 0.5, 0, 0, 1.5, 0}}));
  EXPECT_TRUE(expected_rows(use, {1, 2}).empty());
  EXPECT_TRUE(expected_rows(use, {1, -1}).empty());
  EXPECT_TRUE(expected_rows({}, {0}).empty());
}

TEST(DomainUse, AMeanMovesToTheNewestAndADomainWithoutSequencesKeepsItsRow) {
  DomainUse mean;
  move_mean(mean, {{{4, 0}, {2, 2}}, {2, 2}}, 0.25);
  EXPECT_EQ(mean, (DomainUse{{{4, 0}, {2, 2}}, {2, 2}}));
  move_mean(mean, {{{0, 8}, {0, 0}}, {2, 0}}, 0.25);
  EXPECT_EQ(mean, (DomainUse{{{3, 2}, {1.5, 1.5}}, {2, 1.5}}));
  // Copies and sequences fade alike, so what a sequence of the domain has in the mean stays.
  EXPECT_EQ(expected_rows(mean, {1}), (Activations{{1, 1}}));
}

}  // namespace
}  // namespace hetermoe
