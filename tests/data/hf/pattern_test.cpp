#include "hetermoe/data/hf/pattern.h"

#include <gtest/gtest.h>

#include "hetermoe/base/error.h"
#include "tests/support/error_of.h"

namespace hetermoe::hf {
namespace {

std::vector<std::string> matches_of(const Pattern& pattern, const std::string& text) {
  std::vector<std::string> out;
  Pattern::Match match;
  for (Matches matches(pattern, text); matches.next(match);)
    out.push_back(text.substr(match.begin, match.end - match.begin));
  return out;
}
using Texts = std::vector<std::string>;

TEST(HfPatterns, MatchAsThoseOfOniguruma) {
  const auto found = [](const char* pattern, const std::string& text) {
    return matches_of(Pattern::of_file(pattern, "x"), text);
  };
  EXPECT_EQ(found(R"(\s+)", "a\u180e b\u0085\u3000c"), (Texts{" ", "\u0085\u3000"}));
  EXPECT_EQ(found(R"([\S]+)", "a\u180e b"), (Texts{"a\u180e", "b"}));
  EXPECT_EQ(found(R"(\s+$)", "ab \nc  "), (Texts{" ", "  "}));
  EXPECT_EQ(found(R"(\w+)", "a\u0301_\u203f\u00b2-"), (Texts{"a\u0301_\u203f\u00b2"}));
  EXPECT_EQ(found(R"(\h+)", "g1fx"), (Texts{"1f"}));
  EXPECT_EQ(found(R"(a{,2}b)", "aab"), (Texts{"aab"}));
  EXPECT_EQ(found(R"((?i:'s))", "x'\u017f"), (Texts{"'\u017f"}));
  EXPECT_EQ(found(R"(\p{Han}+)", "\u4e2d\u3002"), (Texts{"\u4e2d"}));
  EXPECT_EQ(found(R"(x*)", "ax"), (Texts{"", "x"}));
  EXPECT_EQ(found(R"(\u0041)", "A"), (Texts{"A"}));
}

TEST(HfPatterns, WhatPcre2ReadsOtherwiseIsRefused) {
  const auto refused = [](const char* pattern, const std::string& words) {
    const std::string error = error_of<ConfigError>([&] { Pattern::of_file(pattern, "here"); });
    EXPECT_TRUE(error.starts_with("[here] ") && error.find(words) != std::string::npos) << error;
  };
  refused("[a&&b]", "an intersection of classes");
  refused("[[a]b]", "a class within a class");
  refused("(?m).", "an option other than (?i)");
  refused("a{1,2}+", "a + after {n,m}");
  refused(R"(\X)", "an escape that is not known");
  refused("(", "cannot read the pattern ( at byte 1");
}

}  // namespace
}  // namespace hetermoe::hf
