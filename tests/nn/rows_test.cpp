#include "hetermoe/nn/rows.h"

#include <gtest/gtest.h>

#include "hetermoe/base/types.h"

namespace hetermoe::testing {
namespace {

TEST(Rows, GatherEqualsIndexSelect) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const at::Tensor source = at::arange(5 * 300).view({5, 300}).to(dtype);
    const at::Tensor index = at::tensor({4, 0, 0, 3}, at::kLong).repeat({100});
    EXPECT_TRUE(at::equal(gather_rows(source, index), source.index_select(0, index)));
    EXPECT_TRUE(at::equal(gather_rows(source.t(), index), source.t().index_select(0, index)));
    EXPECT_EQ(gather_rows(source, at::empty({0}, at::kLong)).sizes(), (at::IntArrayRef{0, 300}));
  }
}

TEST(Rows, AddTakesRepeatedRowsInOrderForAnyNumberOfThreads) {
  const i64 rows = 4000, width = 100;
  const at::Tensor index = at::arange(rows, at::kLong).remainder(7);
  const at::Tensor values = at::arange(rows * width, at::kDouble).sin().view({rows, width}).to(at::kFloat);
  at::Tensor got = at::ones({7, width}), expected = at::ones({7, width});
  add_rows_(got, index, values);
  for (i64 r = 0; r < rows; ++r) expected[r % 7] += values[r];
  EXPECT_TRUE(at::equal(got, expected));
}

TEST(Rows, AddCastsToTheTarget) {
  const at::Tensor index = at::tensor({1, 1}, at::kLong);
  at::Tensor wide = at::zeros({2, 3}, at::kDouble), narrow = at::zeros({2, 3}, at::kBFloat16);
  add_rows_(wide, index, at::full({2, 3}, 0.5f));
  add_rows_(narrow, index, at::full({2, 3}, 0.5f));
  EXPECT_TRUE(wide[1].eq(1).all().item<bool>() && wide[0].eq(0).all().item<bool>());
  EXPECT_TRUE(narrow[1].eq(1).all().item<bool>());
  add_rows_(wide, at::empty({0}, at::kLong), at::empty({0, 3}));
}

TEST(Rows, SixteenBitRowsAddUpInFp32) {
  const at::Tensor index = at::arange(640, at::kLong).remainder(10);
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor rows = at::arange(640 * 33, at::kFloat).sin_().view({640, 33}).to(dtype);
    at::Tensor got = at::ones({10, 33}), expected = at::ones({10, 33});
    add_rows_(got, index, rows);
    add_rows_(expected, index, rows.to(at::kFloat));
    EXPECT_TRUE(got.equal(expected));
  }
}

TEST(Rows, PlaceFlat) {
  at::Tensor target = at::zeros({2, 2}, at::kDouble);
  place_flat_(target, at::tensor({3, 0}, at::kLong), at::tensor({5.0, 7.0}));
  EXPECT_TRUE(at::equal(target, at::tensor({7.0, 0.0, 0.0, 5.0}, at::kDouble).view({2, 2})));
}

}  // namespace
}  // namespace hetermoe::testing
