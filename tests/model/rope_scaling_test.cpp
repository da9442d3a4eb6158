#include "hetermoe/model/rope_scaling.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hetermoe/model/model_config.h"

namespace hetermoe {
namespace {

RopeAngles scaled(const RopeScaling& scaling, i64 dim, i64 seq_len = 100) {
  return scaled_rope(scaling, dim, 1e4, seq_len, 100);
}

TEST(RopeScaling, PlainAnglesByHand) {
  const RopeAngles plain = plain_rope(4, 1e4);
  EXPECT_EQ(plain.frequencies, (std::vector<double>{1, 0.01}));
  EXPECT_EQ(plain.scale, 1);
  EXPECT_EQ(scaled({}, 4), plain);
}

TEST(RopeScaling, LinearStretchesEveryPosition) {
  EXPECT_EQ(scaled({.kind = RopeKind::kLinear, .factor = 4}, 4).frequencies,
            (std::vector<double>{0.25, 0.0025}));
}

TEST(RopeScaling, DynamicActsBeyondTheLongestSequenceAlone) {
  const RopeScaling dynamic{.kind = RopeKind::kDynamic, .factor = 2};
  EXPECT_EQ(scaled(dynamic, 8, 100), plain_rope(8, 1e4));
  // At twice the length theta grows by (2 * 2 - 1)^(8/6).
  EXPECT_EQ(scaled(dynamic, 8, 200), plain_rope(8, 1e4 * std::pow(3.0, 8.0 / 6)));
}

TEST(RopeScaling, Llama3KeepsFastTurnsAndStretchesSlowOnes) {
  // Waves of 2 pi, 20 pi, 200 pi, 2000 pi over 64 positions: shorter than 64/4, between, longer than 64.
  const RopeScaling llama{.kind = RopeKind::kLlama3, .factor = 8, .original_positions = 64};
  const std::vector<double> got = scaled(llama, 8).frequencies;
  EXPECT_DOUBLE_EQ(got[0], 1);
  const double turns = 64 * 0.1 / (2 * std::acos(-1)), fast = (turns - 1) / 3;
  EXPECT_NEAR(got[1], 0.1 * (fast + (1 - fast) / 8), 1e-15);
  EXPECT_DOUBLE_EQ(got[2], 0.01 / 8);
  EXPECT_DOUBLE_EQ(got[3], 0.001 / 8);
}

TEST(RopeScaling, YarnRampsBetweenTheEnds) {
  // 4096 positions: 32 turns at pair 1.31, one turn at 2.81; whole elements: 1 and 3.
  RopeScaling yarn{.kind = RopeKind::kYarn, .factor = 4, .original_positions = 4096};
  const RopeAngles got = scaled(yarn, 8);
  EXPECT_DOUBLE_EQ(got.frequencies[0], 1);
  EXPECT_DOUBLE_EQ(got.frequencies[1], 0.1);
  EXPECT_NEAR(got.frequencies[2], 0.01 * (0.5 + 0.5 / 4), 1e-15);
  EXPECT_NEAR(got.frequencies[3], 0.001 / 4, 1e-15);
  EXPECT_DOUBLE_EQ(got.scale, 0.1 * std::log(4.0) + 1);
  yarn.mscale = 0.7, yarn.mscale_all_dim = 0.7;
  EXPECT_DOUBLE_EQ(scaled(yarn, 8).scale, 1);
  yarn.attention_factor = 1.25;
  EXPECT_DOUBLE_EQ(scaled(yarn, 8).scale, 1.25);
  yarn.truncate = false;
  const auto pair = [](double turns) {
    return 4 * std::log(4096 / (2 * std::acos(-1) * turns)) / std::log(1e4);
  };
  const double slow = (2 - pair(32)) / (pair(1) - pair(32));
  EXPECT_NEAR(scaled(yarn, 8).frequencies[2], 0.01 * (slow / 4 + 1 - slow), 1e-15);
}

TEST(RopeScaling, DeepSeekPutsTheFactorOnTheScores) {
  const ModelConfig v3 = load_model("deepseek-v3");
  const double mscale = 0.1 * std::log(40.0) + 1;
  EXPECT_DOUBLE_EQ(score_scale(v3), mscale * mscale / std::sqrt(192.0));
  EXPECT_DOUBLE_EQ(rope_angles(v3, 4096).scale, 1);
  EXPECT_EQ(rope_angles(v3, 4096).frequencies.size(), 32u);
  EXPECT_DOUBLE_EQ(score_scale(load_model("llama-3.1-8b")), 1 / std::sqrt(128.0));
}

}  // namespace
}  // namespace hetermoe
