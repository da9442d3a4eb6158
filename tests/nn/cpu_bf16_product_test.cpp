#include "hetermoe/nn/cpu_bf16_product.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/nn/compare.h"
#include "tests/nn/with_threads.h"

namespace hetermoe::testing {
namespace {

struct Shape {
  i64 rows, depth, cols;
};

/// Around the tiles (16 lines, 32 numbers), around two of them, beyond a block of packed numbers; none at
/// all.
const std::vector<Shape> kProducts = {{1, 1, 1},        {1, 2, 3},    {15, 31, 17},  {16, 32, 16},
                                      {33, 65, 31},     {48, 7, 100}, {130, 96, 70}, {7, 3000, 45},
                                      {300, 1400, 301}, {0, 5, 3},    {5, 3, 0},     {4, 0, 6}};

class Bf16Products : public ::testing::TestWithParam<Bf16Unit> {
 protected:
  void SetUp() override {
    if (bf16_unit() < GetParam()) GTEST_SKIP() << "this processor has no such instructions";
    at::manual_seed(1);
  }
  at::Tensor run(const at::Tensor& a, const at::Tensor& b, ProductOutput output);
};

Bf16Matrix matrix(const at::Tensor& x) {
  return {x.const_data_ptr(), x.size(0), x.size(1), x.stride(0), x.stride(1)};
}

/// [rows, cols] inside of a larger matrix, its rows or its columns side by side.
at::Tensor operand(i64 rows, i64 cols, bool transposed) {
  const at::Tensor whole =
      at::randn(transposed ? at::IntArrayRef{cols + 2, rows + 3} : at::IntArrayRef{rows + 2, cols + 3})
          .to(at::kBFloat16);
  const at::Tensor part = whole.narrow(0, 1, transposed ? cols : rows).narrow(1, 2, transposed ? rows : cols);
  return transposed ? part.t() : part;
}

at::Tensor Bf16Products::run(const at::Tensor& a, const at::Tensor& b, ProductOutput output) {
  const at::ScalarType dtype = output == ProductOutput::kBf16 ? at::kBFloat16 : at::kFloat;
  // A frame of ones shows what was written beside the result.
  const at::Tensor whole = at::ones({a.size(0) + 2, b.size(1) + 4}, dtype);
  const at::Tensor out = whole.narrow(0, 1, a.size(0)).narrow(1, 1, b.size(1));
  bf16_product(matrix(a), matrix(b), out.mutable_data_ptr(), out.stride(0), output, GetParam());
  const at::Tensor result = out.clone();
  out.fill_(1);
  EXPECT_TRUE(whole.eq(1).all().item<bool>());
  return result;
}

TEST_P(Bf16Products, EqualFp64WithEveryLayoutAndOutput) {
  for (const Shape& s : kProducts) {
    for (const int layout : {0, 1, 2, 3}) {
      const at::Tensor a = operand(s.rows, s.depth, layout % 2 == 1),
                       b = operand(s.depth, s.cols, layout > 1);
      const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
      const std::string name = fmt::format("{} x {} x {}, layout {}", s.rows, s.depth, s.cols, layout);
      const at::Tensor got = run(a, b, ProductOutput::kFloat);
      EXPECT_LE(deviation(got, exact, 1), 1e-5) << name;
      EXPECT_TRUE(run(a, b, ProductOutput::kBf16).equal(got.to(at::kBFloat16))) << name;
      EXPECT_TRUE(run(a, b, ProductOutput::kAddFloat).equal(got + 1)) << name;
    }
  }
}

TEST_P(Bf16Products, NeitherThreadsNorOtherRowsChangeABit) {
  const at::Tensor a = operand(700, 517, false), b = operand(517, 389, true);
  const at::Tensor one = with_threads(1, [&] { return run(a, b, ProductOutput::kFloat); });
  for (const int threads : {2, 3, 7})
    EXPECT_TRUE(one.equal(with_threads(threads, [&] { return run(a, b, ProductOutput::kFloat); })))
        << threads;
  EXPECT_TRUE(one.narrow(0, 100, 77).equal(run(a.narrow(0, 100, 77), b, ProductOutput::kFloat)));
}

TEST_P(Bf16Products, PassNansAndInfinitiesOn) {
  at::Tensor a = operand(40, 64, false), b = at::ones({64, 40}, at::kBFloat16);
  a[3][5] = NAN;
  a[4][5] = INFINITY;
  const at::Tensor got = run(a, b, ProductOutput::kBf16);
  EXPECT_TRUE(got[3].isnan().all().item<bool>() && got[4].isinf().all().item<bool>());
  EXPECT_TRUE(got[5].isfinite().all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Units, Bf16Products, ::testing::Values(Bf16Unit::kVectors, Bf16Unit::kTiles),
                         [](const auto& info) {
                           return info.param == Bf16Unit::kTiles ? std::string("Tiles")
                                                                 : std::string("Vectors");
                         });

}  // namespace
}  // namespace hetermoe::testing
