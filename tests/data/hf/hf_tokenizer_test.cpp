#include "hetermoe/data/hf/hf_tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/report/escape.h"
#include "tests/support/case_count.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

const std::string kFolder = HM_SOURCE_DIR "/tests/data/hf/";
const std::vector<std::string> kShapes = {"qwen3",       "llama3",  "olmoe",  "deepseek_v3",
                                          "deepseek_v2", "gpt_oss", "llama2", "mixtral",
                                          "words",       "spaces",  "prefix"};

SortedJson shape(const std::string& name) { return read_json(kFolder + name + ".json"); }
hf::HfTokenizer tokenizer_of(const SortedJson& json) { return {json, "t.json", std::nullopt}; }

std::vector<i64> joined(const std::vector<std::vector<i64>>& parts) {
  std::vector<i64> out;
  for (const std::vector<i64>& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

class HfShapes : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, HfShapes, ::testing::ValuesIn(kShapes),
                         [](const auto& info) { return info.param; });

// The cases are those of the package tokenizers 0.23.3, written by make_tokenizers.py.
TEST_P(HfShapes, IdsAndTextsAreThoseOfThePackage) {
  const hf::HfTokenizer tokenizer(shape(GetParam()), GetParam(), std::nullopt);
  const Json cases = read_json(kFolder + GetParam() + ".cases.json");
  ASSERT_GT(cases.size(), 200U);
  for (const Json& each : cases) {
    const std::string text = each[0].get<std::string>();
    const std::vector<i64> ids = tokenizer.encode(text);
    EXPECT_EQ(Json(ids), each[1]) << Json(text);
    EXPECT_EQ(Json(joined({tokenizer.frame().before, ids, tokenizer.frame().after})), each[2]) << Json(text);
    EXPECT_EQ(valid_utf8(tokenizer.decode(each[1].get<std::vector<i64>>())), each[3].get<std::string>())
        << Json(text);
  }
}

TEST_P(HfShapes, TextsEncodedTogetherByThreadsHaveTheSameIds) {
  const hf::HfTokenizer tokenizer(shape(GetParam()), GetParam(), std::nullopt);
  const Json cases = read_json(kFolder + GetParam() + ".cases.json");
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (const Json& each : cases) wrong += Json(tokenizer.encode(each[0].get<std::string>())) != each[1];
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, 0);
}

/// Tokens of parts that end where a document of text may, each encoded by itself.
std::vector<i64> by_documents(const hf::HfTokenizer& tokenizer, const std::vector<std::string>& documents) {
  std::vector<i64> out;
  for (const std::string& text : documents) {
    const std::vector<i64> ids = tokenizer.encode(text);
    out.insert(out.end(), ids.begin(), ids.end());
  }
  return out;
}

// A long text is divided among cores. Special tokens cut it into texts that are too short for that.
TEST(HfTokenizers, ALongTextHasTheTokensOfItsParts) {
  testing::Turns turns(3);
  for (const std::string name : {"qwen3", "deepseek_v3", "deepseek_v2"}) {
    if (!turns.takes()) continue;
    const hf::HfTokenizer tokenizer = tokenizer_of(shape(name));
    const Json cases = read_json(kFolder + name + ".cases.json");
    std::string text;
    std::vector<std::string> parts;
    // A letter after a line break ends every match of these patterns, so the parts are texts of their own.
    for (std::size_t i = 0; text.size() < 3 << 20; ++i) {
      std::string part =
          "a" + cases[i * 7919 % cases.size()][0].get<std::string>() + (i % 5 == 0 ? "b\n" : "b ");
      if (part.find_first_of("<|") != std::string::npos) continue;
      text += part;
      if (parts.empty() || parts.back().ends_with("b\n"))
        parts.push_back(part);
      else
        parts.back() += part;
    }
    EXPECT_EQ(tokenizer.encode(text), by_documents(tokenizer, parts)) << name;
  }
}

// Matches go over line breaks here, so no core begins where one ends.
TEST(HfTokenizers, ALongTextWithoutGoodCutsHasTheTokensOfItsParts) {
  SortedJson json = shape("qwen3");
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[^z]+|z";
  const hf::HfTokenizer tokenizer = tokenizer_of(json);
  std::string text;
  std::vector<std::string> parts;
  for (std::size_t i = 0; text.size() < 3 << 20; ++i) {
    parts.emplace_back();
    for (std::size_t line = 0; line < 5000 + i * 37; ++line) parts.back() += "the layer\n";
    text += parts.back() += "z";
  }
  EXPECT_EQ(tokenizer.encode(text), by_documents(tokenizer, parts));
}

TEST(HfTokenizers, BytesThatAreNoUtf8AreReadAsReplacementCharacters) {
  for (const std::string& name : kShapes) {
    const hf::HfTokenizer tokenizer = tokenizer_of(shape(name));
    EXPECT_EQ(tokenizer.encode("a\xff b\xe4\xb8"), tokenizer.encode("a\uFFFD b\uFFFD")) << name;
  }
}

TEST(HfTokenizers, ATextThatGoesOnHasNoBlankOfTheBegin) {
  const hf::HfTokenizer mixtral = tokenizer_of(shape("mixtral"));
  const std::vector<i64> whole = mixtral.encode("<s>the layer");
  EXPECT_EQ(joined({mixtral.encode("<s>"), mixtral.encode_inside("the layer")}), whole);
  EXPECT_NE(joined({mixtral.encode("<s>"), mixtral.encode("the layer")}), whole);
}

TEST(HfTokenizers, SpecialTokensAreFoundByName) {
  const hf::HfTokenizer tokenizer = tokenizer_of(shape("llama3"));
  const SortedJson json = shape("llama3");
  EXPECT_EQ(tokenizer.encode_special("<|eot_id|>"),
            std::vector<i64>{json["model"]["vocab"]["<|eot_id|>"].get<i64>()});
  EXPECT_EQ(tokenizer.encode_special("<|none|>"), std::vector<i64>{});
  EXPECT_EQ(tokenizer.begin_tokens(), tokenizer.encode_special("<|begin_of_text|>"));
  EXPECT_EQ(tokenizer.vocab_size(), static_cast<i64>(json["model"]["vocab"].size()));
  EXPECT_EQ(tokenizer.decode(std::vector<i64>{-1, 99999}), "<-1><99999>");
}

TEST(HfTokenizers, TheFilesBesideTheTokenizerNameItsEndToken) {
  const WorkFolder folder;
  const std::string path = folder.file("tokenizer.json", read_text(kFolder + "qwen3.json"));
  EXPECT_EQ(make_tokenizer(path)->end_token(), std::nullopt);
  folder.file("special_tokens_map.json", R"({"eos_token": {"content": "<|im_end|>"}})");
  EXPECT_EQ(make_tokenizer(path)->end_token(), make_tokenizer(path)->encode_special("<|im_end|>").at(0));
  folder.file("tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  EXPECT_EQ(make_tokenizer(folder.path().string())->end_token(),
            make_tokenizer(path)->encode_special("<|endoftext|>").at(0));
  folder.file("tokenizer_config.json", R"({"eos_token": "<|none|>"})");
  EXPECT_NE(error_of<ConfigError>([&] { make_tokenizer(path); }).find("has no token <|none|>"),
            std::string::npos);
}

// Damage of a file: what is said of it.
TEST(HfTokenizers, WhatIsDamagedOrNotKnownIsNamed) {
  const SortedJson good = shape("qwen3");
  const auto refused = [&](const SortedJson& patch, const std::string& words) {
    SortedJson json = good;
    json.merge_patch(patch);
    const std::string error = error_of<ConfigError>([&] { tokenizer_of(json); });
    EXPECT_NE(error.find(words), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  };
  refused({{"model", {{"type", "Unigram"}}}}, "[t.json model] \"type\" is string \"Unigram\", expected BPE");
  refused({{"model", nullptr}}, "[t.json] has no \"model\"");
  refused({{"model", {{"vocab", 3}}}}, "\"vocab\" is integer 3, expected an object");
  refused({{"model", {{"vocab", {{"a", -1}}}}}}, "the token a has integer -1, expected its number");
  refused({{"model", {{"merges", {"a"}}}}}, "[t.json model merges[0]] is string \"a\", expected two tokens");
  refused({{"model", {{"merges", {"a nonsense"}}}}}, "needs the token nonsense");
  refused({{"model", {{"unk_token", "none"}}}}, "\"unk_token\" is string \"none\", expected a token");
  refused({{"model", {{"end_of_word_suffix", "</w>"}}}}, "expected nothing");
  refused({{"model", {{"new_key", 1}}}}, "got the key new_key, expected dropout");
  refused({{"normalizer", {{"type", "Nmt"}}}},
          "[t.json normalizer] \"type\" is string \"Nmt\", expected NFC");
  refused({{"pre_tokenizer", {{"type", "UnicodeScripts"}}}}, "expected Split, ByteLevel");
  refused({{"decoder", {{"type", "WordPiece"}}}}, "expected ByteLevel, ByteFallback");
  refused({{"post_processor", {{"type", "BertProcessing"}}}}, "expected TemplateProcessing");
  refused({{"added_tokens", {{{"id", 1}}}}}, "[t.json added_tokens[0]] has no \"content\"");
  refused({{"added_tokens", {{{"id", 1 << 30}, {"content", "x|"}}}}}, "expected less than 16777216");
  refused({{"added_tokens", {{{"id", 600}, {"content", "a"}}}}}, "expected one number");
  refused({{"pre_tokenizer", {{"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}}}},
          "[t.json pre_tokenizer pretokenizers[1]] follows ByteLevel");
}

TEST(HfTokenizers, WhatIsNoTokenizerNamesTheScript) {
  const WorkFolder folder;
  const std::string path = folder.file("tokenizer.json", "{}");
  EXPECT_EQ(error_of<ConfigError>([&] { make_tokenizer(path); }),
            "[data.tokenizer] [" + path +
                "] has no \"model\". tools/tokenize_text.py makes tokens of text by any "
                "tokenizer.json: docs/data.md");
  EXPECT_EQ(try_tokenizer(path), nullptr);
}

TEST(HfTokenizers, ALongTextOfOneCharacterIsEncoded) {
  for (const std::string& name : kShapes) {
    const hf::HfTokenizer tokenizer = tokenizer_of(shape(name));
    for (const std::string unit : {"a", " ", "ab", "\n"}) {
      std::string text;
      while (text.size() < testing::case_count(1U << 15, 1U << 18)) text += unit;
      EXPECT_LE(tokenizer.encode(text).size(), text.size() + 1) << name;
    }
  }
}

}  // namespace
}  // namespace hetermoe
