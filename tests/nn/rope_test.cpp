#include "hetermoe/nn/rope.h"

#include <gtest/gtest.h>

#include "tests/nn/kernel_cases.h"

namespace hetermoe::testing {
namespace {

TEST(Rope, InPairsIsComplexMultiplication) {
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

TEST(Rope, ByHand) {
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

TEST(Rope, ElementsBeyondTheTableStay) {
  for (const RopeLayout layout : {RopeLayout::kHalves, RopeLayout::kPairs}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      const at::Tensor x = wave({2, 5, 3, 8}, 1, 0.77, dtype), d = wave({2, 5, 3, 8}, 1, 0.41, dtype);
      const RopeTable table = rope_table(5, 6, 1e4, dtype);
      const at::Tensor leaf = x.clone().requires_grad_();
      const at::Tensor got = rope(leaf, table, layout);
      EXPECT_TRUE(at::equal(got.narrow(-1, 6, 2), x.narrow(-1, 6, 2)));
      EXPECT_TRUE(at::equal(got.narrow(-1, 0, 6),
                            rotate(x.narrow(-1, 0, 6), table, layout, RopeDirection::kForward)));
      const at::Tensor gradient = grad_of(got, leaf, d);
      EXPECT_TRUE(at::equal(gradient.narrow(-1, 6, 2), d.narrow(-1, 6, 2)));
      EXPECT_TRUE(at::equal(gradient.narrow(-1, 0, 6),
                            rotate(d.narrow(-1, 0, 6), table, layout, RopeDirection::kBackward)));
    }
  }
}

TEST(Rope, FastEqualsFp64AndItsGradientTurnsBack) {
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

}  // namespace
}  // namespace hetermoe::testing
