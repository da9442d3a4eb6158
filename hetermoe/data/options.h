#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/fields.h"

namespace hetermoe {

/// Whether a token of one document sees the documents before it in the same sequence.
enum class Documents { kPacked, kMasked };
template <>
struct EnumNames<Documents> {
  static const std::vector<std::string>& names();
};

struct DataOptions {
  std::vector<std::string> paths;       ///< files or folders (searched recursively, in name order)
  std::vector<double> weights;          ///< [paths] or empty
  std::vector<std::string> domains;     ///< [paths] or empty
  std::vector<std::string> extensions;  ///< of files in folders; empty = all
  std::optional<i64> max_bytes;
  double validation_share = 0.05;
  std::string tokenizer = "bytes";
  std::string json_field = "text";
  std::string chat_template;
  bool answers_only = true;
  std::optional<i64> end_token;
  std::optional<Documents> documents;
  std::string cache;
  template <class V>
  void fields(V& v) {
    v("paths", paths,
      "files or folders: text, JSON lines (.jsonl, .jsonl.gz), a JSON array of objects (.json), tokens of "
      "Megatron (.idx with .bin) or llm.c (.bin): docs/data.md; empty = the Python standard library of this "
      "machine");
    v("weights", weights,
      "how often sequences are drawn from each of data.paths, as [3, 1]; empty = all paths are one source, "
      "read one after the other",
      above(0));
    v("domains", domains,
      "kinds of text, one name for each of data.paths with data.weights, as [code, prose, code]: routing "
      "traces and the balancer locality go by them; empty = the last part of each path");
    v("extensions", extensions, "endings of the files to take from folders, as .py; empty = all");
    v("max_bytes", max_bytes,
      "take at most so many bytes of text from a source; null = all there is, of the Python standard library "
      "8 MiB",
      at_least(1));
    v("validation_share", validation_share, "part at the end of each source that is kept for validation",
      between(0, 0.5));
    v("tokenizer", tokenizer,
      "what makes tokens of text: bytes, a SentencePiece model (FILE.model), a tokenizer.json, or a "
      "Hugging Face folder, which has one. Where the job gives none, it is that of the folder of "
      "train.init_from, model or "
      "data.template, if one of them is a folder. Files of tokens have theirs");
    v("json_field", json_field, "key of the text in each line of JSON lines, or in each object of an array");
    v("template", chat_template,
      "lines of JSON, and objects of an array, are conversations, rendered by this template: model (that of "
      "the folder of "
      "train.init_from, model or data.tokenizer), a folder whose tokenizer_config.json or "
      "chat_template.jinja has one, qwen3, chatml, llama3.1, llama3, mistral, deepseek-v2, deepseek-v3, or "
      "plain; empty = they are texts: docs/data.md");
    v("answers_only", answers_only,
      "of conversations the loss is that of the answers; false = of all that is said");
    v("end_token", end_token,
      "token after each document of text; null = the end token of the tokenizer (bytes have none). In files "
      "of llm.c the token with which a document begins",
      at_least(0));
    v("cache", cache,
      "folder that keeps the tokens of much text, so that the next start maps them; none = nowhere; empty = "
      "hetermoe/tokens in XDG_CACHE_HOME or ~/.cache");
    v("documents", documents,
      "packed: a token sees all tokens before it in its sequence; masked: only those of its own document, "
      "and the last token of a document has no target; null = masked where there are conversations");
  }
};

}  // namespace hetermoe
