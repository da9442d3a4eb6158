#include "hetermoe/ops/exchange.h"

#include <gtest/gtest.h>

#include <set>

#include "hetermoe/ops/access_list.h"
#include "hetermoe/ops/load_table.h"
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

/// All bytes that an op sends, by closed forms of its rows.
Bytes sent(const std::vector<PortBytes>& bytes) {
  Bytes sum = 0;
  for (const PortBytes& port : bytes) sum += port.local_out + port.net_out;
  return sum;
}

/// Where results go to the next layer, an op of an exchange has the rows of the tokens that its receivers
/// have; the move has a row of each token, the owners of its choices, and the counts of segments. All
/// together are the rows of the way by the source.
TEST(Exchange, ResultsForTheNextLayerHaveTheBytesOfTheirTokens) {
  i64 moves = 0, combines = 0, local = 0;
  for (u64 seed = 7000; seed < 7060; ++seed) {
    testing::RandomCase c = testing::random_case(seed);
    if (testing::combine_to_next(c) == 0) continue;
    const Placement placement(c.plan, c.model, c.step);
    const WorkModel work(placement, c.model, c.cluster);
    const ExpectedRouting routing(c.model);
    LoadTable loads(placement, routing);
    for (const Op& op : build_schedule(c.plan, c.model, c.step).ops) {
      const std::vector<DeviceId> devices =
          is_compute(op.kind) ? std::vector<DeviceId>() : participants(op, placement);
      const double row = 8.0 * static_cast<double>(c.model.hidden);
      if (op.kind == OpKind::kCombine && Exchange(op, placement).of_next()) {
        const ExchangeLoad& load = *loads.of(op);
        const Exchange exchange(op, placement);
        Bytes expected = 0;
        for (const TokenRange range : exchange.sources()) {
          double tokens = 0;
          for (const NextSegment& s : next_segments(placement, op.group, op.layer, op.microbatch, op.chunk))
            if (exchange.sources().device(s.receiver) == range.device)
              tokens += static_cast<double>(s.tokens());
          for (std::size_t o = 0; o < exchange.owners().size(); ++o) {
            const bool stays = exchange.owners()[o] == range.device;
            local += stays ? 1 : 0;
            expected += stays ? 0 : tokens * load.rows_per_token[o] * row;
          }
        }
        EXPECT_NEAR(sent(work.port_bytes(op, devices, &load)), expected, 1e-6 * expected) << to_string(op);
        ++combines;
      }
      if (op.kind != OpKind::kMove || !placement.joins_at(op.group, op.layer, op.microbatch)) continue;
      const auto [from, to] = placement.move_of(op);
      Bytes expected = 0;
      for (const TokenRange source : from) {
        double segments = 0;
        for (const TokenRange receiver : to) segments += shared_tokens(source, receiver) > 0 ? 1 : 0;
        const bool tells = op.phase == Phase::kForward && placement.is_moe(op.layer - 1);
        const Bytes counts = tells ? 4 * segments * c.plan.chunks *
                                         static_cast<double>(placement.num_owners(op.group, op.layer - 1))
                                   : 0;
        for (const TokenRange receiver : to) {
          const auto& owners = placement.owners(op.group, op.layer - 1);
          const bool owns = std::find(owners.begin(), owners.end(), receiver.device) != owners.end();
          expected += static_cast<double>(shared_tokens(source, receiver)) *
                          (row + (tells ? 4.0 * static_cast<double>(c.model.top_k) : 0)) +
                      (owns ? 0 : counts);
        }
      }
      EXPECT_NEAR(sent(work.port_bytes(op, devices, nullptr)), expected, 1e-6 * expected) << to_string(op);
      ++moves;
    }
  }
  EXPECT_GT(moves, 100);
  EXPECT_GT(combines, 100);
  EXPECT_GT(local, 20);
}

/// A source that counted all its rows for its first receiver would send others than segments have.
TEST(Exchange, SegmentsCutTheTokensOfSources) {
  i64 segments = 0;
  for (u64 seed = 7000; seed < 7060; ++seed) {
    testing::RandomCase c = testing::random_case(seed);
    if (testing::combine_to_next(c) == 0) continue;
    const Placement placement(c.plan, c.model, c.step);
    for (i32 g = 0; g < placement.num_groups(); ++g) {
      for (i32 l = 0; l < placement.num_layers(); ++l) {
        for (i32 m = 0; m < placement.num_microbatches(g); ++m) {
          std::vector<i64> tokens(placement.ranges(g, l, m).size(), 0);
          const bool joins = placement.joins_at(g, l + 1, m);
          for (i32 chunk = 0; chunk < c.plan.chunks; ++chunk) {
            for (const NextSegment& s : next_segments(placement, g, l, m, chunk)) {
              const TokenRange to =
                  placement.ranges(g, l + 1, m).of(placement.ranges(g, l + 1, m).device(s.receiver));
              EXPECT_TRUE(s.tokens() == 0 || (s.begin >= to.begin && s.end <= to.end));
              tokens[s.source] += s.tokens();
              ++segments;
            }
          }
          for (std::size_t s = 0; s < tokens.size(); ++s)
            EXPECT_EQ(tokens[s], joins ? placement.ranges(g, l, m).tokens(s) : 0);
        }
      }
    }
  }
  EXPECT_GT(segments, 200);
}

}  // namespace
}  // namespace hetermoe
