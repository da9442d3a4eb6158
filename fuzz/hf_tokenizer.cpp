#include "hetermoe/data/hf/hf_tokenizer.h"

#include "fuzz/target.h"

// A tokenizer.json: what is read makes tokens of the vocabulary from any text, and text of these.
namespace hetermoe::fuzz {
namespace {

void run(const std::string& input) {
  const hf::HfTokenizer tokenizer(parse_sorted_json(input, "input"), "input", std::nullopt);
  for (const std::string& text :
       {std::string("The layer's 123 <s>\r\n e\u0301 \u4e2d\xff  x"), std::string(300, 'a')}) {
    const std::vector<i64> tokens = tokenizer.encode(text);
    for (const i64 token : tokens) {
      if (token < 0 || token >= tokenizer.vocab_size())
        throw std::logic_error("a token beyond the vocabulary");
    }
    tokenizer.decode(tokens);
  }
}

std::vector<std::string> seeds() {
  return {
      R"json({"added_tokens": [{"id": 4, "content": "<s>", "lstrip": true, "special": true}], "normalizer": null,
 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split",
 "pattern": {"Regex": " ?\\p{L}+|\\s+(?!\\S)"},
 "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
 "post_processor": {"type": "TemplateProcessing",
 "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
 "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}}, "decoder": {"type": "ByteLevel"},
 "model": {"type": "BPE", "vocab": {"a": 0, "e": 1, "y": 2, "ye": 3}, "merges": ["y e"], "ignore_merges": true}})json",
      R"json({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}, {"type": "NFC"},
 {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]}, "decoder": {"type": "Sequence", "decoders": [
 {"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
 {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}, "model": {"type": "BPE", "unk_token": "<unk>",
 "fuse_unk": true, "byte_fallback": true, "vocab": {"<unk>": 0, "<0xFF>": 1, "_": 2, "x": 3, "_x": 4},
 "merges": [["_", "x"]]}})json",
      R"json({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Metaspace", "replacement": "_",
 "prepend_scheme": "first"}, {"type": "Digits", "individual_digits": true}, {"type": "Punctuation"}]},
 "model": {"vocab": {"a": 0}, "merges": []}})json"};
}

}  // namespace

extern const Target kHfTokenizer{"hf_tokenizer", run, seeds};

}  // namespace hetermoe::fuzz
