#include "hetermoe/kernels/permute.h"
#include "hetermoe/nn/device_routing.h"
#include "tests/kernels/cases.h"

namespace hetermoe::testing {
namespace {

/// K different experts for each token; some experts are chosen often, some hardly.
at::Tensor make_topk(i64 tokens, i64 top_k, i64 num_experts) {
  const at::Tensor scores =
      values({tokens, num_experts}, at::kDouble, 3) + at::linspace(0, 2, num_experts, at::kDouble);
  return std::get<1>(scores.topk(top_k, -1)).contiguous();
}

at::Tensor slice(const at::Tensor& all, const at::Tensor& begin, i64 d) {
  const i64 first = begin[d].item<int>(), end = begin[d + 1].item<int>();
  return all.narrow(0, first, end - first).to(at::kLong);
}

void expect_equal_tables(const at::Tensor& topk, const OwnerTable& owners, i64 num_destinations,
                         RowDedup dedup) {
  const std::vector<SendIndex> expected = split_by_owner(topk.to(at::kLong), owners, num_destinations, dedup);
  const DeviceOwners there = owners_on_device(owners, num_destinations, at::kCPU);
  const DeviceSplit got = split_by_owner_on_device(topk, there, dedup);
  for (i64 d = 0; d < num_destinations; ++d) {
    SCOPED_TRACE("destination " + std::to_string(d));
    const SendIndex& index = expected[static_cast<std::size_t>(d)];
    EXPECT_TRUE(slice(got.token_R, got.row_begin_D1, d).equal(index.token_R));
    EXPECT_TRUE(slice(got.row_C, got.copy_begin_D1, d).equal(index.row_C));
    EXPECT_TRUE(slice(got.expert_C, got.copy_begin_D1, d).equal(index.expert_C));
    EXPECT_TRUE(slice(got.flat_C, got.copy_begin_D1, d).equal(index.flat_C));
  }
}

/// One owner each, all with one, replicas with equal, odd and zero shares, a destination without experts.
std::vector<OwnerTable> owner_tables(i64 num_experts) {
  std::vector<OwnerTable> out(4);
  for (i64 e = 0; e < num_experts; ++e) {
    const auto d = static_cast<i32>(e % 3);
    out[0].push_back({{d, 1}});
    out[1].push_back({{2, 1}});
    out[2].push_back({{0, 1.0 / 3}, {1, 1.0 / 3}, {3, 1.0 / 3}});
    if (e % 2 == 0)
      out[3].push_back({{0, 0.1}, {1, 0}, {2, 0.63}, {3, 0.27}});
    else
      out[3].push_back({{1, 0}, {d == 1 ? 3 : 2, 1}});
  }
  return out;
}

TEST(PermutationKernels, SplitEqualsTheTablesOfTheCpu) {
  with_blocks_of({1, 3}, [] {
    for (const auto& [tokens, top_k, num_experts] : {std::tuple<i64, i64, i64>{0, 2, 4},
                                                     {1, 1, 1},
                                                     {5, 2, 4},
                                                     {700, 3, 8},
                                                     {1500, 8, 64},
                                                     {333, 7, 11}}) {
      const at::Tensor topk = make_topk(tokens, top_k, num_experts);
      for (const OwnerTable& owners : owner_tables(num_experts)) {
        SCOPED_TRACE(std::to_string(tokens) + " tokens, " + std::to_string(num_experts) + " experts");
        expect_equal_tables(topk, owners, 4, RowDedup::kOn);
        expect_equal_tables(topk.to(at::kInt), owners, 4, RowDedup::kOff);
      }
    }
  });
}

TEST(PermutationKernels, ChoicesThatAreNoneHaveNoPlace) {
  with_blocks_of({1, 3}, [] {
    at::Tensor topk = make_topk(700, 3, 8);
    topk.masked_fill_(values({700, 3}, at::kDouble, 9).gt(0.8), -1);
    ASSERT_GT(topk.lt(0).sum().item<i64>(), 300);
    for (const OwnerTable& owners : owner_tables(8)) {
      expect_equal_tables(topk, owners, 4, RowDedup::kOn);
      expect_equal_tables(topk, owners, 4, RowDedup::kOff);
    }
  });
}

/// More than one pass over the keys of a chunk, and more than one round of a block's threads over all keys.
TEST(PermutationKernels, MoreKeysThanOnePassCounts) {
  const i64 num_experts = 2 * kernels::kKeysAtOnce + 3;
  with_blocks_of({1, 3}, [&] {
    const at::Tensor topk = make_topk(1100, 2, num_experts);
    OwnerTable one_each, apart;
    for (i64 e = 0; e < num_experts; ++e) {
      one_each.push_back({{0, 1}});
      apart.push_back({{static_cast<i32>(e), 1}});
    }
    expect_equal_tables(topk, one_each, 1, RowDedup::kOn);
    expect_equal_tables(topk.slice(0, 0, 40).contiguous(), apart, num_experts, RowDedup::kOn);
  });
}

TEST(PermutationKernels, AnyShareIsCutAsTheCpuCutsIt) {
  const HostKernels host;
  for (i64 count = 1; count < 40; ++count) {
    const at::Tensor topk = at::zeros({count, 1}, at::kLong);
    for (const double share : {0.5, 0.25, 1.0 / 3, 0.1, 0.7, 1e-9, 1 - 1e-9, 0.999})
      expect_equal_tables(topk, {{{0, share}, {1, 1 - share}}}, 2, RowDedup::kOn);
  }
}

TEST(PermutationKernels, GroupsEqualThoseOfTheCpu) {
  with_blocks_of({1, 3}, [] {
    const i64 num_experts = 12, num_slots = 5;
    std::vector<i64> slot_of(12, -1);
    for (const i64 e : {1, 3, 4, 8, 11}) slot_of[static_cast<std::size_t>(e)] = e == 1 ? 4 : e / 3;
    std::vector<ReceivedIndex> sources;
    std::vector<i32> source_begin = {0}, row_begin;
    std::vector<at::Tensor> rows, experts;
    i64 num_rows = 0;
    for (const i64 copies : {700, 0, 1, 1300}) {
      const at::Tensor n = at::arange(copies, at::kLong);
      const at::Tensor expert =
          at::tensor({1, 3, 4, 8, 11}, at::kLong).index_select(0, (n * n + n).remainder(5));
      sources.push_back({copies / 2 + 1, n.div(2, "floor"), expert});
      row_begin.push_back(static_cast<i32>(num_rows));
      num_rows += sources.back().num_rows;
      source_begin.push_back(source_begin.back() + static_cast<i32>(copies));
      rows.push_back(sources.back().row_C.to(at::kInt));
      experts.push_back(expert.to(at::kInt));
    }
    const CopyGroups expected = group_copies(sources, slot_of, num_slots);
    const at::Tensor slots = at::tensor(slot_of, at::kLong).to(at::kInt);
    EXPECT_EQ(slots.numel(), num_experts);
    const DeviceGroups got = group_copies_on_device(at::cat(rows), at::cat(experts), at::tensor(source_begin),
                                                    at::tensor(row_begin), slots, num_slots);
    EXPECT_TRUE(got.row_C.to(at::kLong).equal(expected.row_C));
    EXPECT_TRUE(got.arrival_C.to(at::kLong).equal(expected.arrival_C));
    EXPECT_TRUE(got.offsets.to(at::kLong).equal(at::tensor(expected.offsets)));
  });
}

TEST(PermutationKernels, ASplitIsSixLaunches) {
  const HostKernels host;
  const DeviceOwners owners = owners_on_device({{{0, 1}}, {{1, 1}}}, 2, at::kCPU);
  const LaunchRecorder recorder;
  split_by_owner_on_device(at::tensor({0, 1, 1, 0}, at::kLong).view({2, 2}), owners, RowDedup::kOn);
  EXPECT_EQ(recorder.total(), 6);
}

}  // namespace
}  // namespace hetermoe::testing
