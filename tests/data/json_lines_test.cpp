#include "hetermoe/data/json_lines.h"

#include <gtest/gtest.h>

#include "hetermoe/data/dataset.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

// Files that are one array of objects.
namespace hetermoe {
namespace {

DataOptions talk_at(const std::string& path) {
  DataOptions options;
  options.paths = {path};
  options.validation_share = 0;
  options.chat_template = "plain";
  return options;
}

/// Tokens, and which of them are counted.
std::pair<std::vector<i64>, std::vector<i64>> counts_of(const TokenStream& all) {
  std::vector<i64> counted(static_cast<std::size_t>(all.size()));
  all.mark_counted(0, all.size(), counted.data());
  return {all.tokens(0, all.size()), counted};
}

TEST(JsonArray, BeginsWithItsFirstObject) {
  for (const char* text : {"[{", " [\n {\"a\": 1}]", "\xEF\xBB\xBF[\t{}]"})
    EXPECT_TRUE(begins_as_json_array(text)) << text;
  for (const char* text : {"", "[", "[]", "{\"a\": [{}]}", "[1, {}]", "x[{}]"})
    EXPECT_FALSE(begins_as_json_array(text)) << text;
}

TEST(JsonArray, ItsConversationsAreThoseOfTheSameLines) {
  const WorkFolder folder;
  const Json first = {{"instruction", "a ], \"b\" }"}, {"output", "[c\\"}};
  const Json second = {
      {"conversations", {{{"from", "human"}, {"value", "x"}}, {{"from", "gpt"}, {"value", "y"}}}}};
  const Source expected =
      load_dataset(talk_at(folder.file("a.jsonl", first.dump() + "\n" + second.dump() + "\n")), 48)
          .sources[0];
  const Json array = {first, second};
  for (const std::string& text : {array.dump(), array.dump(2) + "\n", "\xEF\xBB\xBF \n" + array.dump(1)}) {
    const Source got = load_dataset(talk_at(folder.file("in/a.json", text)), 48).sources[0];
    EXPECT_EQ(counts_of(got.all), counts_of(expected.all)) << text;
    EXPECT_EQ(got.num_conversations, 2);
    EXPECT_EQ(got.bytes_read, static_cast<i64>(text.size()));
  }
  EXPECT_EQ(counts_of(load_dataset(talk_at(folder / "in"), 48).sources[0].all), counts_of(expected.all));
  DataOptions part = talk_at(folder / "in");
  part.max_bytes = 14;  // of the first conversation
  const Source begin = load_dataset(part, 48).sources[0];
  EXPECT_EQ(begin.num_conversations, 1);
  EXPECT_LT(begin.bytes_read, begin.bytes_there);
}

TEST(JsonArray, ABrokenElementIsRefusedWithItsNumber) {
  const WorkFolder folder;
  const auto refused = [&](const std::string& text) {
    const std::string path = folder.file("a.json", text);
    const std::string message = error_of<InputError>([&] { load_dataset(talk_at(path), 24); });
    EXPECT_TRUE(message.starts_with("[" + path)) << message;
    return message.substr(std::min(message.size(), path.size() + 1));
  };
  const std::string first = R"([{"instruction": "a", "output": "b"})";
  EXPECT_EQ(refused(first + ", 3]"), " element 2] got integer 3, expected an object");
  EXPECT_EQ(refused(first + ",\n]"), " element 2] is no JSON in UTF-8, expected an object in each element");
  EXPECT_EQ(refused(first + " {}]"), " element 1] is no JSON in UTF-8, expected an object in each element");
  EXPECT_EQ(refused(first + ", {\"a\": \"]"), " element 2] is cut: the array has no end, expected ]");
  EXPECT_EQ(refused(first), " element 1] is cut: the array has no end, expected ]");
  EXPECT_EQ(refused(first + "] x"), "] goes on after the end of its array, expected one array");
  EXPECT_NE(refused(first + R"(, {"a": 1}])").find(" element 2] "), std::string::npos);
}

}  // namespace
}  // namespace hetermoe
