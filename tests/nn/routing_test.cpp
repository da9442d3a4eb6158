#include "hetermoe/nn/routing.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "hetermoe/base/error.h"

namespace hetermoe::testing {
namespace {

std::vector<i64> list(const at::Tensor& x) {
  return {x.const_data_ptr<i64>(), x.const_data_ptr<i64>() + x.numel()};
}
using Ids = std::vector<i64>;

at::Tensor ids(std::initializer_list<i64> values, i64 top_k) {
  return at::tensor(values, at::kLong).view({-1, top_k});
}

/// Experts 0 and 2 at destination 0; 1 and 3 at destination 1.
OwnerTable even_odd() { return {{{0, 1}}, {{1, 1}}, {{0, 1}}, {{1, 1}}}; }

TEST(Routing, TokenWhoseExpertsShareADestinationIsSentOnce) {
  const at::Tensor topk = ids({2, 0, 1, 2, 3, 1}, 2);
  const auto sends = split_by_owner(topk, even_odd(), 2, RowDedup::kOn);
  EXPECT_EQ(list(sends[0].token_R), (Ids{0, 1}));
  EXPECT_EQ(list(sends[0].expert_C), (Ids{0, 2, 2}));
  EXPECT_EQ(list(sends[0].row_C), (Ids{0, 0, 1}));
  EXPECT_EQ(list(sends[0].flat_C), (Ids{1, 0, 3}));
  EXPECT_EQ(list(sends[1].token_R), (Ids{1, 2}));
  EXPECT_EQ(list(sends[1].expert_C), (Ids{1, 1, 3}));
  EXPECT_EQ(list(sends[1].row_C), (Ids{0, 1, 1}));
  EXPECT_EQ(list(sends[1].flat_C), (Ids{2, 5, 4}));
}

TEST(Routing, WithoutDedupEveryCopyHasItsRow) {
  const auto sends = split_by_owner(ids({2, 0, 1, 2, 3, 1}, 2), even_odd(), 2, RowDedup::kOff);
  EXPECT_EQ(list(sends[0].token_R), (Ids{0, 0, 1}));
  EXPECT_EQ(list(sends[0].expert_C), (Ids{0, 2, 2}));
  EXPECT_EQ(list(sends[0].row_C), (Ids{1, 0, 2}));
  EXPECT_EQ(list(sends[1].token_R), (Ids{1, 2, 2}));
}

TEST(Routing, ReplicasSplitByPositionInProportion) {
  const OwnerTable owners = {{{0, 0.25}, {1, 0.5}, {2, 0.25}}};
  const auto sends = split_by_owner(at::zeros({8, 1}, at::kLong), owners, 3, RowDedup::kOn);
  EXPECT_EQ(list(sends[0].token_R), (Ids{0, 1}));
  EXPECT_EQ(list(sends[1].token_R), (Ids{2, 3, 4, 5}));
  EXPECT_EQ(list(sends[2].token_R), (Ids{6, 7}));
}

TEST(Routing, EmptyInputsGiveEmptyMessages) {
  const auto sends = split_by_owner(at::empty({0, 2}, at::kLong), even_odd(), 3, RowDedup::kOn);
  ASSERT_EQ(sends.size(), 3u);
  EXPECT_EQ(sends[2].num_rows(), 0);
  EXPECT_EQ(sends[2].num_copies(), 0);
  const CopyGroups groups = group_copies({{0, sends[0].row_C, sends[0].expert_C}}, {0, -1, 1, -1}, 2);
  EXPECT_EQ(groups.offsets, (Ids{0, 0, 0}));
  EXPECT_EQ(group_copies({}, {}, 0).num_copies(), 0);
}

TEST(Routing, CopiesAreGroupedBySlotSourceRow) {
  // Slots: expert 2 -> 0, expert 0 -> 1.
  const at::Tensor row_a = at::tensor({0, 0, 1}, at::kLong), expert_a = at::tensor({0, 2, 2}, at::kLong);
  const at::Tensor row_b = at::tensor({1, 0}, at::kLong), expert_b = at::tensor({0, 2}, at::kLong);
  const CopyGroups groups = group_copies({{2, row_a, expert_a}, {2, row_b, expert_b}}, {1, -1, 0, -1}, 2);
  EXPECT_EQ(groups.offsets, (Ids{0, 3, 5}));
  EXPECT_EQ(list(groups.row_C), (Ids{0, 1, 2, 0, 3}));
  EXPECT_EQ(list(groups.arrival_C), (Ids{1, 2, 4, 0, 3}));
  EXPECT_EQ(groups.source_copies, (Ids{3, 2}));
  EXPECT_EQ(groups.num_rows, 4);
  const at::Tensor values = at::tensor({10., 11., 12., 13., 14.});
  EXPECT_TRUE(at::equal(to_grouped(groups, values), at::tensor({11., 12., 14., 10., 13.})));
  EXPECT_TRUE(at::equal(to_arrival(groups, to_grouped(groups, values)), values));
}

TEST(Routing, AForeignExpertIsABug) {
  const at::Tensor one = at::zeros({1}, at::kLong);
  EXPECT_THROW(group_copies({{1, one, one}}, {-1}, 0), InternalError);
}

TEST(Routing, EveryCopyArrivesOnce) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const i64 num_tokens = random() % 30, num_experts = 1 + random() % 9;
    const i64 top_k = 1 + static_cast<i64>(random()) % std::min<i64>(num_experts, 4),
              num_destinations = 1 + random() % 4;
    at::Tensor topk = at::empty({num_tokens, top_k}, at::kLong);
    Ids all(static_cast<std::size_t>(num_experts));
    std::iota(all.begin(), all.end(), 0);
    for (i64 t = 0; t < num_tokens; ++t) {
      std::shuffle(all.begin(), all.end(), random);
      for (i64 k = 0; k < top_k; ++k) topk[t][k] = all[static_cast<std::size_t>(k)];
    }
    OwnerTable owners(static_cast<std::size_t>(num_experts));
    for (auto& shares : owners) {
      const i64 first = random() % static_cast<unsigned>(num_destinations);
      const bool replica = random() % 2 == 0 && first + 1 < num_destinations;
      shares.push_back({static_cast<i32>(first), replica ? 0.3 : 1});
      if (replica) shares.push_back({static_cast<i32>(first + 1), 0.7});
    }
    for (const RowDedup dedup : {RowDedup::kOff, RowDedup::kOn}) {
      std::set<i64> flats;
      for (const SendIndex& send : split_by_owner(topk, owners, num_destinations, dedup)) {
        const Ids tokens = list(send.token_R), rows = list(send.row_C), experts = list(send.expert_C);
        const Ids flat = list(send.flat_C);
        if (dedup == RowDedup::kOn) {
          EXPECT_EQ(std::set<i64>(tokens.begin(), tokens.end()).size(), tokens.size());
        }
        if (dedup == RowDedup::kOff) {
          EXPECT_EQ(tokens.size(), flat.size());
        }
        EXPECT_TRUE(std::is_sorted(tokens.begin(), tokens.end()));
        for (std::size_t c = 0; c < flat.size(); ++c) {
          EXPECT_TRUE(flats.insert(flat[c]).second);
          EXPECT_EQ(tokens[static_cast<std::size_t>(rows[c])], flat[c] / top_k);
          EXPECT_EQ(topk[flat[c] / top_k][flat[c] % top_k].item<i64>(), experts[c]);
          if (c > 0) {
            EXPECT_LT(std::pair(experts[c - 1], rows[c - 1]), std::pair(experts[c], rows[c]));
          }
        }
      }
      EXPECT_EQ(static_cast<i64>(flats.size()), num_tokens * top_k);
    }
  }
}

}  // namespace
}  // namespace hetermoe::testing
