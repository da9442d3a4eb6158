#include "hetermoe/nn/experts.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "hetermoe/model/op_cost.h"
#include "hetermoe/nn/cpu_bf16_product.h"
#include "hetermoe/nn/expert_slots.h"
#include "tests/nn/expert_case.h"
#include "tests/nn/peak_of.h"
#include "tests/nn/with_threads.h"

namespace hetermoe::testing {
namespace {

/// Experts 1, 2, 3 here (2 gets nothing), rows from two sources; row 3 has no copy.
ExpertCase make_case() {
  ExpertCase c;
  c.slab = make_expert_slab(tiny_mixtral(), 0, {3, 2, 1}, at::kDouble);
  c.slab.gate_up = wave(c.slab.gate_up.sizes(), 0.71);
  c.slab.down = wave(c.slab.down.sizes(), 0.53);
  const at::Tensor row_a = at::tensor({0, 1, 1}, at::kLong), expert_a = at::tensor({1, 1, 3}, at::kLong);
  const at::Tensor row_b = at::tensor({0, 2, 0}, at::kLong), expert_b = at::tensor({1, 1, 3}, at::kLong);
  c.groups = group_copies({{2, row_a, expert_a}, {3, row_b, expert_b}}, c.slab.slot_of, 3);
  c.rows = wave({5, 16}, 0.9);
  c.weights = wave({6}, 1.3);
  c.dout = wave({5, 16}, 1.1);
  return c;
}

/// The definition, copy by copy.
at::Tensor plain_experts(const at::Tensor& gate_up, const at::Tensor& down, const CopyGroups& groups,
                         const at::Tensor& rows, const at::Tensor& weights) {
  at::Tensor out = at::zeros_like(rows);
  const i64 width = down.size(2);
  for (i64 c = 0; c < groups.num_copies(); ++c) {
    i64 slot = 0;
    while (groups.offsets[static_cast<std::size_t>(slot) + 1] <= c) ++slot;
    const i64 row = groups.row_C[c].item<i64>();
    const at::Tensor gate = gate_up[slot].slice(0, 0, width).mv(rows[row]);
    const at::Tensor up = gate_up[slot].slice(0, width).mv(rows[row]);
    const at::Tensor y = down[slot].mv(gate / (1 + (-gate).exp()) * up) * weights[c];
    out = out.index_add(0, at::full({1}, row, at::kLong), y.unsqueeze(0));
  }
  return out;
}

TEST(Experts, ForwardAndBackwardEqualAutogradOfTheDefinition) {
  ExpertCase c = make_case();
  const at::Tensor gate_up = c.slab.gate_up.clone().requires_grad_(),
                   down = c.slab.down.clone().requires_grad_();
  const at::Tensor rows = c.rows.clone().requires_grad_(), weights = c.weights.clone().requires_grad_();
  const at::Tensor expected = plain_experts(gate_up, down, c.groups, rows, weights);
  const auto grads = torch::autograd::grad({expected}, {gate_up, down, rows, weights}, {c.dout});
  ExpertsSaved saved;
  EXPECT_LE(deviation(experts_forward(c.slab, c.rows, c.groups, c.weights, &saved), expected.detach()),
            1e-12);
  for (ExpertsSaved* kept : {static_cast<ExpertsSaved*>(nullptr), &saved}) {
    c.slab.gate_up_grad.fill_(2);  // gradients are added to what is there
    c.slab.down_grad.fill_(3);
    const ExpertsGradient got = experts_backward(c.slab, c.rows, c.groups, c.weights, kept, c.dout);
    EXPECT_LE(deviation(c.slab.gate_up_grad - 2, grads[0]), 1e-12);
    EXPECT_LE(deviation(c.slab.down_grad - 3, grads[1]), 1e-12);
    EXPECT_LE(deviation(got.drows_RD, grads[2]), 1e-12);
    EXPECT_LE(deviation(got.dweights_C, grads[3]), 1e-12);
  }
  EXPECT_EQ(grads[0][1].abs().max().item<double>(), 0);  // the expert without tokens
}

/// Copies of eight slots, the first with most of them.
std::vector<Chunk> uneven_slots() {
  std::vector<Chunk> slots;
  i64 begin = 0;
  for (const i64 count : {1508, 754, 502, 377, 301, 251, 215, 188}) {
    slots.push_back({std::ssize(slots), begin, count});
    begin += count;
  }
  return slots;
}

TEST(Experts, TasksGetSmallerOnlyWhereThreadsWouldWaitForEachOther) {
  EXPECT_EQ(task_limit(uneven_slots(), 256, 1), 256);
  EXPECT_EQ(task_limit(uneven_slots(), 256, 2), 256);
  EXPECT_EQ(task_limit(uneven_slots(), 256, 8), 192);
  EXPECT_EQ(task_limit(uneven_slots(), 256, 16), 96);
  EXPECT_EQ(task_limit({{0, 0, 256}, {1, 256, 256}}, 256, 2), 256) << "even as it is";
  EXPECT_EQ(task_limit({}, 256, 16), 256);
}

TEST(Experts, InFp32TasksOfAnySizeGiveTheSameBits) {
  ModelConfig model = tiny_mixtral();
  model.hidden = 64, model.expert_hidden = 96, model.num_experts = 8;
  std::vector<at::Tensor> experts;
  for (const Chunk& slot : uneven_slots()) experts.push_back(at::full({slot.count}, slot.slot, at::kLong));
  const at::Tensor expert = at::cat(experts), row = at::arange(expert.numel(), at::kLong);
  std::vector<std::vector<at::Tensor>> results;
  for (const int threads : {1, 8, 16}) {
    ExpertCase c;
    c.slab = make_expert_slab(model, 0, {0, 1, 2, 3, 4, 5, 6, 7}, at::kFloat);
    c.slab.gate_up = wave(c.slab.gate_up.sizes(), 0.71).to(at::kFloat);
    c.slab.down = wave(c.slab.down.sizes(), 0.53).to(at::kFloat);
    c.groups = group_copies({{expert.numel(), row, expert}}, c.slab.slot_of, 8);
    c.rows = wave({expert.numel(), 64}, 0.9).to(at::kFloat);
    c.dout = wave({expert.numel(), 64}, 1.1).to(at::kFloat);
    c.weights = wave({expert.numel()}, 1.3).to(at::kFloat);
    results.push_back(with_threads(threads, [&] {
      const at::Tensor out = experts_forward(c.slab, c.rows, c.groups, c.weights);
      const ExpertsGradient grad = experts_backward(c.slab, c.rows, c.groups, c.weights, nullptr, c.dout);
      return std::vector<at::Tensor>{out, grad.drows_RD, grad.dweights_C};
    }));
  }
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_TRUE(results[0][i].equal(results[1][i])) << "result " << i;
    EXPECT_TRUE(results[0][i].equal(results[2][i])) << "result " << i;
  }
}

TEST(Experts, NoRowsAndNoExperts) {
  ExpertSlab none = make_expert_slab(tiny_mixtral(), 0, {}, at::kFloat);
  ExpertSlab some = make_expert_slab(tiny_mixtral(), 0, {0, 1}, at::kFloat);
  for (ExpertSlab* slab : {&none, &some}) {
    const CopyGroups groups = group_copies({}, slab->slot_of, slab->num_slots());
    const at::Tensor rows = at::empty({0, 16}), weights = at::empty({0});
    EXPECT_EQ(experts_forward(*slab, rows, groups, weights).sizes(), rows.sizes());
    const ExpertsGradient grad = experts_backward(*slab, rows, groups, weights, nullptr, rows);
    EXPECT_EQ(grad.drows_RD.sizes(), rows.sizes());
    EXPECT_EQ(grad.dweights_C.numel(), 0);
    EXPECT_EQ(slab->down_grad.abs().sum().item<float>(), 0);
  }
}

TEST(Experts, Fp32AndBf16StayNearFp64) {
  ExpertCase c = make_case();
  const at::Tensor expected = experts_forward(c.slab, c.rows, c.groups, c.weights);
  const ExpertsGradient grad = experts_backward(c.slab, c.rows, c.groups, c.weights, nullptr, c.dout);
  for (const auto& [dtype, tolerance] : {std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 0.05)}) {
    ExpertSlab slab = make_expert_slab(tiny_mixtral(), 0, {3, 2, 1}, dtype);
    slab.gate_up = c.slab.gate_up.to(dtype);
    slab.down = c.slab.down.to(dtype);
    const at::Tensor rows = c.rows.to(dtype), weights = c.weights.to(at::kFloat), dout = c.dout.to(dtype);
    EXPECT_LE(deviation(experts_forward(slab, rows, c.groups, weights), expected), tolerance);
    const ExpertsGradient got = experts_backward(slab, rows, c.groups, weights, nullptr, dout);
    EXPECT_EQ(got.drows_RD.scalar_type(), dtype);
    EXPECT_EQ(got.dweights_C.scalar_type(), at::kFloat);
    EXPECT_LE(deviation(got.drows_RD, grad.drows_RD), tolerance);
    EXPECT_LE(deviation(got.dweights_C, grad.dweights_C), tolerance);
    EXPECT_LE(deviation(slab.gate_up_grad, c.slab.gate_up_grad), tolerance);
  }
}

TEST(Experts, ManyCopiesOfOneExpertAreWorkedOffInChunks) {
  // More copies than a chunk holds; each row once with weight 1: the slab is an ordinary MLP.
  ModelConfig model = tiny_mixtral();
  model.hidden = 8, model.expert_hidden = 1100;
  ExpertSlab slab = make_expert_slab(model, 0, {0, 1}, at::kDouble);
  slab.gate_up = wave(slab.gate_up.sizes(), 0.71);
  slab.down = wave(slab.down.sizes(), 0.53);
  const i64 count = 700;
  const at::Tensor row = at::arange(count, at::kLong), expert = at::ones({count}, at::kLong);
  const CopyGroups groups = group_copies({{count, row, expert}}, slab.slot_of, 2);
  const at::Tensor rows = wave({count, 8}, 0.9).requires_grad_(), ones = at::ones({count}, at::kDouble);
  const at::Tensor gate_up = slab.gate_up[1].clone().requires_grad_(),
                   down = slab.down[1].clone().requires_grad_();
  const auto halves = rows.mm(gate_up.t()).chunk(2, 1);
  const at::Tensor expected = (at::silu(halves[0]) * halves[1]).mm(down.t());
  const at::Tensor dout = wave({count, 8}, 1.1);
  const auto grads = torch::autograd::grad({expected}, {rows, gate_up, down}, {dout});
  ExpertsSaved saved;
  EXPECT_LE(deviation(experts_forward(slab, rows.detach(), groups, ones, &saved), expected.detach()), 1e-12);
  const ExpertsGradient got = experts_backward(slab, rows.detach(), groups, ones, &saved, dout);
  EXPECT_LE(deviation(got.drows_RD, grads[0]), 1e-12);
  EXPECT_LE(deviation(slab.gate_up_grad[1], grads[1]), 1e-12);
  EXPECT_LE(deviation(slab.down_grad[1], grads[2]), 1e-12);
}

TEST(Experts, OneKernelForAllEqualsOneAfterAnother) {
  expect_one_kernel_equals_each(at::kFloat, 1e-5);
  expect_one_kernel_equals_each(at::kBFloat16, 0.02);
}

/// 16-bit copies whose activations are larger than the rest of what backward holds.
TEST(Experts, BackwardNeedsWhatTheMemoryModelSays) {
  if (bf16_unit() == Bf16Unit::kNone) GTEST_SKIP() << "this processor has no products in bf16";
  ModelConfig model = tiny_mixtral();
  model.hidden = 32, model.expert_hidden = 1024;
  const at::TensorOptions options = at::kBFloat16;
  ExpertSlab slab = make_expert_slab(model, 0, {0, 1}, options);
  const i64 count = 4096;
  const at::Tensor row = at::arange(count, at::kLong);
  const CopyGroups groups = group_copies({{count, row, row.remainder(2)}}, slab.slot_of, 2);
  const at::Tensor rows = at::ones({count, 32}, options), weights = at::ones({count});
  const Bytes copies = count, indices = copies * 8;
  const Bytes predicted = copies * (expert_work_bytes(model, 2) + 3 * row_bytes(model, 2));
  const Bytes result = copies * row_bytes(model, 2) + copies * 4;  // a buffer of the step, and no workspace
  const Bytes gradients = static_cast<Bytes>(slab.gate_up_grad.nbytes() + slab.down_grad.nbytes());
  for (const ExpertProducts products : {ExpertProducts::kGrouped, ExpertProducts::kEach}) {
    const Bytes peak =
        peak_of([&] { experts_backward(slab, rows, groups, weights, nullptr, rows, products); });
    EXPECT_LE(peak, 1.05 * (predicted + result + indices + gradients));
  }
}

TEST(Experts, OnACpuOneIsDoneAfterAnother) {
  EXPECT_EQ(expert_products(make_uneven_case(at::kBFloat16).slab), ExpertProducts::kEach);
}

TEST(Experts, GoAsTheirSlabSaysWhereTheyCan) {
  const auto products = [](at::ScalarType dtype, i64 width) {
    ModelConfig model = tiny_mixtral();
    model.expert_hidden = width;
    StorageOptions options(dtype);
    options.expert_products = ExpertProducts::kGrouped;
    return expert_products(make_expert_slab(model, 0, {0, 1}, options));
  };
  EXPECT_EQ(products(at::kBFloat16, 16), ExpertProducts::kGrouped);
  EXPECT_EQ(products(at::kBFloat16, 12), ExpertProducts::kEach);  // rows do not begin at 16 bytes
  EXPECT_EQ(products(at::kFloat, 16), ExpertProducts::kEach);
}

/// Backward of an uneven case: recomputed inside, or from what is made again, with gradients of weights at
/// once or left.
std::vector<at::Tensor> backward_of(const at::TensorOptions& options, bool again, bool leaves,
                                    ExpertProducts products) {
  ExpertCase c = make_uneven_case(options);
  c.slab.gate_up_grad.fill_(2), c.slab.down_grad.fill_(3);
  ExpertsSaved saved;
  if (again) saved = experts_recompute(c.slab, c.rows, c.groups, products);
  ExpertsLeft left;
  const ExpertsGradient gradient =
      experts_backward(c.slab, c.rows, c.groups, c.weights, again ? &saved : nullptr, c.dout, products,
                       leaves ? &left : nullptr);
  if (leaves) {
    EXPECT_TRUE(c.slab.gate_up_grad.eq(2).all().item<bool>() && c.slab.down_grad.eq(3).all().item<bool>());
    experts_weight_gradients(c.slab, c.rows, c.groups, left, c.dout, products);
  }
  return {gradient.drows_RD, gradient.dweights_C, c.slab.gate_up_grad, c.slab.down_grad};
}

TEST(Experts, RecomputedAheadAndWithGradientsOfWeightsLeftTheBitsAreTheSame) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const ExpertProducts products : {ExpertProducts::kEach, ExpertProducts::kAuto}) {
      const std::vector<at::Tensor> expected = backward_of(dtype, false, false, products);
      for (const auto& [again, leaves] :
           {std::pair(false, true), std::pair(true, false), std::pair(true, true)}) {
        const std::vector<at::Tensor> got = backward_of(dtype, again, leaves, products);
        for (std::size_t i = 0; i < expected.size(); ++i)
          EXPECT_TRUE(at::equal(got[i], expected[i])) << dtype << " " << again << leaves << " tensor " << i;
      }
    }
  }
}

}  // namespace
}  // namespace hetermoe::testing
