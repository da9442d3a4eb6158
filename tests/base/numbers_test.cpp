#include "hetermoe/base/numbers.h"

#include <gtest/gtest.h>

namespace hetermoe {
namespace {

TEST(WholeNumber, IsTheWholeTextOrNothing) {
  EXPECT_EQ(whole_number("0"), 0);
  EXPECT_EQ(whole_number("-7"), -7);
  EXPECT_EQ(whole_number("29500"), 29500);
  for (const char* text : {"", " 1", "1 ", "+1", "1x", "0x1", "1.0", "four", "9223372036854775808"})
    EXPECT_FALSE(whole_number(text)) << text;
}

}  // namespace
}  // namespace hetermoe
