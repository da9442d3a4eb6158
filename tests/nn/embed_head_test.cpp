#include "hetermoe/nn/embed_head.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/nn/compare.h"
#include "tests/nn/tiny_models.h"
#include "tests/nn/wave.h"

namespace hetermoe::testing {
namespace {

StateGroup lively_head(at::ScalarType dtype) {
  StateGroup state = make_head_state(tiny_mixtral(), dtype);
  state.values[0].copy_(1 + 0.3 * wave({16}, 0.9));
  state.values[1].copy_(wave({37, 16}, 0.61));
  return state;
}

const at::Tensor kTargets = at::tensor({3, 36, -100, 0, 5, -100, 7}, at::kLong);

TEST(Head, LossAndGradientsEqualAutogradInAnyChunks) {
  const ModelConfig model = tiny_mixtral();
  const at::Tensor y = wave({7, 16}, 0.77).requires_grad_();
  const StateGroup state = lively_head(at::kDouble);
  const at::Tensor norm = state.values[0].clone().requires_grad_(),
                   out = state.values[1].clone().requires_grad_();
  const at::Tensor h = norm * y * (y.square().mean(-1, true) + model.norm_eps).rsqrt();
  const i64 count = 11;  // more targets elsewhere in the step
  const at::Tensor loss =
      at::cross_entropy_loss(h.mm(out.t()), kTargets, {}, at::Reduction::Sum, -100) / count;
  const auto grads = torch::autograd::grad({loss}, {y, norm, out});
  for (const i64 chunk : {1, 3, 7, 100}) {
    StateGroup mine = lively_head(at::kDouble);
    mine.grads[1].fill_(2);
    const HeadResult got = head_forward_backward(model, mine, y.detach(), kTargets, count, {chunk});
    EXPECT_LE(deviation(got.loss, loss.detach()), 1e-13);
    EXPECT_LE(deviation(got.dy_TD, grads[0]), 1e-12);
    EXPECT_LE(deviation(mine.grads[0], grads[1]), 1e-12);
    EXPECT_LE(deviation(mine.grads[1] - 2, grads[2]), 1e-12);
    EXPECT_LE(deviation(head_loss_sum(model, mine, y.detach(), kTargets, {chunk}) / count, loss.detach()),
              1e-13);
  }
}

TEST(Head, NoTokensAndNoTargets) {
  const ModelConfig model = tiny_mixtral();
  StateGroup state = lively_head(at::kFloat);
  HeadResult got = head_forward_backward(model, state, at::empty({0, 16}), at::empty({0}, at::kLong), 5);
  EXPECT_EQ(got.loss.item<double>(), 0);
  EXPECT_EQ(got.dy_TD.sizes(), (at::IntArrayRef{0, 16}));
  const at::Tensor y = wave({2, 16}, 0.7).to(at::kFloat);
  got = head_forward_backward(model, state, y, at::full({2}, kIgnoreTarget, at::kLong), 0);
  EXPECT_EQ(got.loss.item<double>(), 0);
  EXPECT_EQ(got.dy_TD.abs().sum().item<float>(), 0);
  for (const at::Tensor& g : state.grads) EXPECT_EQ(g.abs().sum().item<float>(), 0);
}

TEST(Embed, LooksUpAndAddsRepeatedTokens) {
  StateGroup state = make_embed_state(tiny_mixtral(), at::kFloat);
  state.values[0].copy_(wave({37, 16}, 0.3));
  const at::Tensor tokens = at::tensor({4, 36, 4}, at::kLong);
  EXPECT_TRUE(at::equal(embed_forward(state, tokens), state.values[0].index_select(0, tokens)));
  embed_backward(state, tokens, at::ones({3, 16}));
  EXPECT_TRUE(state.grads[0][4].eq(2).all().item<bool>());
  EXPECT_TRUE(state.grads[0][36].eq(1).all().item<bool>());
  EXPECT_EQ(state.grads[0].sum().item<float>(), 48);
  EXPECT_ANY_THROW(embed_forward(state, at::tensor({37}, at::kLong)));
}

}  // namespace
}  // namespace hetermoe::testing
