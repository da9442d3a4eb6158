#include "hetermoe/base/printable.h"

#include <gtest/gtest.h>

#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

TEST(Printable, ControlCharactersAreShownAndNotObeyed) {
  EXPECT_EQ(printable("a\n\tb\r\x1b[31mred\x7f"), "a\\n\\tb\\r\\x1b[31mred\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b2J");  // one character that begins a terminal code
  EXPECT_EQ(printable_lines("a\n  b\tc\x1b"), "a\n  b\tc\\x1b");
}

TEST(Printable, EverythingElseStays) {
  const std::string text = "caf\xc3\xa9 \xe2\x82\xac \xc2\xa0 \\n ~ \xc2";
  EXPECT_EQ(printable(text), text);
  EXPECT_TRUE(is_printable(text));
  EXPECT_FALSE(is_printable("a\x01"));
  EXPECT_FALSE(is_printable("a\n"));
}

TEST(Errors, ShowNamesWithoutObeyingThem) {
  const std::string name = "x\n[other] y\x1b[2J";
  EXPECT_EQ(error_of([&] { fail<ConfigError>(name, "got {}, expected {}", name, 1); }),
            "[x\\n[other] y\\x1b[2J] got x\\n[other] y\\x1b[2J, expected 1");
}

TEST(Errors, KeepTheLinesOfTheirOwnText) {
  EXPECT_EQ(error_of([] { fail<ConfigError>("plan", "two faults:\n  {}\n  {}", "a\n  b", "c"); }),
            "[plan] two faults:\n  a\n  b\n  c");
}

}  // namespace
}  // namespace hetermoe
