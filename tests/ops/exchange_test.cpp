#include "hetermoe/ops/exchange.h"

#include <gtest/gtest.h>

#include <set>

#include "hetermoe/ops/access_list.h"
#include "hetermoe/ops/work.h"
#include "hetermoe/schedule/schedule.h"
#include "tests/support/random_plan.h"

namespace hetermoe {
namespace {

TEST(TokenRanges, FollowOneAnotherInTheOrderOfTheRow) {
  const ShareRow row = {{4, 2}, {1, 0}, {7, 3}};
  const TokenRanges ranges(row, 10);
  std::vector<i64> ends;
  for (const TokenRange range : ranges) ends.push_back(range.end);
  EXPECT_EQ(ends, (std::vector<i64>{20, 20, 50}));
  EXPECT_EQ(ranges.of(7).begin, 20);
  EXPECT_EQ(ranges.of(7).tokens(), 30);
  EXPECT_EQ(ranges.of(1).tokens(), 0);
  EXPECT_TRUE(ranges.has(1));
  EXPECT_FALSE(ranges.has(2));
  EXPECT_EQ(ranges.of(2).tokens(), 0);
  EXPECT_EQ(ranges.index_of(1), 1);
  EXPECT_EQ(ranges.device(2), 7);
  EXPECT_EQ(ranges.tokens(0), 20);
}

TEST(TokenRanges, ShareTheTokensThatBothHave) {
  EXPECT_EQ(shared_tokens({0, 5, 9}, {1, 7, 20}), 2);
  EXPECT_EQ(shared_tokens({0, 5, 9}, {1, 0, 20}), 4);
  EXPECT_EQ(shared_tokens({0, 5, 9}, {1, 9, 20}), 0);
  EXPECT_EQ(shared_tokens({0, 5, 5}, {1, 0, 20}), 0);
}

/// Calls use(exchange, op, devices) for each dispatch and combine of random plans.
template <class Use>
void for_exchanges(Use use) {
  for (u64 seed = 1; seed <= 60; ++seed) {
    const testing::RandomCase random = testing::random_case(seed);
    const Placement placement(random.plan, random.model, random.step);
    const Schedule schedule = build_schedule(random.plan, random.model, random.step);
    for (const Op& op : schedule.ops) {
      if (op.kind == OpKind::kDispatch || op.kind == OpKind::kCombine)
        use(Exchange(op, placement), op, participants(op, placement));
    }
  }
}

TEST(Exchange, EachParticipantSendsOrReceives) {
  i64 count = 0;
  for_exchanges([&](const Exchange& exchange, const Op& op, const std::vector<DeviceId>& devices) {
    ++count;
    for (const DeviceId device : devices)
      EXPECT_TRUE(exchange.sends(device) || exchange.receives(device)) << to_string(op) << device;
  });
  EXPECT_GT(count, 1000);
}

/// A segment is of one sender and one receiver, and these have no other.
TEST(Exchange, HasOneSegmentForEachSenderAndReceiver) {
  for_exchanges([](const Exchange& exchange, const Op& op, const std::vector<DeviceId>& devices) {
    std::set<std::pair<DeviceId, DeviceId>> found, asked;
    for (std::size_t s = 0; s < exchange.sources().size(); ++s) {
      for (std::size_t o = 0; o < exchange.owners().size(); ++o) {
        const Exchange::Segment segment = exchange.segment(s, o);
        EXPECT_TRUE(exchange.sends(segment.from) && exchange.receives(segment.to)) << to_string(op);
        EXPECT_TRUE(found.emplace(segment.from, segment.to).second) << to_string(op);
      }
    }
    for (const DeviceId from : devices) {
      for (const DeviceId to : devices) {
        const std::optional<Exchange::Segment> segment = exchange.segment_between(from, to);
        EXPECT_EQ(segment.has_value(), exchange.sends(from) && exchange.receives(to)) << to_string(op);
        if (!segment) continue;
        asked.emplace(from, to);
        const Exchange::Segment same = exchange.segment(segment->source, segment->owner);
        EXPECT_TRUE(same.from == from && same.to == to) << to_string(op);
      }
    }
    EXPECT_EQ(found, asked) << to_string(op);
  });
}

TEST(Exchange, OnlyRowsOfExpertsTravelWithScales) {
  Plan plan;
  plan.wire_forward = Wire::kFp8Row, plan.wire_backward = Wire::kFp32;
  for (const OpKind kind : {OpKind::kDispatch, OpKind::kCombine}) {
    EXPECT_EQ(wire_of(Op{.kind = kind}, plan), Wire::kFp8Row);
    EXPECT_EQ(wire_of(Op{.kind = kind, .phase = Phase::kRecompute}, plan), Wire::kFp8Row);
    EXPECT_EQ(wire_of(Op{.kind = kind, .phase = Phase::kBackward}, plan), Wire::kFp32);
  }
  for (const OpKind kind : {OpKind::kMove, OpKind::kToHeads, OpKind::kToTokens}) {
    EXPECT_EQ(wire_of(Op{.kind = kind}, plan), Wire::kBf16);
    EXPECT_EQ(wire_of(Op{.kind = kind, .phase = Phase::kBackward}, plan), Wire::kFp32);
  }
  // 3 rows of 100 numbers and a scale each; of 5 copies weight, row and expert.
  EXPECT_EQ(wire_bytes(Op{.kind = OpKind::kDispatch}, plan, 100, 3, 5), 3 * 104 + 5 * 12);
  EXPECT_EQ(wire_bytes(Op{.kind = OpKind::kCombine}, plan, 100, 3, 5), 3 * 104);
}

TEST(Exchange, BackwardGoesTheOtherWay) {
  for_exchanges([](const Exchange& exchange, const Op& op, const std::vector<DeviceId>&) {
    EXPECT_EQ(exchange.to_owners(), (op.kind == OpKind::kDispatch) == (op.phase != Phase::kBackward))
        << to_string(op);
  });
}

}  // namespace
}  // namespace hetermoe
