#include "hetermoe/nn/causal_attention.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "hetermoe/kernels/host_kernels.h"
#include "tests/nn/kernel_cases.h"
#include "tests/nn/peak_of.h"
#include "tests/support/launch_count.h"

namespace hetermoe::testing {
namespace {

/// The formula, in fp64. All [B, S, heads, *].
at::Tensor textbook_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                              i64 window = 0) {
  const i64 times = q.size(2) / k.size(2), seq_len = q.size(1);
  const auto heads = [&](const at::Tensor& x) { return x.repeat_interleave(times, 2).transpose(1, 2); };
  at::Tensor scores = at::matmul(q.transpose(1, 2), heads(k).transpose(2, 3)) * scale;
  scores = scores.masked_fill(at::ones({seq_len, seq_len}, at::kBool).triu(1), -INFINITY);
  if (window > 0)
    scores = scores.masked_fill(at::ones({seq_len, seq_len}, at::kBool).tril(-window), -INFINITY);
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

TEST(CausalAttention, EqualsTheTextbook) {
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
      const at::Tensor got = causal_attention(in[0], in[1], in[2], {0.4});
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

TEST(CausalAttention, AWindowHidesWhatIsFurtherBack) {
  for (const auto& [dtype, tolerance] : {std::pair(at::kFloat, 4e-6), std::pair(at::kDouble, 1e-11)}) {
    for (const i64 window : {1, 2, 30, 127, 128, 129, 200, 299, 300, 1000}) {  // blocks of 128 or a window
      std::vector<at::Tensor> in = {wave({2, 300, 4, 16}, 1, 0.37, dtype),
                                    wave({2, 300, 2, 16}, 1, 0.73, dtype),
                                    wave({2, 300, 2, 8}, 1, 0.59, dtype)};
      std::vector<at::Tensor> wide;
      for (at::Tensor& x : in) {
        wide.push_back(x.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).requires_grad_());
        x.requires_grad_();
      }
      const at::Tensor expected = textbook_attention(wide[0], wide[1], wide[2], 0.4, window);
      const at::Tensor got = causal_attention(in[0], in[1], in[2], {0.4, window});
      EXPECT_LE(deviation(got.detach(), expected.detach()), tolerance) << window;
      const at::Tensor seed = wave(got.sizes(), 1, 0.91, dtype);
      const auto a = torch::autograd::grad({got}, in, {seed}),
                 b = torch::autograd::grad({expected}, wide, {seed.to(at::kDouble)});
      const double floor = b[2].abs().max().item<double>() * 0.1;  // a window of one leaves dq and dk at 0
      for (std::size_t i = 0; i < in.size(); ++i)
        EXPECT_LE(deviation(a[i], b[i], floor), 4 * tolerance) << window << " gradient " << i;
    }
  }
}

/// The fused projection, turned where it lies in its first `turned` columns, against the steps one by one.
void expect_rotary_attention_equals_generic(i64 turned) {
  const HeadShape shape{59, 4, 2, 16};
  const at::Tensor qkv = wave({118, 128}, 1, 0.77);
  const RopeTable table = rope_table(59, turned, 1e4, qkv.options());
  for (const RopeLayout layout : {RopeLayout::kHalves, RopeLayout::kPairs}) {
    const at::Tensor a = qkv.clone().requires_grad_(), b = qkv.clone().requires_grad_();
    const at::Tensor fused = rotary_attention(a * 1, shape, table, layout),
                     steps = rotary_attention(b, shape, table, layout, Path::kGeneric);
    EXPECT_LE(deviation(fused.detach(), steps.detach()), 2e-6) << turned;
    const at::Tensor seed = wave(fused.sizes(), 1, 0.3);
    EXPECT_LE(deviation(grad_of(fused, a, seed), grad_of(steps, b, seed)), 4e-6) << turned;
  }
}

TEST(CausalAttention, RotaryAttentionEqualsGenericWithItsGradient) {
  expect_rotary_attention_equals_generic(16);
}

/// As on a GPU: turned where it lies, and by the kernel that shares heads. With some columns that are not
/// turned.
TEST(CausalAttention, RotaryAttentionOfAGpuEqualsGenericWithItsGradient) {
  const kernels::HostKernels on;
  for (const i64 turned : {16, 8}) expect_rotary_attention_equals_generic(turned);
}

/// The projection, with keys and values once for all heads that share them, the output and its log-sums.
TEST(CausalAttention, OfAGpuKeepsTheProjectionAndNoCopies) {
  const kernels::HostKernels on;
  const i64 tokens = 512, heads = 8, kv_heads = 1, dim = 16;
  const HeadShape shape{256, heads, kv_heads, dim};
  // In fp64, for which this CPU has no attention of its own.
  const at::Tensor leaf = wave({tokens, (heads + 2 * kv_heads) * dim}, 1, 0.77, at::kDouble).requires_grad_();
  const RopeTable table = rope_table(256, dim, 1e4, leaf.options());
  at::Tensor out;
  MemoryMeter meter;
  {
    MemoryMeter::Watch watch(meter, 0);
    watch.begin(0);
    out = rotary_attention(leaf * 1, shape, table, RopeLayout::kHalves);
  }
  const Bytes projection = 8.0 * tokens * (heads + 2 * kv_heads) * dim, output = 8.0 * tokens * heads * dim;
  EXPECT_NEAR(meter.of(0, 0).left, projection + output + 8.0 * tokens * heads, 512);
}

struct DocumentsCase {
  i64 heads, kv_heads, dim, v_dim, window;
};

/// All documents in one operator forward and one backward, as of one document after another.
TEST(CausalAttention, DocumentsInOneCallEqualOneAfterAnother) {
  const kernels::HostKernels on;
  const std::vector<i64> documents = {40, 1, 23, 56, 8, 64};  // of two sequences of 64 and one of 64
  for (const DocumentsCase& c : {DocumentsCase{4, 4, 16, 16, 0}, DocumentsCase{6, 2, 24, 24, 0},
                                 DocumentsCase{4, 4, 12, 8, 0}, DocumentsCase{4, 1, 8, 8, 17}}) {
    std::vector<at::Tensor> a, b;
    for (const auto& [heads, dim] :
         {std::pair(c.heads, c.dim), std::pair(c.kv_heads, c.dim), std::pair(c.kv_heads, c.v_dim)}) {
      const at::Tensor x =
          wave({3, 64, heads, dim}, 1, 0.3 + 0.1 * static_cast<double>(a.size()), at::kDouble);
      a.push_back(x.clone().requires_grad_()), b.push_back(x.clone().requires_grad_());
    }
    const AttentionHow how{0.4, c.window, documents};
    const OperatorCount operators;
    OperatorCount::label("at once");
    const at::Tensor at_once = causal_attention(a[0], a[1], a[2], how);
    EXPECT_EQ(operators.counts().at("at once").at("aten::_flash_attention_forward"), 1);
    EXPECT_EQ(operators.counts().at("at once").count("aten::cat"), 0U);
    const at::Tensor each = causal_attention(b[0], b[1], b[2], how, Path::kGeneric);
    EXPECT_LE(deviation(at_once.detach(), each.detach()), 1e-12);
    const at::Tensor seed = wave(each.sizes(), 1, 0.91, at::kDouble);
    const auto da = torch::autograd::grad({at_once}, a, {seed}),
               db = torch::autograd::grad({each}, b, {seed});
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_LE(deviation(da[i], db[i]), 1e-12) << i;
  }
}

/// A run must not go on with a number that is none.
TEST(CausalAttention, PassesNanOn) {
  for (const int part : {0, 1, 2}) {
    std::vector<at::Tensor> in;
    for (int i = 0; i < 3; ++i) in.push_back(wave({1, 120, 2, 16}, 1, 0.3 + i));
    in[static_cast<std::size_t>(part)].select(1, 70).fill_(std::numeric_limits<float>::quiet_NaN());
    const at::Tensor nan = causal_attention(in[0], in[1], in[2], {0.25}).isnan();
    if (part == 0) {
      EXPECT_TRUE(nan.select(1, 70).all().item<bool>());
    } else {
      EXPECT_TRUE(nan.slice(1, 70).all().item<bool>()) << part;
    }
  }
}

TEST(CausalAttention, DoesNotDependOnTheNumberOfThreads) {
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

}  // namespace
}  // namespace hetermoe::testing
