#include "hetermoe/nn/router.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/nn/compare.h"
#include "tests/nn/tiny_models.h"

namespace hetermoe::testing {
namespace {

std::vector<i64> sorted_ids(const at::Tensor& topk_1K) {
  std::vector<i64> ids(topk_1K.const_data_ptr<i64>(), topk_1K.const_data_ptr<i64>() + topk_1K.numel());
  std::sort(ids.begin(), ids.end());
  return ids;
}

at::Tensor row(std::initializer_list<double> values) { return at::tensor(values, at::kDouble).unsqueeze(0); }

ModelConfig six_experts(GroupScore group) {
  ModelConfig model = tiny_mixtral();
  model.num_experts = 6, model.top_k = 2;
  model.group_score = group;
  model.num_expert_groups = 3, model.top_k_groups = 1;
  return model;
}

TEST(Router, SoftmaxRenormalisedEqualsSoftmaxOfTheChosenLogits) {
  const ModelConfig model = tiny_mixtral();
  const at::Tensor scores = router_scores(model, row({0, std::log(3), std::log(4), std::log(2)}));
  EXPECT_LE(deviation(scores, row({0.1, 0.3, 0.4, 0.2})), 1e-14);
  const at::Tensor topk = choose_experts(model, scores, {});
  EXPECT_TRUE(at::equal(topk, at::tensor({2, 1}, at::kLong).unsqueeze(0)));
  EXPECT_LE(deviation(routing_weights(model, scores, topk), row({4.0 / 7, 3.0 / 7})), 1e-14);
}

TEST(Router, WithoutRenormalisationWeightsAreTheScoresTimesTheScale) {
  ModelConfig model = tiny_olmoe();
  model.routed_scale = 1.5;
  const at::Tensor scores = row({0.1, 0.3, 0.4, 0.2});
  EXPECT_LE(deviation(routing_weights(model, scores, choose_experts(model, scores, {})), row({0.6, 0.45})),
            1e-14);
}

TEST(Router, GroupMaxKeepsTheGroupOfTheBest) {
  // Groups (0,1) (2,3) (4,5): the best single score is in group 2, though group 0 has the larger sum.
  const at::Tensor scores = row({0.25, 0.24, 0.05, 0.1, 0.3, 0.06});
  EXPECT_EQ(sorted_ids(choose_experts(six_experts(GroupScore::kNone), scores, {})), (std::vector<i64>{0, 4}));
  EXPECT_EQ(sorted_ids(choose_experts(six_experts(GroupScore::kMax), scores, {})), (std::vector<i64>{4, 5}));
  EXPECT_EQ(sorted_ids(choose_experts(six_experts(GroupScore::kTopTwoSum), scores, {})),
            (std::vector<i64>{0, 1}));
}

TEST(Router, SumOfTheTwoBestOfAGroup) {
  // Two groups of three: sums of two 0.9 against 0.8; all three summed it would be 0.95 against 1.1.
  ModelConfig model = six_experts(GroupScore::kTopTwoSum);
  model.num_expert_groups = 2;
  EXPECT_EQ(sorted_ids(choose_experts(model, row({0.5, 0.4, 0.05, 0.4, 0.4, 0.3}), {})),
            (std::vector<i64>{0, 1}));
}

TEST(Router, BiasChangesTheChoiceButNotTheWeights) {
  ModelConfig model = six_experts(GroupScore::kTopTwoSum);
  model.router_score = RouterScore::kSigmoid;
  model.routed_scale = 2.5;
  const at::Tensor scores = row({0.9, 0.8, 0.3, 0.1, 0.5, 0.4});
  EXPECT_EQ(sorted_ids(choose_experts(model, scores, {})), (std::vector<i64>{0, 1}));
  const at::Tensor bias = at::tensor({0.0, 0.0, 1.0, 1.5, 0.0, 0.0}, at::kDouble);
  const at::Tensor topk = choose_experts(model, scores, bias);
  EXPECT_TRUE(at::equal(topk, at::tensor({3, 2}, at::kLong).unsqueeze(0)));  // biased 1.6 and 1.3
  EXPECT_LE(deviation(routing_weights(model, scores, topk), row({2.5 * 0.1 / 0.4, 2.5 * 0.3 / 0.4})), 1e-14);
}

TEST(Router, MaskedGroupsAreNeverChosen) {
  // Biased scores: group 0 = (0.2, -0.6), group 1 = (-0.5, -0.6), group 2 = (-0.7, -0.7). Group 0 is kept,
  // and its negative second expert wins. (transformers 4 masks with 0.0, by which a masked expert beats it.)
  ModelConfig model = six_experts(GroupScore::kTopTwoSum);
  model.router_score = RouterScore::kSigmoid;
  const at::Tensor bias = at::tensor({-0.5, -0.8, -0.9, -0.9, -0.9, -0.9}, at::kDouble);
  EXPECT_EQ(sorted_ids(choose_experts(model, row({0.7, 0.2, 0.4, 0.3, 0.2, 0.2}), bias)),
            (std::vector<i64>{0, 1}));
}

TEST(Router, SigmoidsThatAllUnderflowGiveFiniteWeights) {
  ModelConfig model = tiny_deepseek_v3();
  const at::Tensor scores = at::zeros({1, 8}, at::kDouble);
  const at::Tensor weights = routing_weights(model, scores, choose_experts(model, scores, {}));
  EXPECT_TRUE(weights.isfinite().all().item<bool>());
}

TEST(Router, ProbabilitiesOfSigmoidRoutersSumToOne) {
  const at::Tensor p =
      router_probabilities(tiny_deepseek_v3(), row({0.2, 0.2, 0.1, 0.3, 0.4, 0.4, 0.2, 0.2}));
  EXPECT_LE(deviation(p, row({0.1, 0.1, 0.05, 0.15, 0.2, 0.2, 0.1, 0.1})), 1e-14);
}

TEST(Router, PerfectBalanceCostsTopK) {
  // Uniform counts and probabilities: E * sum f P = top_k, times the coefficient 0.02 (as Hugging Face, not
  // 1).
  const ModelConfig model = tiny_mixtral();                   // 2 MoE layers, 4 experts, top 2
  const at::Tensor counts = at::full({1, 4}, 10, at::kLong);  // 10 tokens
  const at::Tensor gradient = balance_gradient(model, counts, 10, at::kDouble);
  const double loss =
      (gradient * (0.25 * 10 * 2)).sum().item<double>();  // probabilities summed over tokens and layers
  EXPECT_NEAR(loss, 0.02 * 2, 1e-15);
}

TEST(Router, BalanceByHandOverTwoUnequalGroups) {
  // 2 layers, top 2. Group 0: 1 token, copies (4,0,0,0); group 1: 3 tokens, copies (3,3,3,3).
  const ModelConfig model = tiny_mixtral();
  const at::Tensor counts = at::tensor({4, 0, 0, 0, 3, 3, 3, 3}, at::kLong).view({2, 4});
  const at::Tensor got = balance_gradient(model, counts, 4, at::kDouble);
  // f = copies / (2 layers * tokens); gradient = coef * 4 experts * f / (2 layers * 4 tokens)
  const at::Tensor expected =
      0.02 * 4 / 8 * at::tensor({2.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.5}, at::kDouble).view({2, 4});
  EXPECT_LE(deviation(got, expected), 1e-14);
  EXPECT_EQ(balance_gradient(model, at::zeros({1, 4}, at::kLong), 4, at::kFloat).abs().sum().item<float>(),
            0);
}

TEST(Router, LayersThatLookEvenTogetherAreUnevenPerLayer) {
  // 2 layers, 2 tokens, top 2: layer 0 chooses experts 0 and 1 alone, layer 1 experts 2 and 3.
  const ModelConfig model = tiny_mixtral();
  const at::Tensor counts = at::tensor({2, 2, 0, 0, 0, 0, 2, 2}, at::kLong).view({1, 2, 4});
  const at::Tensor together = balance_gradient(model, counts.sum(1, true), 2, at::kDouble);
  EXPECT_LE(deviation(together, at::full({1, 1, 4}, 0.02 * 4 / 4 * 0.5, at::kDouble)), 1e-14);
  // f = copies / tokens of the layer; gradient = coef * 4 experts * f / (2 layers * 2 tokens)
  const at::Tensor per_layer = balance_gradient(model, counts, 2, at::kDouble);
  EXPECT_LE(deviation(per_layer, 0.02 * 4 / 4 * counts.to(at::kDouble) / 2), 1e-14);
}

}  // namespace
}  // namespace hetermoe::testing
