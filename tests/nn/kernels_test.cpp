#include "hetermoe/nn/kernels.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "tests/nn/compare.h"

namespace hetermoe::testing {
namespace {

at::Tensor wave(at::IntArrayRef shape, double scale, double step, at::ScalarType dtype = at::kFloat) {
  const i64 count = c10::multiply_integers(shape);
  return at::arange(count, at::kDouble).mul(step).add(0.2).sin().mul(scale).view(shape).to(dtype);
}

at::Tensor grad_of(const at::Tensor& output, const at::Tensor& input, const at::Tensor& seed) {
  return torch::autograd::grad({output}, {input}, {seed})[0];
}

// Widths that are and are not multiples of the lanes; none, one and many rows.
const std::vector<std::pair<i64, i64>> kShapes = {{0, 16}, {1, 1}, {3, 7}, {5, 16}, {70, 33}, {400, 896}};

TEST(Kernels, FastSwigluEqualsGeneric) {
  for (const auto& [rows, width] : kShapes) {
    const at::Tensor in = wave({rows, 2 * width}, 6, 0.731), weights = wave({rows}, 1, 0.37);
    const at::Tensor dact = wave({rows, width}, 1, 0.913);
    for (const at::Tensor& w : {weights, at::Tensor()}) {
      EXPECT_LE(deviation(swiglu_forward(in, w), swiglu_forward(in, w, Path::kGeneric)), 1e-6);
      const SwigluGradient fast = swiglu_backward(in, w, dact, RecomputeAct::kYes);
      const SwigluGradient slow = swiglu_backward(in, w, dact, RecomputeAct::kYes, Path::kGeneric);
      EXPECT_LE(deviation(fast.dgate_up_C2F, slow.dgate_up_C2F), 1e-6);
      EXPECT_LE(deviation(fast.act_CF, slow.act_CF), 1e-6);
      if (w.defined()) {
        EXPECT_LE(deviation(fast.dweights_C, slow.dweights_C), 1e-5);
      }
      EXPECT_FALSE(swiglu_backward(in, w, dact, RecomputeAct::kNo).act_CF.defined());
    }
  }
}

TEST(Kernels, FastSwigluSurvivesExtremeInputs) {
  const at::Tensor in = at::tensor({-1e4f, -100.f, -88.f, 0.f, 88.f, 1e4f}).view({6, 1});
  const at::Tensor gate_up = at::cat({in, at::ones_like(in)}, 1);
  const at::Tensor got = swiglu_forward(gate_up, at::Tensor());
  EXPECT_TRUE(at::allclose(got, at::silu(in), 1e-6, 1e-30)) << got;
  const SwigluGradient grad = swiglu_backward(gate_up, at::Tensor(), at::ones_like(in), RecomputeAct::kNo);
  EXPECT_TRUE(grad.dgate_up_C2F.isfinite().all().item<bool>());
}

TEST(Kernels, SwigluPassesNansOn) {
  const at::Tensor in = at::full({1, 32}, NAN);
  EXPECT_TRUE(swiglu_forward(in, at::Tensor()).isnan().all().item<bool>());
}

TEST(Kernels, SwigluGradientEqualsAutograd) {
  const at::Tensor in = wave({5, 14}, 2, 0.7, at::kDouble).requires_grad_();
  const at::Tensor weights = wave({5}, 1, 0.9, at::kDouble).requires_grad_();
  const at::Tensor dact = wave({5, 7}, 1, 1.1, at::kDouble);
  const auto halves = in.chunk(2, 1);
  const at::Tensor plain = halves[0] * halves[0].sigmoid() * halves[1] * weights.unsqueeze(1);
  const auto expected = torch::autograd::grad({plain}, {in, weights}, {dact});
  const SwigluGradient got = swiglu_backward(in.detach(), weights.detach(), dact, RecomputeAct::kYes);
  EXPECT_LE(deviation(got.dgate_up_C2F, expected[0]), 1e-12);
  EXPECT_LE(deviation(got.dweights_C, expected[1]), 1e-12);
  EXPECT_LE(deviation(got.act_CF, plain.detach()), 1e-12);
}

TEST(Kernels, FastNormEqualsGeneric) {
  for (const auto& [rows, width] : kShapes) {
    const at::Tensor x = wave({rows, width}, 3, 0.617), weight = wave({width}, 1, 0.3) + 1;
    const at::Tensor dout = wave({rows, width}, 1, 0.411);
    const NormForward fast = rms_norm_forward(x, weight, 1e-5);
    const NormForward slow = rms_norm_forward(x, weight, 1e-5, Path::kGeneric);
    EXPECT_LE(deviation(fast.out, slow.out), 1e-6);
    EXPECT_LE(deviation(fast.rstd, slow.rstd), 1e-6);
    const NormGradient fast_grad = rms_norm_backward(x, weight, fast.rstd, dout);
    const NormGradient slow_grad = rms_norm_backward(x, weight, fast.rstd, dout, Path::kGeneric);
    EXPECT_LE(deviation(fast_grad.dx, slow_grad.dx, 0.1), 1e-5);
    EXPECT_LE(deviation(fast_grad.dweight_D, slow_grad.dweight_D, 1e-3), 1e-5);
  }
}

TEST(Kernels, NormGradientEqualsAutograd) {
  const at::Tensor x = wave({2, 3, 8}, 2, 0.7, at::kDouble).requires_grad_();
  const at::Tensor weight = (wave({8}, 1, 0.9, at::kDouble) + 1).requires_grad_();
  const at::Tensor dout = wave({2, 3, 8}, 1, 1.1, at::kDouble);
  const at::Tensor plain = weight * x * (x.square().mean(-1, true) + 1e-5).rsqrt();
  const auto expected = torch::autograd::grad({plain}, {x, weight}, {dout});
  const at::Tensor mine = rms_norm(x, weight, 1e-5);
  const auto got = torch::autograd::grad({mine}, {x, weight}, {dout});
  EXPECT_LE(deviation(mine.detach(), plain.detach()), 1e-13);
  EXPECT_LE(deviation(got[0], expected[0]), 1e-12);
  EXPECT_LE(deviation(got[1], expected[1]), 1e-12);
}

TEST(Kernels, RopeInPairsIsComplexMultiplication) {
  const i64 seq = 5, dim = 8;
  const double theta = 100;
  const at::Tensor x = wave({2, seq, 3, dim}, 1, 0.77, at::kDouble);
  const RopeTable table = rope_table(seq, dim, theta, x.options());
  const at::Tensor got = rotate(x, table, RopeLayout::kPairs, RopeDirection::kForward);
  const at::Tensor frequency =
      at::exp(at::arange(dim / 2, at::kDouble) * (-2.0 / static_cast<double>(dim) * std::log(theta)));
  const at::Tensor angle = at::arange(seq, at::kDouble).unsqueeze(1) * frequency;
  const at::Tensor turn = at::polar(at::ones_like(angle), angle).unsqueeze(1);
  const at::Tensor expected =
      at::view_as_real(at::view_as_complex(x.reshape({2, seq, 3, dim / 2, 2})) * turn).flatten(3);
  EXPECT_LE(deviation(got, expected), 1e-13);
  // Halves: the same numbers, ordered all first elements, then all second ones.
  const auto to_halves = [&](const at::Tensor& t) {
    return t.unflatten(-1, {dim / 2, 2}).transpose(-1, -2).flatten(-2);
  };
  EXPECT_LE(deviation(rotate(to_halves(x), table, RopeLayout::kHalves, RopeDirection::kForward),
                      to_halves(expected)),
            1e-13);
}

TEST(Kernels, RopeByHand) {
  // Position 1, theta 1e4, dim 4: angles 1 and 0.01. Position 0 stays.
  const at::Tensor x = at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble).view({1, 1, 1, 4}).repeat({1, 2, 1, 1});
  const RopeTable table = rope_table(2, 4, 1e4, x.options());
  const at::Tensor halves = rotate(x, table, RopeLayout::kHalves, RopeDirection::kForward);
  EXPECT_TRUE(at::equal(halves.select(1, 0), x.select(1, 0)));
  const double c = std::cos(1), s = std::sin(1), c2 = std::cos(0.01), s2 = std::sin(0.01);
  EXPECT_LE(deviation(halves.select(1, 1).flatten(),
                      at::tensor({c - 3 * s, 2 * c2 - 4 * s2, 3 * c + s, 4 * c2 + 2 * s2}, at::kDouble)),
            1e-14);
}

TEST(Kernels, FastRopeEqualsFp64AndItsGradientTurnsBack) {
  for (const RopeLayout layout : {RopeLayout::kHalves, RopeLayout::kPairs}) {
    for (const i64 dim : {2, 6, 32, 64}) {
      const at::Tensor x = wave({2, 9, 3, dim}, 1, 0.77, at::kDouble);
      const RopeTable wide = rope_table(9, dim, 1e4, x.options()),
                      narrow = rope_table(9, dim, 1e4, at::kFloat);
      const at::Tensor expected = rotate(x, wide, layout, RopeDirection::kForward);
      EXPECT_LE(deviation(rotate(x.to(at::kFloat), narrow, layout, RopeDirection::kForward), expected), 1e-6);
      // Not contiguous, as a slice of a fused projection is.
      const at::Tensor fused = at::cat({x, x}, -1).to(at::kFloat).slice(-1, 0, dim);
      EXPECT_LE(deviation(rotate(fused, narrow, layout, RopeDirection::kForward), expected), 1e-6);
      EXPECT_LE(deviation(rotate(expected, wide, layout, RopeDirection::kBackward), x), 1e-13);
      const at::Tensor leaf = x.clone().requires_grad_();
      EXPECT_LE(deviation(grad_of(rope(leaf, wide, layout), leaf, expected), x), 1e-13);
    }
  }
}

/// The formula, in fp64. All [B, S, heads, *].
at::Tensor textbook_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  const i64 times = q.size(2) / k.size(2), seq_len = q.size(1);
  const auto heads = [&](const at::Tensor& x) { return x.repeat_interleave(times, 2).transpose(1, 2); };
  at::Tensor scores = at::matmul(q.transpose(1, 2), heads(k).transpose(2, 3)) * scale;
  scores = scores.masked_fill(at::ones({seq_len, seq_len}, at::kBool).triu(1), -INFINITY);
  return at::matmul(scores.softmax(-1), heads(v)).transpose(1, 2);
}

struct AttentionCase {
  i64 sequences, seq_len, heads, kv_heads, dim, v_dim;
  double size = 1;  ///< of q: large scores leave one key
};

/// Sequence lengths around the blocks of 48 queries and 96 keys, widths around the vectors, shared heads.
const std::vector<AttentionCase> kAttentionCases = {
    {2, 1, 2, 2, 8, 8},     {1, 7, 4, 2, 16, 16},       {2, 47, 2, 1, 24, 24},  {1, 49, 4, 4, 32, 32},
    {1, 96, 2, 2, 40, 16},  {1, 97, 6, 2, 48, 8},       {2, 145, 2, 2, 64, 64}, {1, 300, 2, 1, 128, 128},
    {3, 100, 4, 2, 24, 56}, {1, 200, 2, 2, 32, 32, 60}, {2, 40, 4, 2, 10, 6},   {1, 40, 4, 1, 6, 10}};

TEST(Kernels, CausalAttentionEqualsTheTextbook) {
  for (const AttentionCase& c : kAttentionCases) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const double tolerance = dtype == at::kFloat ? 4e-6 * std::max(1.0, c.size / 10) : 1e-11;
      std::vector<at::Tensor> in = {wave({c.sequences, c.seq_len, c.heads, c.dim}, c.size, 0.37, dtype),
                                    wave({c.sequences, c.seq_len, c.kv_heads, c.dim}, 1, 0.73, dtype),
                                    wave({c.sequences, c.seq_len, c.kv_heads, c.v_dim}, 1, 0.59, dtype)};
      std::vector<at::Tensor> wide;
      for (at::Tensor& x : in) {
        wide.push_back(x.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).requires_grad_());
        x.requires_grad_();
      }
      const at::Tensor expected = textbook_attention(wide[0], wide[1], wide[2], 0.4);
      const at::Tensor got = causal_attention(in[0], in[1], in[2], 0.4);
      const std::string name = fmt::format("S {} dim {} {}", c.seq_len, c.dim, c10::toString(dtype));
      EXPECT_LE(deviation(got.detach(), expected.detach()), tolerance) << name;
      const at::Tensor seed = wave(got.sizes(), 1, 0.91, dtype);
      const auto a = torch::autograd::grad({got}, in, {seed}),
                 b = torch::autograd::grad({expected}, wide, {seed.to(at::kDouble)});
      const double floor = b[2].abs().max().item<double>() * 1e-2;  // dq and dk vanish where one key is left
      for (std::size_t i = 0; i < in.size(); ++i)
        EXPECT_LE(deviation(a[i], b[i], floor), 4 * tolerance) << name << " gradient " << i;
    }
  }
}

/// The fused projection, turned where it lies, against the steps one by one.
TEST(Kernels, RotaryAttentionEqualsGenericWithItsGradient) {
  const HeadShape shape{59, 4, 2, 16};
  const at::Tensor qkv = wave({118, 128}, 1, 0.77);
  const RopeTable table = rope_table(59, 16, 1e4, qkv.options());
  for (const RopeLayout layout : {RopeLayout::kHalves, RopeLayout::kPairs}) {
    const at::Tensor a = qkv.clone().requires_grad_(), b = qkv.clone().requires_grad_();
    const at::Tensor fused = rotary_attention(a * 1, shape, table, layout),
                     steps = rotary_attention(b, shape, table, layout, Path::kGeneric);
    EXPECT_LE(deviation(fused.detach(), steps.detach()), 2e-6);
    const at::Tensor seed = wave(fused.sizes(), 1, 0.3);
    EXPECT_LE(deviation(grad_of(fused, a, seed), grad_of(steps, b, seed)), 4e-6);
  }
}

/// A run must not go on with a number that is none.
TEST(Kernels, AttentionPassesNanOn) {
  for (const int part : {0, 1, 2}) {
    std::vector<at::Tensor> in;
    for (int i = 0; i < 3; ++i) in.push_back(wave({1, 120, 2, 16}, 1, 0.3 + i));
    in[static_cast<std::size_t>(part)].select(1, 70).fill_(std::numeric_limits<float>::quiet_NaN());
    const at::Tensor nan = causal_attention(in[0], in[1], in[2], 0.25).isnan();
    if (part == 0) {
      EXPECT_TRUE(nan.select(1, 70).all().item<bool>());
    } else {
      EXPECT_TRUE(nan.slice(1, 70).all().item<bool>()) << part;
    }
  }
}

TEST(Kernels, AttentionDoesNotDependOnTheNumberOfThreads) {
  const at::Tensor qkv = wave({3 * 130, 96}, 1, 0.77);
  const HeadShape shape{130, 4, 1, 16};
  const RopeTable table = rope_table(130, 16, 1e4, qkv.options());
  std::vector<at::Tensor> outputs, gradients;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    const at::Tensor leaf = qkv.clone().requires_grad_();
    const at::Tensor out = rotary_attention(leaf * 1, shape, table, RopeLayout::kHalves);
    outputs.push_back(out.detach());
    gradients.push_back(grad_of(out, leaf, wave(out.sizes(), 1, 0.3)));
    EXPECT_TRUE(at::equal(outputs.back(), outputs[0]));
    EXPECT_TRUE(at::equal(gradients.back(), gradients[0]));
  }
}

TEST(Kernels, SumOfSquares) {
  const at::Tensor x = wave({1003}, 2, 0.7);
  EXPECT_NEAR(sum_of_squares(x.const_data_ptr<float>(), 1003),
              x.to(at::kDouble).square().sum().item<double>(), 1e-9);
  EXPECT_EQ(sum_of_squares(nullptr, 0), 0);
}

}  // namespace
}  // namespace hetermoe::testing
