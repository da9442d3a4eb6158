#include "hetermoe/nn/attention.h"

#include <gtest/gtest.h>

#include "hetermoe/nn/attention_part.h"
#include "tests/nn/compare.h"
#include "tests/nn/newer_models.h"
#include "tests/nn/wave.h"

namespace hetermoe::testing {
namespace {

StateGroup lively_state(const ModelConfig& model, i64 layer, at::ScalarType dtype) {
  StateGroup state = make_attention_state(model, layer, dtype);
  init_parameters(state.views(), 3);
  for (at::Tensor& value : state.values) {
    if (value.dim() > 1) value.mul_(15);
  }
  return state;
}

TEST(AttentionPart, NoTokens) {
  for (const ModelConfig& model : models_of_all_families()) {
    for (i64 layer = 0; layer < 2; ++layer) {
      StateGroup state = lively_state(model, layer, at::kFloat);
      const at::Tensor y = at::empty({0, 16});
      const AttentionOutput out = attention_forward(model, layer, state, y, 8, KeepGraph::kYes);
      EXPECT_EQ(out.u_TD.sizes(), y.sizes());
      EXPECT_EQ(out.x_TD.defined(), model.is_moe(layer));
      if (model.is_moe(layer)) {
        EXPECT_EQ(out.topk_TK.sizes(), (at::IntArrayRef{0, model.top_k}));
      }
      AttentionBackwardInput input{
          y, y, out.topk_TK, out.x_TD, out.weights_TK, at::ones({1, model.num_experts}), out.graph};
      const AttentionGradient grad = attention_backward(model, layer, state, input, 8);
      EXPECT_EQ(grad.dy_TD.sizes(), y.sizes());
      EXPECT_EQ(grad.aux_loss.item<double>(), 0);
      for (const at::Tensor& g : state.grads) EXPECT_EQ(g.abs().sum().item<float>(), 0);
    }
  }
}

/// One backward pass of two sequences: from a graph of that kind or from none, with gradients of weights at
/// once or left.
std::pair<AttentionGradient, std::vector<at::Tensor>> backward_of(const ModelConfig& model, i64 layer,
                                                                  at::ScalarType dtype, KeepGraph kind,
                                                                  bool leaves) {
  StateGroup state = lively_state(model, layer, dtype);
  for (at::Tensor& grad : state.grads) grad.fill_(0.5);
  const at::Tensor y = wave({12, model.hidden}, 0.77, dtype);
  const AttentionOutput out = attention_forward(model, layer, state, y, 6, kind);
  AttentionBackwardInput input;
  input.y_TD = y, input.du_TD = wave({12, model.hidden}, 0.31, dtype);
  if (model.is_moe(layer)) {
    input.topk_TK = out.topk_TK;
    input.dx_TD = wave({12, model.hidden}, 0.53, dtype);
    input.dweights_TK = wave({12, model.top_k}, 0.37, out.weights_TK.scalar_type());
    input.balance_AE = wave({2, model.num_experts}, 0.11, out.weights_TK.scalar_type());
  }
  input.graph = out.graph, input.leaves_weights = leaves;
  AttentionGradient gradient = attention_backward(model, layer, state, input, 6);
  if (leaves) {
    for (const at::Tensor& grad : state.grads) EXPECT_TRUE(grad.eq(0.5).all().item<bool>());
    attention_weight_gradients(state, *gradient.left);
  }
  return {gradient, state.grads};
}

TEST(AttentionPart, GradientsOfWeightsThatAreLeftHaveTheSameBits) {
  for (const ModelConfig& model : models_of_all_families()) {
    for (i64 layer = 0; layer < model.num_layers; ++layer) {
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
        for (const KeepGraph kind : {KeepGraph::kNo, KeepGraph::kYes, KeepGraph::kSelected}) {
          const auto [at_once, expected] = backward_of(model, layer, dtype, KeepGraph::kYes, false);
          if (kind == KeepGraph::kSelected) {
            const auto [selected, with] = backward_of(model, layer, dtype, kind, false);
            EXPECT_TRUE(at::equal(selected.dy_TD, at_once.dy_TD));
            for (std::size_t i = 0; i < expected.size(); ++i)
              EXPECT_TRUE(at::equal(with[i], expected[i])) << model.name << " " << layer << " " << i;
          }
          const auto [left, got] = backward_of(model, layer, dtype, kind, true);
          EXPECT_TRUE(at::equal(left.dy_TD, at_once.dy_TD)) << model.name << " " << layer;
          EXPECT_TRUE(at::equal(left.aux_loss, at_once.aux_loss));
          for (std::size_t i = 0; i < expected.size(); ++i) {
            EXPECT_TRUE(at::equal(got[i], expected[i]))
                << model.name << " " << layer << " " << dtype << " " << i;
            EXPECT_FALSE(expected[i].eq(0.5).all().item<bool>());
          }
        }
      }
    }
  }
}

TEST(AttentionPart, SequencesDoNotSeeEachOtherNorTheFuture) {
  const ModelConfig model = tiny_qwen3();
  const StateGroup state = lively_state(model, 0, at::kDouble);
  at::Tensor y = wave({12, 16}, 0.77);
  const at::Tensor before = attention_forward(model, 0, state, y, 6).u_TD.clone();
  y = y.clone();
  y[8] += 1;
  const at::Tensor changed = (attention_forward(model, 0, state, y, 6).u_TD - before).abs().amax(1);
  for (i64 t = 0; t < 12; ++t) EXPECT_EQ(changed[t].item<double>() > 0, t >= 8) << t;
}

/// Two sequences of 24 rows: documents of 5, 19, 24 tokens.
struct Divided {
  std::vector<i64> lengths = {5, 19, 24};
  at::Tensor y, du, dx, dweights;
  Divided(const ModelConfig& model, at::ScalarType dtype)
      : y(wave({48, model.hidden}, 0.77, dtype)),
        du(wave({48, model.hidden}, 0.31, dtype)),
        dx(wave({48, model.hidden}, 0.53, dtype)),
        dweights(wave({48, model.top_k}, 0.37, dtype)) {}
};

/// u and dy of rows [begin, begin + count), which are whole sequences.
std::pair<at::Tensor, at::Tensor> there_and_back(const ModelConfig& model, i64 layer, StateGroup& state,
                                                 const Divided& all, i64 begin, i64 count,
                                                 const Sequences& sequences) {
  const at::Tensor y = all.y.narrow(0, begin, count);
  const AttentionOutput out = attention_forward(model, layer, state, y, sequences);
  AttentionBackwardInput input;
  input.y_TD = y, input.du_TD = all.du.narrow(0, begin, count);
  if (model.is_moe(layer)) {
    input.topk_TK = out.topk_TK;
    input.dx_TD = all.dx.narrow(0, begin, count);
    input.dweights_TK = all.dweights.narrow(0, begin, count);
  }
  return {out.u_TD, attention_backward(model, layer, state, input, sequences).dy_TD};
}

/// A masked document is computed as if it were alone, at positions from 0 on: rotary embedding knows
/// differences of positions only.
TEST(MaskedDocuments, AreEachAsASequenceOfItsOwn) {
  std::vector<ModelConfig> models = models_of_all_families();
  ModelConfig window = tiny_mistral();
  window.sliding_window = 3;
  models.push_back(window);
  ModelConfig fast = tiny_mixtral();  // widths of the CPU kernel
  fast.head_dim = 8;
  models.push_back(fast);
  for (const ModelConfig& model : models) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      StateGroup state = lively_state(model, 1, dtype), alone = lively_state(model, 1, dtype);
      const Divided all(model, dtype);
      const auto [u, dy] = there_and_back(model, 1, state, all, 0, 48, {24, all.lengths});
      i64 begin = 0;
      const double tolerance = dtype == at::kDouble ? 1e-12 : 2e-4;
      for (const i64 length : all.lengths) {
        const auto [own_u, own_dy] = there_and_back(model, 1, alone, all, begin, length, length);
        const auto distance = [&](const at::Tensor& a, const at::Tensor& b) {
          return ((a.narrow(0, begin, length) - b).abs().max() / b.abs().max()).item<double>();
        };
        EXPECT_LT(distance(u, own_u), tolerance) << model.name << " " << begin;
        EXPECT_LT(distance(dy, own_dy), tolerance) << model.name << " " << begin;
        begin += length;
      }
      for (std::size_t i = 0; i < state.grads.size(); ++i) {
        EXPECT_LT(((state.grads[i] - alone.grads[i]).abs().max() / alone.grads[i].abs().max()).item<double>(),
                  tolerance)
            << model.name << " " << i;
      }
      // Undivided sequences are something else.
      const auto [packed, unused] = there_and_back(model, 1, alone, all, 0, 48, 24);
      EXPECT_GT((packed - u).abs().max().item<double>(), 1e-6) << model.name;
    }
  }
}

TEST(AttentionPart, CountsAreOfTheChoices) {
  const ModelConfig model = tiny_deepseek_v2();
  const AttentionOutput out =
      attention_forward(model, 1, lively_state(model, 1, at::kFloat), wave({15, 16}, 0.77, at::kFloat), 5);
  for (i64 b = 0; b < 3; ++b) {
    for (i64 e = 0; e < 8; ++e) {
      EXPECT_EQ(out.counts_BE[b][e].item<i64>(),
                out.topk_TK.slice(0, 5 * b, 5 * b + 5).eq(e).sum().item<i64>());
    }
  }
}

TEST(AttentionPart, BackwardUsesTheSavedChoice) {
  const ModelConfig model = tiny_mixtral();
  StateGroup state = lively_state(model, 0, at::kDouble);
  const at::Tensor y = wave({6, 16}, 0.77), zero = at::zeros_like(y);
  const AttentionOutput out = attention_forward(model, 0, state, y, 6);
  AttentionBackwardInput input{
      y, zero, (out.topk_TK + 1).remainder(4), zero, at::ones_like(out.weights_TK), {}, nullptr};
  input.dweights_TK.select(1, 1).zero_();
  attention_backward(model, 0, state, input, 6);
  // Weights of another choice are other functions of the router: compare with the gradient for the real
  // choice.
  const at::Tensor other = state.grad(Weight::kRouter).clone();
  state.zero_grads();
  input.topk_TK = out.topk_TK;
  attention_backward(model, 0, state, input, 6);
  EXPECT_GT(deviation(other, state.grad(Weight::kRouter)), 0.1);
}

TEST(AttentionPart, MissingGradientsAreZeros) {
  const ModelConfig model = tiny_deepseek_v3();
  StateGroup state = lively_state(model, 1, at::kDouble);
  const at::Tensor y = wave({6, 16}, 0.77), du = wave({6, 16}, 0.31);
  const AttentionOutput out = attention_forward(model, 1, state, y, 6);
  const at::Tensor zero = at::zeros_like(y);
  const at::Tensor a =
      attention_backward(model, 1, state,
                         {y, du, out.topk_TK, zero, at::zeros_like(out.weights_TK), {}, nullptr}, 6)
          .dy_TD;
  const at::Tensor b =
      attention_backward(model, 1, state, {y, du, out.topk_TK, {}, {}, {}, nullptr}, 6).dy_TD;
  EXPECT_LE(deviation(a, b), 1e-14);
}

TEST(AttentionPart, AuxLossIsTheBalanceTimesTheProbabilities) {
  const ModelConfig model = tiny_mixtral();
  StateGroup state = lively_state(model, 0, at::kDouble);
  const at::Tensor y = wave({8, 16}, 0.77), zero = at::zeros_like(y);
  const AttentionOutput out = attention_forward(model, 0, state, y, 4);
  const at::Tensor probabilities = at::softmax(at::mm(out.x_TD, state.value(Weight::kRouter).t()), -1);
  const at::Tensor balance = wave({2, 4}, 1.9);
  const AttentionGradient got =
      attention_backward(model, 0, state, {y, zero, out.topk_TK, {}, {}, balance, nullptr}, 4);
  EXPECT_LE(deviation(got.aux_loss, (probabilities.view({2, 4, 4}) * balance.unsqueeze(1)).sum()), 1e-12);
  EXPECT_GT(got.dy_TD.abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace hetermoe::testing
