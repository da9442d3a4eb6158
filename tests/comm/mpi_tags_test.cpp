#include "hetermoe/comm/mpi_tags.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "hetermoe/base/error.h"
#include "hetermoe/comm/transport.h"
#include "hetermoe/ops/op_row.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

constexpr i64 kLeastOfMpi = 32767;  // what the standard promises

TEST(MpiTags, EveryChannelBetweenTwoProcessesHasATagOfItsOwn) {
  const std::vector<i32> rank_of = {0, 0, kNoRank, 1, 2, 2, 2};
  const MpiTags tags(rank_of, kLeastOfMpi);
  std::map<std::tuple<i32, i32, int>, int> channels;  // sender, receiver, tag
  for (i32 queue = 0; queue < kNumQueues; ++queue) {
    for (std::size_t from = 0; from < rank_of.size(); ++from) {
      for (std::size_t to = 0; to < rank_of.size(); ++to) {
        if (rank_of[from] == rank_of[to] || rank_of[from] == kNoRank || rank_of[to] == kNoRank) continue;
        const int tag = tags.of(queue, static_cast<DeviceId>(from), static_cast<DeviceId>(to));
        EXPECT_GE(tag, 0);
        EXPECT_LE(tag, kLeastOfMpi);
        EXPECT_EQ(++channels[std::make_tuple(rank_of[from], rank_of[to], tag)], 1) << from << " " << to;
      }
    }
  }
}

TEST(MpiTags, DoNotGrowWithTheNumberOfProcesses) {
  std::vector<i32> rank_of(4096);
  for (std::size_t d = 0; d < rank_of.size(); ++d) rank_of[d] = static_cast<i32>(d);
  const MpiTags tags(rank_of, kNumQueues - 1);
  EXPECT_EQ(tags.of(kNumQueues - 1, 4095, 0), kNumQueues - 1);
}

TEST(MpiTags, TooFewTagsAreNamed) {
  const std::vector<i32> rank_of(100, 3);
  EXPECT_EQ(error_of<TransportError>([&] { MpiTags(rank_of, kLeastOfMpi); }),
            fmt::format("[mpi] 100 devices in one process need tags up to {}, this MPI has tags up to 32767: "
                        "start more processes, so that each has fewer devices",
                        100 * 100 * kNumQueues - 1));
}

}  // namespace
}  // namespace hetermoe
