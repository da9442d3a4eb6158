#include "hetermoe/base/json.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "hetermoe/base/error.h"
#include "hetermoe/base/sorted_json.h"
#include "tests/support/error_of.h"
#include "tests/support/processor_time.h"

namespace hetermoe {
namespace {

std::string json_error(const std::string& text) {
  return error_of<ConfigError>([&] { parse_json(text, "f"); });
}
std::string yaml_error(const std::string& text) {
  return error_of<ConfigError>([&] { parse_yaml(text, "f"); });
}

TEST(Json, TruncatedTextSaysSo) {
  EXPECT_EQ(json_error("{\"a\":\n [1, 2"),
            "[f:2] not valid JSON (byte 13 of 12): the text ends too early; is the file truncated?");
}

/// How much longer sixteen times `names` names of an object take: 16 where the time grows with the text, else
/// up to 256.
template <class Parse>
double growth_of_time(const Parse& parse, int names, const std::string& value) {
  const auto time_of = [&](int count) {
    std::string text = "{";
    for (int i = 1; i < count; ++i) text += fmt::format("\"name{}\": {},\n", i, value);
    text += fmt::format("\"last\": {}}}", value);
    Seconds least = 1e9;
    for (int repeat = 0; repeat < 2; ++repeat) {
      const Seconds start = testing::processor_time();
      EXPECT_EQ(parse(text, "f").size(), static_cast<std::size_t>(count));
      least = std::min(least, testing::processor_time() - start);
    }
    return least;
  };
  return time_of(16 * names) / time_of(names);
}

TEST(Json, TheTimeOfAnObjectGrowsAsItsNames) {
  EXPECT_LT(growth_of_time(parse_json, 5000, "{\"a\": [1]}"), 64);
  EXPECT_LT(growth_of_time(parse_sorted_json, 5000, "{\"a\": [1]}"), 64);
}

TEST(Yaml, TheTimeOfAMappingGrowsAsItsKeys) { EXPECT_LT(growth_of_time(parse_yaml, 2000, "1"), 64); }

TEST(Json, ValuesAreThoseOfTheLibrary) {
  for (
      const std::string text :
      {R"({"b": {"y": [], "x": {}}, "a": [1, -2, 3.5, 18446744073709551615, true, null, "\u00e9", [[{"z": 0}]]]})",
       R"([{"a": 1}, {"a": 2}])", R"("text")", "-7", "null", " [ ] "}) {
    EXPECT_EQ(parse_json(text, "f"), Json::parse(text)) << text;
    EXPECT_EQ(parse_json(text, "f").dump(), Json::parse(text).dump()) << text;  // the order, too
    EXPECT_EQ(parse_sorted_json(text, "f"), SortedJson::parse(text)) << text;
  }
}

TEST(Json, OfANameThatStandsTwiceTheLastValueCountsOrItIsAnError) {
  const std::string text = R"({"a": 1, "b": {"a": 2}, "a": [3], "c": 4})";
  EXPECT_EQ(parse_json(text, "f").dump(), R"({"a":[3],"b":{"a":2},"c":4})");
  EXPECT_EQ(error_of<ConfigError>([&] { parse_sorted_json(text, "f"); }),
            "[f] \"a\" is given twice, expected each name once");
  EXPECT_EQ(error_of<ConfigError>([&] { parse_sorted_json(R"({"b": {"c": 1, "c": 1}})", "f"); }),
            "[f] \"c\" is given twice, expected each name once");
  EXPECT_EQ(parse_sorted_json(R"([{"a": 1}, {"a": {"a": 2}}])", "f").dump(), R"([{"a":1},{"a":{"a":2}}])");
}

TEST(Json, NumbersThatNoDoubleHoldsAreErrors) {
  EXPECT_EQ(json_error("{\"b\": 1,\n\"a\": 1e999}"), "[f:2] number 1e999 is too large or too small");
  EXPECT_EQ(yaml_error("b: 1\na: 1e999"), "[f:2] number 1e999 is too large or too small");
}

TEST(Json, BinaryIsNoText) {
  const std::string expected = "[f:2] not a text file: got byte 0xff at position 5, expected UTF-8 text";
  EXPECT_EQ(json_error("{\"a\"\n\xff: 1}"), expected);
  EXPECT_EQ(yaml_error("a: 1\n\xff"), expected);
  EXPECT_EQ(yaml_error(std::string("a: \0", 4)),
            "[f:1] not a text file: got byte 0x00 at position 3, expected UTF-8 text");
  EXPECT_EQ(json_error("\"\xc3").substr(0, 32),
            "[f:1] not a text file: got byte ");  // cut inside a character
  EXPECT_EQ(parse_json("\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"", "f"),
            "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
}

TEST(Json, DeepNestingIsAnErrorNotACrash) {
  for (const std::string open : {"[", "{\"a\":"}) {
    std::string deep;
    for (int i = 0; i < 100000; ++i) deep += open;
    EXPECT_EQ(json_error(deep), "[f:1] nested more than 200 levels deep");
    EXPECT_EQ(error_of<ConfigError>([&] { parse_sorted_json(deep, "f"); }),
              "[f:1] nested more than 200 levels deep");
  }
  EXPECT_NE(yaml_error(std::string(5000, '[')), "no error");
  EXPECT_EQ(json_error("[\"" + std::string(500, '[') + "\\\"[\"]"),
            "no error");  // brackets inside of a string
}

TEST(Yaml, ScalarsAreThoseOfTheCoreSchema) {
  EXPECT_EQ(parse_yaml("[1, -2, +3, 0x1F, 0o17, 18446744073709551615, .5, 1e3, -1.5E-2]", "f").dump(),
            "[1,-2,3,31,15,18446744073709551615,0.5,1000.0,-0.015]");
  EXPECT_EQ(parse_yaml("[true, FALSE, ~, Null, '1', \"true\", yes]", "f").dump(),
            R"([true,false,null,null,"1","true","yes"])");
  EXPECT_EQ(parse_yaml("[inf, nan, +-1, 1_000, 1x, ., -, 0x, infinity]", "f").dump(),
            R"(["inf","nan","+-1","1_000","1x",".","-","0x","infinity"])");
}

TEST(Yaml, DuplicateKeyIsAnError) { EXPECT_EQ(yaml_error("a: 1\na: 2"), "[f:2] key \"a\" is given twice"); }

TEST(Yaml, AliasesAreCopies) {
  EXPECT_EQ(parse_yaml("a: &x {b: 1}\nc: [*x, *x]", "f").dump(), R"({"a":{"b":1},"c":[{"b":1},{"b":1}]})");
}

TEST(Yaml, AliasesThatNeverEndAreErrors) {
  EXPECT_NE(yaml_error("a: &x [*x]"), "no error");
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    laughs += fmt::format("a{}: &a{} [", i, i);
    for (int j = 0; j < 10; ++j) laughs += fmt::format("*a{}{}", i - 1, j < 9 ? ", " : "]\n");
  }
  EXPECT_NE(yaml_error(laughs).find("too deeply nested or too long"), std::string::npos);
}

TEST(Yaml, AliasesThatMakeMuchOfLittleAreErrors) {
  std::string text = "a: &x " + std::string(1 << 20, 'x') + "\nb: [*x";
  for (int i = 0; i < 13; ++i) text += ", *x";
  EXPECT_EQ(parse_yaml(text + "]\n", "f").at("b").size(), 14u);
  EXPECT_EQ(yaml_error(text + ", *x]\n"),
            "[f:1] aliases make the text too large: expected at most 16777216 bytes in all");
  // Keys of a mapping count, too.
  std::string keys = "a: &x {" + std::string(1000, 'k') + ": 1}\nb: [*x";
  for (int i = 0; i < 20000; ++i) keys += ", *x";
  EXPECT_EQ(yaml_error(keys + "]\n"),
            "[f:1] aliases make the text too large: expected at most 16777216 bytes in all");
}

TEST(Yaml, ATextIsRefusedBeforeItTakesLong) {
  std::string text = "a: " + std::string((1 << 22) - 3, 'x');
  EXPECT_EQ(parse_yaml(text, "f").at("a").get<std::string>().size(), (1u << 22) - 3);
  EXPECT_EQ(yaml_error(text + "x"), "[f] is too large for YAML: got 4194305 bytes, expected at most 4194304");
  std::string list = "- [";
  for (int i = 0; i < 500000; ++i) list += "a,";
  EXPECT_EQ(yaml_error(list + "a]\n"), "[f:1] has too many keys and values: expected at most 500000");
}

TEST(Yaml, OnlyOneDocument) {
  EXPECT_EQ(parse_yaml("---\na: 1\n", "f").dump(), R"({"a":1})");
  EXPECT_EQ(parse_yaml("", "f"), nullptr);
  EXPECT_EQ(parse_yaml("# nothing\n", "f"), nullptr);
  EXPECT_EQ(yaml_error("a: 1\n---\nb: 2\n"), "[f] holds 2 YAML documents (parts after ---), expected one");
}

TEST(Yaml, TextAtWhichTheParserStandsStillIsAnError) {
  EXPECT_EQ(yaml_error(","), "[f:1] not valid YAML: unexpected text in column 1");
  EXPECT_EQ(yaml_error("a: 1\nb: 2\n}\n").substr(0, 22), "[f:3] not valid YAML: ");
}

TEST(Yaml, KeysArePlain) { EXPECT_EQ(yaml_error("? [a, b]\n: 1\n"), "[f:1] a key must be a plain text"); }

TEST(Describe, LongTextsAreCutBetweenCharacters) {
  std::string text(54, 'a');
  for (int i = 0; i < 20; ++i) text += "\xe2\x82\xac";
  const std::string got = describe(text);
  EXPECT_EQ(got, "string \"" + std::string(54, 'a') + "...");
}

}  // namespace
}  // namespace hetermoe
