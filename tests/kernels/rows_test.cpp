#include "hetermoe/nn/rows.h"

#include "hetermoe/nn/gpu_kernels.h"
#include "tests/kernels/cases.h"

namespace hetermoe::testing {
namespace {

/// `count` indices below `limit`, some of them often, some never.
at::Tensor indices(i64 count, i64 limit, at::ScalarType dtype = at::kLong) {
  const at::Tensor n = at::arange(count, at::kLong);
  return (n * n * 7 + n * 3).remainder(limit).to(dtype);
}

TEST(RowKernels, GatherEqualsIndexSelect) {
  with_blocks_of({1, 5}, [] {
    for (const at::ScalarType dtype : kAllDtypes) {
      for (const auto& [rows, width] : kRowsAndWidths) {
        const at::Tensor source = values({11, width}, dtype, 1);
        for (const at::ScalarType type : {at::kLong, at::kInt}) {
          const at::Tensor index = indices(rows, 11, type);
          EXPECT_TRUE(gather_rows(source, index).equal(source.index_select(0, index)))
              << rows << " x " << width;
        }
      }
    }
  });
}

TEST(RowKernels, GatherReadsRowsAtOddAddresses) {
  const HostKernels host;
  const at::Tensor shifted = values({9 * 8 + 1}, at::kHalf, 1).narrow(0, 1, 72).view({9, 8});
  const at::Tensor index = indices(5, 9);
  EXPECT_TRUE(gather_rows(shifted, index).equal(shifted.index_select(0, index)));
}

/// target[index[r]] += rows[r] in fp64.
at::Tensor exact_sum(const at::Tensor& target, const at::Tensor& index, const at::Tensor& rows) {
  return target.to(at::kDouble).index_add(0, index, rows.to(at::kDouble));
}

TEST(RowKernels, AddingRowsEqualsTheSumInFp64) {
  with_blocks_of({1, 3}, [] {
    for (const at::ScalarType dtype : kAllDtypes) {
      for (const auto& [rows, width] : kRowsAndWidths) {
        SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width) + " " + c10::toString(dtype));
        const at::Tensor target = values({4, width}, dtype, 1), index = indices(3 * rows, 4);
        const at::Tensor added = values({3 * rows, width}, dtype, 2);
        at::Tensor got = target.clone();
        add_rows_(got, index, added);
        EXPECT_LE(deviation(got, exact_sum(target, index, added)), one_rounding(dtype));
      }
    }
  });
}

TEST(RowKernels, SixteenBitRowsAreAddedInFp32InTheOrderOfTheCpuToTheBit) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const i64 width : {36, 40, 56}) {  // packs of 16 bytes fill the last two
      for (const i64 count : {1, 40, 517}) {
        const at::Tensor target = values({5, width}, at::kFloat, 1), index = indices(count, 5);
        const at::Tensor rows = values({count, width}, dtype, 2);
        at::Tensor cpu = target.clone(), own = target.clone();
        add_rows_(cpu, index, rows);
        const HostKernels host(4);
        add_rows_(own, index, rows);
        EXPECT_TRUE(own.equal(cpu)) << dtype << " " << count << " x " << width;
      }
    }
  }
}

TEST(RowKernels, EmptySumsAreZeroAndUntouchedRowsStay) {
  const HostKernels host;
  const at::Tensor none = at::empty({0}, at::kLong);
  const at::Tensor sum = gpu_sum_rows(at::empty({0, 6}, at::kBFloat16), order_by_key(none, 3));
  EXPECT_TRUE(sum.equal(at::zeros({3, 6}, at::kBFloat16)));
  at::Tensor target = values({3, 4}, at::kHalf, 1);
  const at::Tensor before = target.clone();
  add_rows_(target, at::tensor({i64{1}}), at::ones({1, 4}, at::kHalf));
  EXPECT_TRUE(target[0].equal(before[0]));
  EXPECT_FALSE(target[1].equal(before[1]));
  EXPECT_EQ(gpu_sum_rows(at::empty({0, 6}, at::kFloat), order_by_key(none, 0)).size(0), 0);
}

TEST(RowKernels, OrderByKeyIsStable) {
  const HostKernels host;
  const at::Tensor keys = at::tensor({2, 0, 2, 4, 0, 2}, at::kLong);
  const KeyOrder order = order_by_key(keys, 6);
  EXPECT_TRUE(order.item_C.equal(at::tensor({1, 4, 0, 2, 5, 3}, at::kLong)));
  EXPECT_TRUE(order.begin_K1.equal(at::tensor({0, 2, 2, 5, 5, 6, 6}, at::kInt)));
}

TEST(RowKernels, MergeEqualsAddingPartAfterPart) {
  for (const at::ScalarType dtype : kAllDtypes) {
    for (const i64 width : {1, 7, 16, 100}) {
      const at::Tensor base = values({6, width}, dtype, 1);
      const std::vector<MergePart> parts = {
          {at::tensor({0, 2, 3}, at::kLong), values({3, width}, dtype, 2)},
          {at::empty({0}, at::kLong), at::empty({0, width}, dtype)},
          {at::tensor({0, 0, 5, 5, 5}, at::kLong), values({5, width}, dtype, 3)},  // rows without dedup
      };
      const at::Tensor apart = merge_rows(base, parts);  // without kernels
      const HostKernels host(2);
      const at::Tensor got = merge_rows(base, parts);
      at::Tensor exact = base.to(at::kDouble);
      for (const MergePart& part : parts) exact = exact_sum(exact, part.token_R, part.rows_RD);
      EXPECT_LE(deviation(got, exact), one_rounding(dtype));
      EXPECT_LE(deviation(got, apart), 3 * one_rounding(dtype));
      if (dtype == at::kFloat || dtype == at::kDouble) {
        EXPECT_TRUE(got.equal(apart));
      }
    }
  }
}

TEST(RowKernels, MoreDestinationsThanOneLaunchHolds) {
  const at::Tensor base = values({3, 4}, at::kDouble, 1);
  std::vector<MergePart> parts;
  for (u64 p = 0; p < 70; ++p)
    parts.push_back({at::tensor({static_cast<i64>(p % 3)}, at::kLong), values({1, 4}, at::kDouble, p)});
  const at::Tensor expected = merge_rows(base, parts);
  const HostKernels host;
  const LaunchRecorder recorder;
  EXPECT_TRUE(merge_rows(base, parts).equal(expected));
  EXPECT_EQ(recorder.counts().at("merge_rows"), 3);
  EXPECT_TRUE(merge_rows(base, {}).equal(base));
}

}  // namespace
}  // namespace hetermoe::testing
