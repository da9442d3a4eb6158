#include "hetermoe/nn/rope.h"

#include "hetermoe/nn/gpu_kernels.h"
#include "tests/kernels/cases.h"

namespace hetermoe::testing {
namespace {

struct Shape {
  i64 sequences, length, heads, dim;
};
const std::vector<Shape> kHeadShapes = {
    {2, 5, 3, 8}, {1, 1, 1, 2}, {0, 4, 2, 6}, {1, 33, 4, 128}, {3, 7, 5, 10}};

/// The rotation in fp64 by complex numbers.
at::Tensor exact(const at::Tensor& x, RopeLayout layout, RopeDirection direction) {
  const i64 half = x.size(3) / 2;
  const at::Tensor wide = x.to(at::kDouble);
  const RopeTable table = rope_table(x.size(1), x.size(3), 1e4, wide.options());
  const bool pairs = layout == RopeLayout::kPairs;
  const at::Tensor split =
      pairs ? wide.unflatten(-1, {half, 2}) : wide.unflatten(-1, {2, half}).transpose(-1, -2);
  const at::Tensor angle =
      at::complex(table.cos, direction == RopeDirection::kForward ? table.sin : -table.sin).unsqueeze(1);
  const at::Tensor turned = at::view_as_real(at::complex(split.select(-1, 0), split.select(-1, 1)) * angle);
  return (pairs ? turned : turned.transpose(-1, -2)).reshape(x.sizes());
}

TEST(RopeKernel, EqualsTheRotationOfComplexNumbers) {
  with_blocks_of({1, 3}, [] {
    for (const at::ScalarType dtype : kAllDtypes) {
      for (const Shape& s : kHeadShapes) {
        const at::Tensor x = values({s.sequences, s.length, s.heads, s.dim}, dtype, 1);
        const RopeTable table = rope_table(s.length, s.dim, 1e4, x.options());
        for (const RopeLayout layout : {RopeLayout::kHalves, RopeLayout::kPairs})
          for (const RopeDirection direction : {RopeDirection::kForward, RopeDirection::kBackward})
            EXPECT_LE(deviation(rotate(x, table, layout, direction), exact(x, layout, direction)),
                      one_rounding(dtype));
      }
    }
  });
}

TEST(RopeKernel, TurnsHeadsInsideAFusedProjectionInTheirPlace) {
  const HostKernels host(2);
  const at::Tensor fused = values({2, 6, 5, 8}, at::kBFloat16, 1), before = fused.clone();
  const at::Tensor turned = fused.narrow(2, 0, 4);
  const RopeTable table = rope_table(6, 8, 1e4, fused.options());
  gpu_rotate(turned, turned, table, RopeLayout::kHalves, RopeDirection::kForward);
  const at::Tensor alone =
      rotate(before.narrow(2, 0, 4).contiguous(), table, RopeLayout::kHalves, RopeDirection::kForward);
  EXPECT_TRUE(turned.equal(alone));
  EXPECT_TRUE(fused.narrow(2, 4, 1).equal(before.narrow(2, 4, 1)));
}

TEST(RopeKernel, TheTableIsMadeOnce) {
  const HostKernels host;
  const RopeTable a = rope_table(7, 6, 1e4, at::kBFloat16), b = rope_table(7, 6, 1e4, at::kBFloat16);
  EXPECT_EQ(a.cos.const_data_ptr(), b.cos.const_data_ptr());
  EXPECT_NE(a.cos.const_data_ptr(), rope_table(7, 6, 5e5, at::kBFloat16).cos.const_data_ptr());
  EXPECT_EQ(rope_table(7, 6, 1e4, at::kDouble).cos.scalar_type(), at::kDouble);
}

}  // namespace
}  // namespace hetermoe::testing
