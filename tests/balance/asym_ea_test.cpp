#include "hetermoe/balance/asym_ea.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace hetermoe {
namespace {

AsymEaInput input(i64 layers, i64 experts, i64 attention, i64 expert_devices, i64 t_a, i64 t_x, i64 t_e) {
  return {layers, experts, attention, expert_devices, t_a, t_x, t_e, {}, {}};
}

struct Golden {
  AsymEaInput input;
  std::vector<i64> moved;
  Fraction squeeze;  // in units of the input times
};

// HeterMoE (arXiv 2504.03871): the worked example, and the shapes of its clusters with T_A 0.6, T_X 0.8 and
// T_E 1 (in tenths of a nanosecond here).
const Golden kGolden[] = {
    {input(3, 6, 1, 1, 3, 4, 4), {0, 1, 1}, {4, 3}},
    {input(8, 18, 6, 3, 6, 8, 10), {0, 2, 2, 2, 2, 2, 2, 0}, {14, 3}},
    {input(8, 24, 4, 8, 6, 8, 10), {0, 0, 1, 0, 1, 0, 1, 0}, {26, 3}},
    {input(8, 24, 2, 6, 6, 8, 10), {0, 0, 1, 0, 1, 0, 1, 0}, {17, 2}},
    {input(8, 40, 2, 8, 6, 8, 10), {0, 0, 1, 0, 1, 0, 1, 0}, {42, 5}},
    {input(8, 8, 4, 2, 6, 8, 10), {0, 2, 0, 2, 0, 2, 2, 0}, {7, 1}},
    {input(8, 24, 6, 6, 550, 712, 890), {0, 1, 1, 1, 1, 1, 0, 1}, {801, 2}},
};

TEST(GatherAndSqueeze, GoldenCases) {
  for (const Golden& golden : kGolden) {
    const AsymEaResult result = gather_and_squeeze(golden.input);
    EXPECT_EQ(result.infeasible, "");
    EXPECT_EQ(result.moved, golden.moved);
    EXPECT_EQ(result.squeeze_ns, golden.squeeze)
        << result.squeeze_ns.numerator << "/" << result.squeeze_ns.denominator;
  }
}

TEST(GatherAndSqueeze, NothingMovesWhenAttentionIsTheBottleneck) {
  EXPECT_EQ(gather_and_squeeze(input(4, 8, 2, 2, 10, 8, 10)).moved, std::vector<i64>(4, 0));
  EXPECT_EQ(gather_and_squeeze(input(4, 8, 2, 2, 11, 8, 10)).moved, std::vector<i64>(4, 0));
}

TEST(GatherAndSqueeze, AGapThatEqualsTheChunkExactlyMovesItInEveryLayer) {
  // Gap 9 per layer, one chunk evens out (10 + 8) / 2 = 9.
  EXPECT_EQ(gather_and_squeeze(input(5, 2, 1, 1, 1, 8, 10)).moved, std::vector<i64>(5, 1));
}

TEST(GatherAndSqueeze, ScarceMemoryOnExpertDevicesForcesAMove) {
  AsymEaInput in = input(4, 8, 2, 2, 20, 8, 10);  // attention bound: time alone would move nothing
  in.expert_capacity = 13;                        // of 16 experts per device
  EXPECT_EQ(gather_and_squeeze(in).moved, (std::vector<i64>{0, 1, 1, 1}));
}

TEST(GatherAndSqueeze, ScarceMemoryOnAttentionDevicesLimitsTheMove) {
  AsymEaInput in = input(4, 8, 2, 2, 0, 8, 10);
  EXPECT_EQ(gather_and_squeeze(in).moved, (std::vector<i64>{2, 2, 2, 2}));
  in.attention_capacity = 3;
  EXPECT_EQ(gather_and_squeeze(in).moved, (std::vector<i64>{0, 1, 1, 1}));
}

TEST(GatherAndSqueeze, NoRoomOnEitherSideIsReported) {
  AsymEaInput in = input(4, 8, 2, 2, 5, 8, 10);
  in.expert_capacity = 13;
  in.attention_capacity = 2;
  const AsymEaResult result = gather_and_squeeze(in);
  EXPECT_TRUE(result.moved.empty());
  EXPECT_EQ(result.infeasible,
            "6 of 32 experts do not fit on the expert devices, and the attention devices hold at most 4");
}

TEST(GatherAndSqueeze, UnevenShapesAreReported) {
  EXPECT_NE(gather_and_squeeze(input(4, 9, 2, 2, 5, 8, 10)).infeasible, "");
  EXPECT_NE(gather_and_squeeze(input(4, 12, 4, 3, 5, 8, 10)).infeasible, "");
}

TEST(GatherAndSqueeze, ALayerNeverGivesMoreThanItHasAndLaterLayersTakeTheRest) {
  AsymEaInput in = input(3, 4, 2, 2, 0, 0, 10);  // one chunk evens out 5, the gap is 10
  EXPECT_EQ(gather_and_squeeze(in).moved, (std::vector<i64>{2, 2, 2}));
}

/// The printed loop, in exact arithmetic and without bounds (units of 1 / n).
std::vector<i64> printed_loop(const AsymEaInput& in) {
  const i64 received = std::max<i64>(1, in.num_expert_devices / in.num_attention);
  const i64 given = received * in.num_attention / in.num_expert_devices;
  const i64 squeeze = in.num_expert_devices * (in.expert_ns * given + in.local_expert_ns * received);
  std::vector<i64> moved;
  i64 gathered = 0;
  for (i64 l = 0; l < in.num_layers; ++l) {
    gathered += in.num_experts * (in.expert_ns - in.attention_ns);
    const i64 chunks = gathered >= squeeze ? gathered / squeeze : 0;
    gathered -= chunks * squeeze;
    moved.push_back(chunks * given);
  }
  return moved;
}

TEST(GatherAndSqueeze, EqualsThePrintedLoopWhereNothingIsBound) {
  std::mt19937 random(7);
  const auto draw = [&](i64 low, i64 high) { return std::uniform_int_distribution<i64>(low, high)(random); };
  for (int i = 0; i < 5000; ++i) {
    const i64 attention = draw(1, 4), devices = attention * draw(1, 3), per_device = draw(2, 6);
    const i64 t_e = draw(2, 1000), t_x = draw(t_e, 2 * t_e), t_a = draw(0, t_e);
    const AsymEaInput in = input(draw(1, 12), devices * per_device, attention, devices, t_a, t_x, t_e);
    const std::vector<i64> printed = printed_loop(in);
    if (*std::max_element(printed.begin(), printed.end()) > per_device) continue;
    EXPECT_EQ(gather_and_squeeze(in).moved, printed) << "case " << i;
  }
}

}  // namespace
}  // namespace hetermoe
