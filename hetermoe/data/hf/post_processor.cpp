#include "hetermoe/data/hf/post_processor.h"

#include "hetermoe/base/error.h"

namespace hetermoe::hf {
namespace {

/// Numbers of a special token of a template.
std::vector<i64> tokens_of(const Part& special, const std::string& name) {
  const Part token = special.object(name.c_str());
  token.only({"id", "ids", "tokens"});
  const SortedJson& list = token.at("ids");
  if (!list.is_array()) token.refuse("ids", "numbers of tokens");
  std::vector<i64> out;
  for (const SortedJson& id : list) {
    if (!is_token_number(id)) token.refuse("ids", "numbers of tokens");
    out.push_back(id.get<i64>());
  }
  return out;
}

/// The entries of "single": one is the text, the others are special tokens.
Frame read_template(const Part& part) {
  part.only({"single", "pair", "special_tokens"});
  const Part special = part.object("special_tokens");
  Frame out;
  bool after = false;
  for (const Part& entry : part.objects("single")) {
    entry.only({"SpecialToken", "Sequence"});
    if (entry.has("Sequence")) {
      if (after) fail<ConfigError>(entry.where(), "is the text again, expected it once");
      after = true;
      continue;
    }
    const std::vector<i64> tokens = tokens_of(special, entry.object("SpecialToken").text("id"));
    std::vector<i64>& side = after ? out.after : out.before;
    side.insert(side.end(), tokens.begin(), tokens.end());
  }
  if (!after) part.refuse("single", "the text among its entries");
  return out;
}

void wrap(const Frame& outer, Frame& frame) {
  frame.before.insert(frame.before.begin(), outer.before.begin(), outer.before.end());
  frame.after.insert(frame.after.end(), outer.after.begin(), outer.after.end());
}

}  // namespace

Frame read_post_processor(const Part& part) {
  const std::string type = part.type();
  Frame out;
  if (type == "Sequence") {
    part.only({"processors"});
    for (const Part& each : part.objects("processors")) wrap(read_post_processor(each), out);
  } else if (type == "TemplateProcessing") {
    return read_template(part);
  } else if (type != "ByteLevel") {  // which changes offsets alone
    part.refuse("type", "TemplateProcessing, ByteLevel or Sequence");
  }
  return out;
}

}  // namespace hetermoe::hf
