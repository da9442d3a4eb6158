#pragma once
#include "hetermoe/nn/experts.h"
#include "tests/nn/compare.h"
#include "tests/nn/tiny_models.h"
#include "tests/nn/wave.h"

namespace hetermoe::testing {

struct ExpertCase {
  ExpertSlab slab;
  CopyGroups groups;
  at::Tensor rows, weights, dout;
};

/// Experts 0 and 2 of five get nothing, 1 most of the copies.
inline ExpertCase make_uneven_case(const at::TensorOptions& options) {
  ModelConfig model = tiny_mixtral();
  model.expert_hidden = 24, model.num_experts = 5;
  ExpertCase c;
  c.slab = make_expert_slab(model, 0, {0, 1, 2, 3, 4}, options);
  c.slab.gate_up = wave(c.slab.gate_up.sizes(), 0.71).to(options);
  c.slab.down = wave(c.slab.down.sizes(), 0.53).to(options);
  const i64 count = 41, copies = 2 * count;
  const at::Tensor row = at::arange(copies, at::kLong).remainder(count);
  const at::Tensor expert = at::where(row < 30, 1, row.remainder(2) + 3);
  c.groups = group_copies({{count, row, expert}}, c.slab.slot_of, 5);
  c.rows = wave({count, 16}, 0.9).to(options);
  c.weights = wave({copies}, 1.3).to(options.dtype(at::kFloat));
  c.dout = wave({count, 16}, 1.1).to(options);
  return c;
}

/// Forward and backward pass of an uneven case, with and without what forward keeps.
inline void expect_one_kernel_equals_each(const at::TensorOptions& options, double tolerance) {
  ExpertCase each = make_uneven_case(options), grouped = make_uneven_case(options);
  ExpertsSaved each_saved, grouped_saved;
  const at::Tensor expected =
      experts_forward(each.slab, each.rows, each.groups, each.weights, &each_saved, ExpertProducts::kEach);
  const at::Tensor got = experts_forward(grouped.slab, grouped.rows, grouped.groups, grouped.weights,
                                         &grouped_saved, ExpertProducts::kGrouped);
  EXPECT_LE(deviation(got, expected), tolerance);
  for (const bool keeps : {false, true}) {
    const auto backward = [keeps](ExpertCase& c, ExpertsSaved& saved, ExpertProducts products) {
      c.slab.gate_up_grad.fill_(2);  // gradients are added to what is there
      c.slab.down_grad.fill_(3);
      return experts_backward(c.slab, c.rows, c.groups, c.weights, keeps ? &saved : nullptr, c.dout,
                              products);
    };
    const ExpertsGradient a = backward(each, each_saved, ExpertProducts::kEach);
    const ExpertsGradient b = backward(grouped, grouped_saved, ExpertProducts::kGrouped);
    EXPECT_LE(deviation(b.drows_RD, a.drows_RD), tolerance);
    EXPECT_LE(deviation(b.dweights_C, a.dweights_C), tolerance);
    EXPECT_LE(deviation(grouped.slab.gate_up_grad - 2, each.slab.gate_up_grad - 2), tolerance);
    EXPECT_LE(deviation(grouped.slab.down_grad - 3, each.slab.down_grad - 3), tolerance);
    EXPECT_GT((each.slab.down_grad - 3).abs().max().item<double>(), 1);
    for (const i64 empty : {0, 2})
      EXPECT_EQ((grouped.slab.down_grad[empty] - 3).abs().max().item<double>(), 0);
  }
}

}  // namespace hetermoe::testing
