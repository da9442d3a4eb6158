#include <gtest/gtest.h>

#include <cmath>

#include "hetermoe/base/index.h"
#include "hetermoe/model/growth.h"

// Worked examples of the growth of experts. Those that need tensors are in tests/weights/upcycle_test.cpp.
namespace hetermoe::test {
namespace {

/// Instances of each expert after `slots` were handed out.
std::vector<i64> instances(const std::vector<double>& scores, i64 slots, i64 cap = 3) {
  std::vector<i64> out(scores.size(), 1);
  for (const ExpertId e : hand_out(scores, slots, cap)) ++out[idx(e)];
  return out;
}

using Counts = std::vector<i64>;

// Claim (GrowthGolden.*, UpcycleGolden.*): worked examples of growth: counts, weights, AdamW, load balancing,
// savings, parameters of published models
TEST(GrowthGolden, CountsOfInstances) {
  EXPECT_EQ(instances({5, 1, 8, 2, 7, 3, 6, 4}, 8), (Counts{1, 1, 4, 1, 4, 1, 3, 1}));
  EXPECT_EQ(instances({4, 3, 2, 1}, 4), (Counts{4, 2, 1, 1}));
  EXPECT_EQ(instances({4, 3, 2, 1}, 12), (Counts{4, 4, 4, 4}));
  EXPECT_EQ(instances({4, 3, 2, 1}, 16), (Counts{7, 5, 4, 4}));
  EXPECT_EQ(instances({1, 1, 1, 1}, 4), (Counts{4, 2, 1, 1}));
}

TEST(GrowthGolden, CountsOfAWideLayer) {
  std::vector<double> falling;
  for (int e = 0; e < 32; ++e) falling.push_back(32 - e);
  Counts expected(32, 1);
  std::fill_n(expected.begin(), 10, 4);
  expected[10] = 3;
  EXPECT_EQ(instances(falling, 32), expected);
}

/// Ties within rounding go to the lower expert, whichever plan summed the gradients.
TEST(GrowthGolden, RoundingDoesNotDecide) {
  EXPECT_EQ(instances({1.0, 1.0 + 1e-14}, 2, 3), (Counts{3, 1}));
  EXPECT_EQ(instances({1.0, 1.0 + 1e-9}, 2, 3), (Counts{1, 3}));
}

TEST(GrowthGolden, Savings) {
  EXPECT_NEAR(growth_saving(2.2, 4.2, 2, 3), 0.3175, 5e-5);
  // A checkpoint that exists anyway costs nothing.
  EXPECT_DOUBLE_EQ(growth_saving(0, 4.2, 2, 3), 2.0 / 3);
}

/// 4 h^2 attention, norms, router rows; a vocabulary of 200,704 in and out.
ModelConfig published(i64 layers, i64 moe_layers, i64 hidden, i64 inner, i64 expert_inner, i64 experts) {
  std::vector<i64> dense;
  for (i64 l = 0; l < layers - moe_layers; ++l) dense.push_back(l);
  return model_from_hf({{"model_type", "qwen3_moe"},
                        {"vocab_size", 200704},
                        {"hidden_size", hidden},
                        {"num_hidden_layers", layers},
                        {"num_attention_heads", hidden / 128},
                        {"num_key_value_heads", hidden / 128},
                        {"head_dim", 128},
                        {"intermediate_size", inner},
                        {"moe_intermediate_size", expert_inner},
                        {"mlp_only_layers", dense},
                        {"num_experts", experts},
                        {"num_experts_per_tok", 2},
                        {"norm_topk_prob", true}},
                       "published");
}

double millions(i64 count) { return std::round(real(count) / 1e5) / 10; }

TEST(GrowthGolden, ParametersOfThePublishedModels) {
  const ModelConfig model = published(20, 10, 2048, 7168, 3072, 32);
  EXPECT_EQ(millions(count_parameters(model).total), 7638.6);
  EXPECT_EQ(millions(count_parameters(model).active), 1976.3);
  const ModelConfig grown = plan_growth(model, {}).after;
  EXPECT_EQ(grown.num_experts, 64);
  EXPECT_EQ(millions(count_parameters(grown).total), 13679.0);
  EXPECT_EQ(millions(count_parameters(grown).active), 1976.9);
  EXPECT_EQ(millions(count_parameters(published(10, 5, 1024, 3584, 1536, 32)).total), 1263.2);
}

}  // namespace
}  // namespace hetermoe::test
