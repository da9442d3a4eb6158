#include "hetermoe/base/words.h"

#include <gtest/gtest.h>

namespace hetermoe {
namespace {

TEST(Words, OneIsNoPlural) {
  EXPECT_EQ(counted(1, "device"), "1 device");
  EXPECT_EQ(counted(0, "device"), "0 devices");
  EXPECT_EQ(counted(std::size_t{12}, "process"), "12 processes");
  EXPECT_EQ(counted(2, "entry"), "2 entries");
  EXPECT_EQ(counted(2, "day"), "2 days");
  EXPECT_EQ(counted(2, "matrix"), "2 matrices");
}

TEST(Words, VerbsAgree) {
  EXPECT_EQ(agree(1, "stays", "stay"), "stays");
  EXPECT_EQ(agree(3, "stays", "stay"), "stay");
}

TEST(Words, ListsAreCutAtCommas) {
  using Parts = std::vector<std::string>;
  EXPECT_EQ(cut_at_commas("split,reorder"), (Parts{"split", "reorder"}));
  EXPECT_EQ(cut_at_commas("one"), Parts{"one"});
  EXPECT_EQ(cut_at_commas(""), Parts{});
  EXPECT_EQ(cut_at_commas("a,,b,"), (Parts{"a", "", "b"}));
}

}  // namespace
}  // namespace hetermoe
