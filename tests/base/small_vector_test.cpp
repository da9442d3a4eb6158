#include "hetermoe/base/small_vector.h"

#include <gtest/gtest.h>

#include "hetermoe/base/fields.h"

namespace hetermoe {
namespace {

TEST(SmallVector, IsAListWhateverItsLength) {
  SmallVector<int> list;
  std::vector<int> expected;
  EXPECT_TRUE(list.empty());
  for (int i = 0; i < 5; ++i) {
    list.push_back(i), expected.push_back(i);
    ASSERT_EQ(std::vector<int>(list.begin(), list.end()), expected);
    EXPECT_EQ(list.size(), expected.size());
    EXPECT_EQ(list.front(), 0);
    EXPECT_EQ(list.back(), i);
    EXPECT_EQ(list[expected.size() / 2], expected[expected.size() / 2]);
  }
  list.clear();
  EXPECT_TRUE(list.empty());
  list.push_back(7);
  EXPECT_EQ(list, (SmallVector<int>{7}));
}

TEST(SmallVector, CopiesAreApartAndMovesKeepTheElements) {
  for (const SmallVector<int>& all : {SmallVector<int>{}, SmallVector<int>{1}, SmallVector<int>{1, 2, 3}}) {
    SmallVector<int> copy = all;
    EXPECT_EQ(copy, all);
    copy.push_back(9);
    EXPECT_NE(copy, all);
    copy = all;
    copy = *&copy;
    EXPECT_EQ(copy, all);
    const SmallVector<int> moved = std::move(copy);
    EXPECT_EQ(moved, all);
  }
}

TEST(SmallVector, IsReadAndWrittenAsAList) {
  for (const char* text : {"[]", "[4]", "[4,5]"}) {
    SmallVector<i64> list;
    read_value(Json::parse(text), list, "list");
    EXPECT_EQ(write_value(list).dump(), text);
  }
}

}  // namespace
}  // namespace hetermoe
