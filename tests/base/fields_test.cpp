#include "hetermoe/base/fields.h"

#include <gtest/gtest.h>

#include "tests/support/error_of.h"

namespace hetermoe {

enum class Color { kRed, kLightBlue };
template <>
struct EnumNames<Color> {
  static const std::vector<std::string>& names() {
    static const std::vector<std::string> all = {"red", "light_blue"};
    return all;
  }
};

namespace {

struct Inner {
  double rate = 0.5;
  template <class V>
  void fields(V& v) {
    v("rate", rate, "learning rate", above(0));
  }
};
struct Outer {
  i64 steps = 10;
  Color color = Color::kRed;
  std::vector<i32> sizes = {1, 2};
  std::optional<std::string> name;
  Inner inner;
  template <class V>
  void fields(V& v) {
    v("steps", steps, "steps to run", at_least(1));
    v("color", color, "paint");
    v("sizes", sizes, "sizes");
    v("name", name, "name");
    v("inner", inner, "inner options");
  }
};

std::string message_of(const std::string& yaml) {
  Outer out;
  return error_of<ConfigError>([&] { read_fields(parse_yaml(yaml, "job.yaml"), out, "job.yaml "); });
}

TEST(Fields, RoundTripKeepsEveryMember) {
  Outer out;
  read_fields(parse_yaml("steps: 3\ncolor: light-blue\nsizes: [4]\nname: \"7\"\ninner: {rate: 2}", "t"), out,
              "t ");
  EXPECT_EQ(out.color, Color::kLightBlue);
  EXPECT_EQ(*out.name, "7");
  EXPECT_EQ(write_fields(out).dump(),
            R"({"steps":3,"color":"light_blue","sizes":[4],"name":"7","inner":{"rate":2.0}})");
}

TEST(Fields, UnknownKeyNamesTheNearest) {
  EXPECT_EQ(message_of("inner: {rat: 1}"),
            "[job.yaml inner] unknown key \"rat\". Known: rate. Did you mean \"rate\"?");
}

TEST(Fields, WrongTypeAndRangeNamePathAndValue) {
  EXPECT_EQ(message_of("steps: many"),
            "[job.yaml steps] wrong type: got string \"many\", expected an integer");
  EXPECT_EQ(message_of("steps: 0"), "[job.yaml steps] out of range: got 0, expected >= 1");
  EXPECT_EQ(message_of("sizes: [1, x]"),
            "[job.yaml sizes[1]] wrong type: got string \"x\", expected an integer");
  EXPECT_EQ(message_of("sizes: [9999999999]").substr(0, 34), "[job.yaml sizes[0]] out of range: ");
}

struct Needy {
  i64 device = 0;
  std::vector<i64> sizes;
  std::string note, name;
  double decay = 0.5;
  template <class V>
  void fields(V& v) {
    v("device", device, "device of the cluster", required(at_least(0)));
    v("sizes", sizes, "sizes", required());
    v("note", note, "a note", text_of_lines());
    v("name", name, "a name");
    v("decay", decay, "decay", below(0, 1));
  }
};

std::string needy_error(const Json& json) {
  Needy needy;
  return error_of<ConfigError>([&] { read_fields(json, needy, "f "); });
}

TEST(Fields, AKeyThatMustBeThereIsNamed) {
  EXPECT_EQ(needy_error({{"sizes", {1}}}),
            "[f] has no key \"device\", expected an integer: device of the cluster");
  EXPECT_EQ(needy_error({{"device", 1}}), "[f] has no key \"sizes\", expected a list of integer: sizes");
  EXPECT_EQ(needy_error({{"device", 1}, {"sizes", Json::array()}}), "no error");
}

struct Timed {
  double seconds = 0;
  i64 runs = 1;
  template <class V>
  void fields(V& v) {
    v("seconds", seconds, "median of the runs", above(0));
    v("runs", runs, "timed runs", at_least(1));
  }
};

TEST(Fields, AKeyWhoseDefaultIsOutOfRangeMustBeThere) {
  const auto error = [](const Json& json) {
    Timed timed;
    return error_of<ConfigError>([&] { read_fields(json, timed, "f "); });
  };
  EXPECT_EQ(error({{"runs", 3}}), "[f] has no key \"seconds\", expected a number: median of the runs");
  EXPECT_EQ(error({{"seconds", 0.5}}), "no error");
}

TEST(Fields, ARangeMayLeaveItsEndOut) {
  const auto with_decay = [](double decay) {
    return needy_error({{"device", 1}, {"sizes", {1}}, {"decay", decay}});
  };
  EXPECT_EQ(with_decay(0), "no error");
  EXPECT_EQ(with_decay(0.999), "no error");
  EXPECT_EQ(with_decay(1), "[f decay] out of range: got 1, expected >= 0 and < 1");
}

TEST(Fields, TextsHoldNoControlCharacters) {
  const auto with = [](const char* key, const std::string& text) {
    return needy_error({{"device", 1}, {"sizes", {1}}, {key, text}});
  };
  EXPECT_EQ(with("name", "a\nb"),
            "[f name] got string \"a\\nb\", expected a text without line breaks and control characters");
  EXPECT_NE(with("name", "\x1b[31m"), "no error");
  EXPECT_NE(with("name", "\xc2\x9b"), "no error");
  EXPECT_EQ(with("note", "a\nb\tc"), "no error");
  EXPECT_NE(with("note", "\x1b[31m"), "no error");
}

TEST(Fields, AnUnknownKeyIsShownAndNotObeyed) {
  EXPECT_NE(
      needy_error({{"device", 1}, {"sizes", {1}}, {"a\n\x1b[2J", 1}}).find("unknown key \"a\\n\\x1b[2J\""),
      std::string::npos);
}

struct Sizes {
  i64 a = 0;
  u64 b = 0;
  i32 c = 0;
  template <class V>
  void fields(V& v) {
    v("a", a, "signed");
    v("b", b, "unsigned");
    v("c", c, "short");
  }
};

TEST(Fields, IntegersNeverWrap) {
  const auto sizes_error = [](const Json& json) {
    Sizes sizes;
    return error_of<ConfigError>([&] { read_fields(json, sizes, "f "); });
  };
  EXPECT_EQ(sizes_error(parse_json("{\"a\": 9223372036854775807, \"b\": 18446744073709551615}", "f")),
            "no error");
  EXPECT_EQ(
      sizes_error(parse_json("{\"a\": 9223372036854775808}", "f")),
      "[f a] out of range: got 9223372036854775808, expected -9223372036854775808 to 9223372036854775807");
  EXPECT_EQ(sizes_error(parse_json("{\"b\": -1}", "f")),
            "[f b] out of range: got -1, expected 0 to 18446744073709551615");
  EXPECT_EQ(sizes_error(parse_yaml("c: 2147483648", "f")),
            "[f c] out of range: got 2147483648, expected -2147483648 to 2147483647");
  EXPECT_EQ(sizes_error(parse_yaml("b: 18446744073709551615", "f")), "no error");
  EXPECT_NE(sizes_error(parse_yaml("b: 18446744073709551616", "f")).find("expected an integer"),
            std::string::npos);
}

TEST(Fields, DocumentationListsTypeDefaultNamesAndRange) {
  std::string text;
  for (const FieldDoc& doc : document_fields<Outer>()) {
    text += fmt::format("{}: {} = {}; {}\n", doc.name, doc.type, doc.default_value, doc.help);
  }
  EXPECT_EQ(text,
            "steps: integer = 10; steps to run [>= 1]\n"
            "color: name = \"red\"; paint (red, light_blue)\n"
            "sizes: list of integer = [1,2]; sizes\n"
            "name: text = null; name\n"
            "inner.rate: number = 0.5; learning rate [> 0]\n");
}

TEST(Fields, FlagsAreNamedAsTyped) {
  Outer out;
  try {
    read_fields(parse_json("{\"inner\": {\"rate\": 0}}", "x"), out, "--");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "[--inner.rate] out of range: got 0, expected > 0");
  }
}

TEST(Json, YamlDuplicateKeyIsAnError) { EXPECT_THROW(parse_yaml("a: 1\na: 2", "x"), ConfigError); }

}  // namespace
}  // namespace hetermoe
