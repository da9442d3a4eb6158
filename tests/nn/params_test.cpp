#include "hetermoe/nn/params.h"

#include <gtest/gtest.h>

#include <map>

#include "hetermoe/base/error.h"
#include "tests/nn/newer_models.h"
#include "tests/nn/task_chain.h"

namespace hetermoe::testing {
namespace {

TEST(Params, ViewsAreTheTensorsOfTheModel) {
  for (const ModelConfig& model : models_of_all_families()) {
    ChainOptions options;
    options.num_destinations = 3;
    const Parameters storage = make_parameters(model, options, at::kFloat);
    std::map<std::string, std::vector<i64>> got, expected;
    for (const NamedView& view : all_views(model, storage)) {
      EXPECT_TRUE(got.emplace(view.name, view.value.sizes().vec()).second) << view.name;
    }
    for (const ParamInfo& info : parameters(model)) expected[info.name] = info.shape;
    EXPECT_EQ(got, expected) << model.name;
  }
}

TEST(Params, OnlyBuffersHaveNoGradient) {
  const Parameters storage = make_parameters(tiny_deepseek_v3(), {}, at::kBFloat16);
  i64 buffers = 0;
  for (const NamedView& view : all_views(tiny_deepseek_v3(), storage)) {
    const bool buffer = view.name.ends_with("e_score_correction_bias");
    buffers += buffer ? 1 : 0;
    EXPECT_EQ(view.grad.defined(), !buffer) << view.name;
    EXPECT_EQ(view.value.scalar_type(), buffer ? at::kFloat : at::kBFloat16) << view.name;
  }
  EXPECT_EQ(buffers, 2);
}

TEST(Params, ViewsShareStorage) {
  StateGroup group = make_attention_state(tiny_mixtral(), 0, at::kFloat);
  for (const NamedView& view : group.views()) {
    if (!view.name.ends_with("k_proj.weight")) continue;
    view.value.fill_(3);
    view.grad.fill_(4);
  }
  // q has 16 rows, k and v 8 each.
  const at::Tensor rows = group.value(Weight::kQkv).sum(1) / 16;
  EXPECT_EQ(rows.slice(0, 0, 16).sum().item<float>(), 0);
  EXPECT_EQ(rows.slice(0, 16, 24).sum().item<float>(), 24);
  EXPECT_EQ(rows.slice(0, 24).sum().item<float>(), 0);
  EXPECT_EQ(group.grad(Weight::kQkv).sum().item<float>(), 4 * 8 * 16);
  group.zero_grads();
  EXPECT_EQ(group.grad(Weight::kQkv).abs().sum().item<float>(), 0);
}

TEST(Params, SlabPutsGateRowsFirst) {
  const ModelConfig model = tiny_mixtral();
  const ExpertSlab slab = make_expert_slab(model, 1, {3, 0}, at::kFloat);
  EXPECT_EQ(slab.slot_of, (std::vector<i64>{1, -1, -1, 0}));
  for (const NamedView& view : slab.views(model)) {
    if (view.name == "model.layers.1.block_sparse_moe.experts.3.w1.weight") view.value.fill_(1);
    if (view.name == "model.layers.1.block_sparse_moe.experts.3.w3.weight") view.value.fill_(2);
    if (view.name == "model.layers.1.block_sparse_moe.experts.0.w2.weight") view.value.fill_(5);
  }
  EXPECT_TRUE(slab.gate_up[0].slice(0, 0, 12).eq(1).all().item<bool>());
  EXPECT_TRUE(slab.gate_up[0].slice(0, 12).eq(2).all().item<bool>());
  EXPECT_TRUE(slab.down[1].eq(5).all().item<bool>());
  EXPECT_EQ(slab.down[0].abs().sum().item<float>(), 0);
  EXPECT_THROW(make_expert_slab(model, 0, {1, 1}, at::kFloat), InternalError);
}

TEST(Params, ValuesDependOnSeedAndNameOnly) {
  const ModelConfig model = tiny_deepseek_v2();
  ChainOptions one, three;
  three.num_destinations = 3;
  std::map<std::string, at::Tensor> values;
  const Parameters a = make_parameters(model, one, at::kFloat),
                   b = make_parameters(model, three, at::kDouble);
  for (const NamedView& view : all_views(model, a)) values[view.name] = view.value;
  init_parameters(all_views(model, a), 11);
  init_parameters(all_views(model, b), 11);
  for (const NamedView& view : all_views(model, b)) {
    EXPECT_TRUE(at::equal(view.value, values.at(view.name).to(at::kDouble))) << view.name;
  }
  const at::Tensor before = a.embed.values[0].clone();
  init_parameters(a.embed.views(), 12);
  EXPECT_FALSE(at::equal(before, a.embed.values[0]));
}

TEST(Params, MatricesAreNormalAndNormsOne) {
  const at::Tensor value = at::empty({301, 333}), norm = at::empty({5});
  init_parameters({{"a.weight", value, at::empty_like(value)}, {"norm.weight", norm, at::empty_like(norm)}},
                  1);
  EXPECT_TRUE(norm.eq(1).all().item<bool>());
  EXPECT_NEAR(value.mean().item<double>(), 0, 3e-4);
  EXPECT_NEAR(value.std().item<double>(), 0.02, 2e-4);
  EXPECT_NEAR((value / 0.02).pow(4).mean().item<double>(), 3, 0.1);
  // Neighbours are independent, also the two of one Box-Muller pair.
  const at::Tensor flat = value.flatten() / 0.02;
  EXPECT_NEAR((flat.slice(0, 1) * flat.slice(0, 0, -1)).mean().item<double>(), 0, 0.015);
}

TEST(Params, TiedEmbeddingsAreOneGroup) {
  const StateGroup group = make_embed_state(tiny_qwen3(), at::kFloat);
  EXPECT_TRUE(group.has(Weight::kEmbedding));
  EXPECT_TRUE(group.has(Weight::kFinalNorm));
  EXPECT_FALSE(group.has(Weight::kLmHead));
  EXPECT_THROW(make_head_state(tiny_qwen3(), at::kFloat), InternalError);
}

}  // namespace
}  // namespace hetermoe::testing
