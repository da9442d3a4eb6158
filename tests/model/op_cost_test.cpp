#include "hetermoe/model/op_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace hetermoe {
namespace {

/// FLOPs of all matrices of a kind, from the table of tensors: 2 per element and token.
Flops matrix_flops(const ModelConfig& model, i64 layer, const std::function<bool(const ParamInfo&)>& wanted) {
  Flops sum = 0;
  for (const ParamInfo& info : parameters(model)) {
    if (info.layer == layer && info.shape.size() == 2 && wanted(info))
      sum += 2 * static_cast<double>(info.numel());
  }
  return sum;
}
bool has(const ParamInfo& info, const char* part) { return info.name.find(part) != std::string::npos; }

TEST(OpCost, MatrixFlopsFollowFromTheTableOfTensors) {
  for (const char* name :
       {"tiny", "tiny-qwen3", "tiny-olmoe", "tiny-deepseek-v2", "tiny-deepseek-v3", "deepseek-v2"}) {
    const ModelConfig model = load_model(name);
    for (i64 l = 0; l < std::min<i64>(model.num_layers, 3); ++l) {
      const auto flops = [&](auto wanted) { return matrix_flops(model, l, wanted); };
      EXPECT_EQ(projection_flops(model), flops([](const ParamInfo& p) { return has(p, "self_attn."); }))
          << name;
      EXPECT_EQ(router_flops(model, l), flops([](const ParamInfo& p) { return has(p, ".gate.weight"); }))
          << name;
      EXPECT_EQ(shared_flops(model, l), flops([](const ParamInfo& p) { return has(p, "shared_experts"); }))
          << name;
      EXPECT_EQ(dense_flops(model, l), flops([](const ParamInfo& p) {
                  return p.expert < 0 && has(p, "_proj.weight") && has(p, ".mlp.") &&
                         !has(p, "shared_experts");
                }))
          << name;
      if (!model.is_moe(l)) continue;
      EXPECT_EQ(expert_flops(model), flops([](const ParamInfo& p) { return p.expert == 1; })) << name;
    }
  }
}

TEST(OpCost, LayerWeightsSplitTheTableByPart) {
  for (const char* name : {"tiny", "tiny-qwen3", "tiny-olmoe", "tiny-deepseek-v2", "tiny-deepseek-v3"}) {
    const ModelConfig model = load_model(name);
    for (i64 l = 0; l < model.num_layers; ++l) {
      i64 norms = 0, router = 0, experts = 0;
      for (const ParamInfo& p : parameters(model)) {
        if (p.layer != l) continue;
        if (has(p, "norm")) norms += p.numel();
        if (has(p, ".gate.")) router += p.numel();
        if (p.expert >= 0) experts += p.numel();
      }
      EXPECT_EQ(layer_weights(model, l).norms, norms) << name << l;
      EXPECT_EQ(layer_weights(model, l).router, router) << name << l;
      EXPECT_EQ(layer_weights(model, l).experts, experts) << name << l;
    }
  }
}

// HeterMoE, arXiv 2504.03871, model D1 at 8K: the head costs 65.5 MFLOP per token, an expert pair 44, and one
// causal attention layer 22.
TEST(OpCost, PaperModelD1) {
  const ModelConfig d1 = load_model("d1");
  EXPECT_EQ(head_flops(d1), 2.0 * 1024 * 32000);
  EXPECT_EQ(2 * expert_flops(d1), 2.0 * 6 * 1024 * 3584);
  const Flops attention = projection_flops(d1) + score_flops(d1, 0, 8192) / 8192;
  EXPECT_EQ(attention, 2 * 2.5 * 1024 * 1024 + 2.0 * 8192 * 1024);
  EXPECT_NEAR(attention, 22e6, 0.1e6);
}

TEST(OpCost, ScoresOfLatentAttentionUseBothHeadSizes) {
  const ModelConfig v3 = load_model("deepseek-v3");
  EXPECT_EQ(score_flops(v3, 0, 4096), 4096.0 * 4096 * 128 * (192 + 128));
  EXPECT_EQ(score_elements(v3, 4096), 4096.0 * 4096 * 128);
  ModelConfig window = v3;
  window.sliding_window = 3;  // of five tokens these see 1, 2, 3, 3, 3 others: 12 less half of a diagonal
  EXPECT_EQ(score_flops(window, 0, 5), 2 * (12 - 1.5) * 128 * (192 + 128));
  EXPECT_EQ(score_flops(window, 0, 3), score_flops(v3, 0, 3));
}

TEST(OpCost, ModelFlopsAreTwicePerActiveWeightPlusScores) {
  for (const std::string& name : known_models()) {
    const ModelConfig model = load_model(name);
    const i64 seq_len = 512;
    const i64 biases = model.expert_bias ? 2 * model.expert_hidden + model.hidden : 0;
    double scores = 0, weights = static_cast<double>(model.hidden * model.vocab);
    for (i64 l = 0; l < model.num_layers; ++l) {
      const LayerWeights w = layer_weights(model, l);
      weights += static_cast<double>(w.projections + w.shared + w.dense);
      if (model.is_moe(l)) weights += static_cast<double>(model.hidden * model.num_experts);
      if (model.is_moe(l)) weights += static_cast<double>(model.top_k * (expert_weights(model) - biases));
      scores += score_flops(model, l, seq_len) / 512;
    }
    const double all = 2 * weights + scores;
    EXPECT_NEAR(model_flops_per_token(model, seq_len), all, 1e-12 * all) << name;
    EXPECT_NEAR(training_flops_per_token(model, seq_len), 3 * all, 3e-12 * all) << name;
  }
}

TEST(OpCost, StateBytes) {
  const StateBytes mixed = state_bytes_per_parameter(2), single = state_bytes_per_parameter(4);
  EXPECT_EQ(mixed.weights, 2);
  EXPECT_EQ(mixed.gradients, 4);
  EXPECT_EQ(mixed.master, 4);
  EXPECT_EQ(mixed.moments, 8);
  EXPECT_EQ(mixed.total(), 18);
  EXPECT_EQ(state_bytes_per_parameter(2, 2).total(), 16);
  EXPECT_EQ(single.weights, 4);
  EXPECT_EQ(single.gradients, 4);
  EXPECT_EQ(single.master, 0);
  EXPECT_EQ(single.total(), 16);
  EXPECT_EQ(state_bytes_per_parameter(8).total(), 32);
}

TEST(OpCost, RecomputeKeepsTheInputAndTheRoutingOnly) {
  const ModelConfig tiny = load_model("tiny");  // H 64, 4 heads of 16, 2 kv heads, 4 experts, top 2, I 128
  EXPECT_EQ(row_bytes(tiny, 2), 128);
  EXPECT_EQ(routing_bytes(tiny, 0), 24);
  EXPECT_EQ(attention_saved_bytes(tiny, 0, {}), 128 + 24);
  EXPECT_EQ(expert_saved_bytes(tiny, {}), 128 + 4);
  ActivationOptions keep{.element = 2, .keeps = KeptActivations::kAll};
  // 3 H + (64 + 32 + 32) + 64 numbers; 2 statistics, 4 log-sum-exps, 4 router scores
  EXPECT_EQ(attention_work_bytes(tiny, 0, keep), 2 * (3 * 64 + 128 + 64) + 4 * (2 + 4 + 4));
  EXPECT_EQ(attention_saved_bytes(tiny, 0, keep), 128 + 24 + attention_work_bytes(tiny, 0, keep));
  EXPECT_EQ(expert_work_bytes(tiny, 2), 2 * 3 * 128);
  EXPECT_EQ(expert_saved_bytes(tiny, keep), 128 + 4 + 2 * 2 * 128);
  EXPECT_EQ(attention_gradient_bytes(tiny, 2), 2 * (128 + 64));
  // Both normed rows go, and the rows of experts.
  const ActivationOptions select{.element = 2, .keeps = KeptActivations::kSelected};
  EXPECT_EQ(attention_kept_bytes(tiny, 0, select), attention_work_bytes(tiny, 0, keep) - 2 * 2 * 64);
  EXPECT_EQ(attention_saved_bytes(tiny, 0, select), 128 + 24 + attention_kept_bytes(tiny, 0, select));
  EXPECT_EQ(attention_kept_bytes(tiny, 0, {}), 0);
  EXPECT_EQ(expert_saved_bytes(tiny, select), 2 * 2 * 128);
  EXPECT_EQ(selected_traffic(tiny, 0), 4 * 64);
}

/// "name elements kept" of each line.
std::vector<std::string> lines_of(const ModelConfig& model, i64 layer) {
  std::vector<std::string> lines;
  for (const Activation& line : activation_ledger(model, layer, {})) {
    lines.push_back(fmt::format("{} {}{} {}", line.name, line.elements,
                                line.wide > 0 ? fmt::format("+{}B", line.wide) : "",
                                static_cast<int>(line.kept)));
  }
  return lines;
}

TEST(OpCost, LedgerOfATinyLayer) {
  const ModelConfig tiny = load_model("tiny");  // as above. 0 = always, 1 = unless recomputed, 2 = not with
                                                // select, 3 = unless sent again, 4 = never
  EXPECT_EQ(lines_of(tiny, 0),
            (std::vector<std::string>{
                "layer input 64 0", "chosen experts, weights 0+24B 0", "normed input 64 2", "q, k, v 128 1",
                "attended 64 1", "log-sums of scores 0+16B 1", "after attention 64 1", "normed rows 64 2",
                "statistics of norms 0+8B 1", "router scores 0+16B 1", "received row, weight 64+4B 3",
                "gate, up 256 1", "their product 128 4"}));
  const ModelConfig v3 = load_model("tiny-deepseek-v3");
  const std::vector<std::string> dense = lines_of(v3, 0);
  EXPECT_EQ(dense.back(), "their product 128 2");
  EXPECT_EQ(dense[dense.size() - 2], "gate, up of the MLP 256 1");
}

TEST(OpCost, WhatIsLeftForGradientsOfWeights) {
  const ModelConfig tiny = load_model("tiny");
  // Inputs: normed 64, attended 64, normed rows 64; gradients: q, k, v 128, output 64, router logits 4 in
  // fp32.
  EXPECT_EQ(attention_left_bytes(tiny, 0, 2), 2 * (64 + 64 + 64 + 128 + 64) + 4 * 4);
  EXPECT_EQ(expert_left_bytes(tiny, 2), 2 * (2 * 128 + 128));
}

TEST(OpCost, ScoresInMemoryGrowWithTheSequence) {
  const ModelConfig tiny = load_model("tiny");
  const ActivationOptions fused{.element = 2, .keeps = KeptActivations::kAll};
  ActivationOptions plain = fused;
  plain.scores_in_memory = true;
  plain.seq_len = 1000;
  // probabilities of 4 heads instead of 4 log-sum-exps
  EXPECT_EQ(attention_work_bytes(tiny, 0, plain) - attention_work_bytes(tiny, 0, fused),
            2 * 4 * 1000 - 4 * 4);
}

TEST(OpCost, DenseLayersHaveNoRouting) {
  const ModelConfig model = load_model("tiny-deepseek-v3");  // layer 0 dense of width 128, then S*I = 64, E 8
  EXPECT_EQ(routing_bytes(model, 0), 0);
  EXPECT_EQ(routing_bytes(model, 1), 24);
  EXPECT_EQ(router_flops(model, 0), 0);
  const ActivationOptions keep{.element = 4, .keeps = KeptActivations::kAll};
  EXPECT_EQ(attention_work_bytes(model, 0, keep) - attention_work_bytes(model, 1, keep),
            4 * 3 * (128 - 64) - 4 * 8);
}

TEST(OpCost, TrafficOfATinyLayerTermByTerm) {
  const ModelConfig tiny = load_model("tiny");
  const double norms = 2 * 64 + 2 * 64, qkv = 64 + 128, rope = 2 * (64 + 32), kernel = 128 + 64;
  const double output = 64 + 64, residual = 3 * 64, router = 64 + 4;
  EXPECT_EQ(attention_traffic(tiny, 0), norms + qkv + rope + kernel + output + residual + router);
  EXPECT_EQ(expert_traffic(tiny), (64 + 2 * 128) + 3 * 128 + (128 + 64) + 2 * 64);
  EXPECT_EQ(head_traffic(tiny), 3 * 64 + 3 * 256);
  EXPECT_EQ(embedding_traffic(tiny), 128);
  EXPECT_EQ(head_work_bytes(tiny, 10, 2), 10 * (256 * 6 + 128));
  EXPECT_EQ(head_work_bytes(tiny, 2000, 2), 1024 * (256 * 6 + 128));   // in runs of a CPU
  EXPECT_EQ(head_work_bytes(tiny, 20000, 2), 8192 * (256 * 2 + 128));  // and of a GPU
  ModelConfig wide = tiny;
  EXPECT_EQ(head_run_on_gpu(wide, 2), 8192);
  wide.vocab = 32768;
  EXPECT_EQ(head_run_on_gpu(wide, 2), 8192);
  EXPECT_EQ(head_run_on_gpu(wide, 4), 4096);
  wide.vocab = 151936;
  EXPECT_EQ(head_run_on_gpu(wide, 2), 4096);
}

}  // namespace
}  // namespace hetermoe
