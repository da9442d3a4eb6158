#include "hetermoe/base/hash.h"

#include <gtest/gtest.h>

#include <vector>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

TEST(Hash, NumbersOfAnyWidthAndSignEnterAlike) {
  EXPECT_EQ(Fnv().add(i32{-3}).value(), Fnv().add(i64{-3}).value());
  EXPECT_NE(Fnv().add(i32{-3}).value(), Fnv().add(i32{3}).value());
}

TEST(Hash, TextsThatJoinAlikeDiffer) {
  EXPECT_NE(Fnv().add(std::string_view("ab")).add(std::string_view("c")).value(),
            Fnv().add(std::string_view("a")).add(std::string_view("bc")).value());
}

TEST(Hash, Splitmix64GivesThePublishedNumbers) {
  // The first outputs of the published generator with seed 0.
  EXPECT_EQ(splitmix64(0), 0xe220a8397b1dcdafULL);
  EXPECT_EQ(splitmix64(0x9e3779b97f4a7c15ULL), 0x6e789e6aa1b965f4ULL);
}

TEST(Index, PositionFindsAValueOfAnAscendingList) {
  const std::vector<DeviceId> devices = {1, 4, 7};
  EXPECT_EQ(position(devices, 4), 1u);
  EXPECT_EQ(idx(i64{5}), 5u);
}

}  // namespace
}  // namespace hetermoe
