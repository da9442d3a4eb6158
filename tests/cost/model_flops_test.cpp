#include "hetermoe/cost/model_flops.h"

#include <gtest/gtest.h>

#include "hetermoe/model/op_cost.h"

namespace hetermoe {
namespace {

class ModelFlops : public ::testing::Test {
 protected:
  Flops of(OpKind kind, Phase phase, WeightGradients gradients = WeightGradients::kWith,
           double frozen = 0) const {
    ComputeWork work;
    work.op = {.kind = kind, .phase = phase, .layer = 1, .microbatch = 0};
    work.seq_len = 512;
    work.tokens = 1024;
    work.copies = 2048;
    work.frozen = frozen;
    work.trains = true;
    work.of_team = of_team_, work.latents = latents_;
    return model_flops(work, model_, gradients);
  }
  ModelConfig model_ = load_model("d1");
  bool of_team_ = false, latents_ = false;
};

TEST_F(ModelFlops, ForwardIsTheFormulaAndBackwardTwiceThat) {
  const Flops attention = of(OpKind::kAttention, Phase::kForward);
  EXPECT_DOUBLE_EQ(attention, 1024 * attention_part_flops(model_, 1, 512));
  EXPECT_DOUBLE_EQ(of(OpKind::kAttention, Phase::kBackward), 2 * attention);
  const Flops experts = of(OpKind::kExperts, Phase::kForward);
  EXPECT_DOUBLE_EQ(experts, 2048 * expert_flops(model_));
  EXPECT_DOUBLE_EQ(of(OpKind::kExperts, Phase::kBackward), 2 * experts);
  EXPECT_DOUBLE_EQ(of(OpKind::kHead, Phase::kForward), 3 * 1024 * head_flops(model_));
  EXPECT_EQ(of(OpKind::kUpdate, Phase::kForward), 0);
}

TEST_F(ModelFlops, WhatIsComputedAgainCountsNothing) {
  EXPECT_EQ(of(OpKind::kAttention, Phase::kRecompute), 0);
  EXPECT_EQ(of(OpKind::kExperts, Phase::kRecompute), 0);
}

TEST_F(ModelFlops, GradientsOfWeightsCountOnceWhereverTheyAreComputed) {
  for (const OpKind kind : {OpKind::kAttention, OpKind::kExperts}) {
    EXPECT_DOUBLE_EQ(of(kind, Phase::kBackward, WeightGradients::kAfter) +
                         of(kind, Phase::kWeights, WeightGradients::kAfter),
                     of(kind, Phase::kBackward));
  }
}

/// The ops of a team that sends latents do what the whole part does; all its heads, and all its tokens.
TEST_F(ModelFlops, OfATeamAreThoseOfTheWholePart) {
  model_ = load_model("deepseek-v2-lite");
  for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
    const Flops whole = of(OpKind::kAttention, phase);
    of_team_ = true;
    for (const bool latents : {false, true}) {
      latents_ = latents;
      EXPECT_DOUBLE_EQ(
          of(OpKind::kProject, phase) + of(OpKind::kScores, phase) + of(OpKind::kAttention, phase), whole);
    }
    of_team_ = latents_ = false;
  }
  of_team_ = latents_ = true;
  const Flops product = 1024 * latent_product_flops(model_);
  EXPECT_DOUBLE_EQ(of(OpKind::kScores, Phase::kBackward) -
                       of(OpKind::kScores, Phase::kBackward, WeightGradients::kWith, 1),
                   product);
}

TEST_F(ModelFlops, FrozenWeightsHaveNoGradient) {
  EXPECT_DOUBLE_EQ(of(OpKind::kExperts, Phase::kBackward, WeightGradients::kWith, 1),
                   of(OpKind::kExperts, Phase::kForward));
  EXPECT_EQ(of(OpKind::kExperts, Phase::kWeights, WeightGradients::kAfter, 1), 0);
  EXPECT_DOUBLE_EQ(of(OpKind::kHead, Phase::kForward, WeightGradients::kWith, 1),
                   2 * 1024 * head_flops(model_));
}

}  // namespace
}  // namespace hetermoe
