#include <gtest/gtest.h>

#include "tests/equivalence/ran_step.h"
#include "tests/support/case_count.h"
#include "tests/support/guest_plan.h"

// Experts that are lent for single exchanges: loss and all gradients are the reference's.
namespace hetermoe::testing {
namespace {

// Claim (Guests.*, Mutation.*Guests*, NthCall.EveryFaultOfEveryLendAndSettle*): experts that are lent: the
// reference's loss and gradients for random plans with replicas, groups, chunks and three device types, by
// told and by foreseen counts; wrong weights and lost gradients are found; every fault of every `lend` and
// `settle` ends with one error or the same result
TEST(Guests, RandomPlansEqualTheReference) {
  i64 runs = 0, guests = 0, with_guests = 0, groups = 0, replicas = 0, weights_after = 0;
  for (u64 seed = 1; runs < case_count(30, 80); ++seed) {
    RandomCase c = random_case(seed);
    if (!use_guests(c.plan, c.model, 1 + static_cast<i64>(seed % 3), 1 + static_cast<i64>(seed % 2)) ||
        !validate(c.plan, c.model, c.cluster).empty())
      continue;
    use_fp64(c.plan);
    const Ran got = run_step(c.model, c.cluster, c.plan, c.step);
    EXPECT_LE(got.difference.max(), kTolerance) << describe(c) << " " << got.difference.worst;
    ++runs;
    guests += got.guests;
    if (got.guests == 0) continue;
    ++with_guests;
    groups += c.plan.groups.size() > 1 ? 1 : 0;
    weights_after += c.plan.weight_gradients == WeightGradients::kAfter ? 1 : 0;
    for (const State& state : build_schedule(c.plan, c.model, c.step).states)
      replicas += state.part == State::Part::kExperts && state.devices.size() > 1 ? 1 : 0;
  }
  std::printf("%ld of %ld plans have guests, %ld in all\n", static_cast<long>(with_guests),
              static_cast<long>(runs), static_cast<long>(guests));
  EXPECT_GT(with_guests, case_count(5, 15));
  EXPECT_GT(groups, case_count(0, 2));
  EXPECT_GT(replicas, case_count(1, 5));
  EXPECT_GT(weights_after, case_count(0, 2));
}

/// Without tally: who lends what follows from the replayed choices, and no device tells another.
TEST(Guests, ForeseenByReplayedChoicesEqualTheReference) {
  i64 runs = 0, guests = 0, with_guests = 0;
  for (u64 seed = 1; runs < case_count(20, 60); ++seed) {
    RandomCase c = random_case(seed);
    if (!use_guests(c.plan, c.model)) continue;
    const std::vector<at::Tensor> choices = random_choices(c.plan, c.model, seed);
    if (!validate(c.plan, c.model, c.cluster).empty()) continue;
    use_fp64(c.plan);
    const Ran told = run_step(c.model, c.cluster, c.plan, c.step, choices);
    c.plan.tally = false;
    for (const Op& op : build_schedule(c.plan, c.model, c.step).ops) EXPECT_NE(op.kind, OpKind::kTally);
    const Ran got = run_step(c.model, c.cluster, c.plan, c.step, choices);
    EXPECT_LE(got.difference.max(), kTolerance) << describe(c) << " " << got.difference.worst;
    EXPECT_EQ(got.guests, told.guests);
    EXPECT_EQ(got.result.loss, told.result.loss);
    ++runs;
    guests += got.guests;
    with_guests += got.guests > 0 ? 1 : 0;
  }
  std::printf("%ld of %ld plans have guests, %ld in all\n", static_cast<long>(with_guests),
              static_cast<long>(runs), static_cast<long>(guests));
  EXPECT_GT(with_guests, case_count(4, 15));
}

}  // namespace
}  // namespace hetermoe::testing
