#include "hetermoe/data/json_lines.h"

#include <fmt/ranges.h>

#include "hetermoe/base/error.h"
#include "hetermoe/base/json_depth.h"
#include "hetermoe/data/chat_lines.h"

namespace hetermoe {

std::string keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys.empty() ? "no keys" : fmt::format("the keys {}", fmt::join(keys, ", "));
}

namespace {

using TakeObject = std::function<bool(const Json& object, const std::string& place)>;

constexpr const char* kJsonBlanks = " \t\r\n";

/// each: what has the objects, "on each line".
Json json_object(std::string_view text, const std::string& place, const char* each) {
  if (json_too_deep(text)) fail<InputError>(place, "is nested more than {} levels deep", kMaxJsonDepth);
  Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) fail<InputError>(place, "is no JSON in UTF-8, expected an object {}", each);
  if (!object.is_object()) fail<InputError>(place, "got {}, expected an object", describe(object));
  return object;
}

/// Where the first element of an array ends: at its comma or bracket, or where the text does.
std::size_t element_end(std::string_view text) {
  i64 depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (depth == 0 && (c == ',' || c == ']')) {
      return i;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return text.size();
}

i64 for_each_element(std::string_view bytes, const std::string& where, const TakeObject& take) {
  const std::size_t all = bytes.size();
  char last = '[';
  bytes.remove_prefix(bytes.find(last) + 1);
  for (i64 number = 1; last != ']'; ++number) {
    const std::size_t before = all - bytes.size(), end = element_end(bytes);
    const std::string place = fmt::format("{} element {}", where, number);
    if (end == bytes.size()) fail<InputError>(place, "is cut: the array has no end, expected ]");
    if (!take(json_object(bytes.substr(0, end), place, "in each element"), place))
      return static_cast<i64>(before);
    last = bytes[end];
    bytes.remove_prefix(end + 1);
  }
  if (bytes.find_first_not_of(kJsonBlanks) != std::string_view::npos)
    fail<InputError>(where, "goes on after the end of its array, expected one array");
  return static_cast<i64>(all);
}

i64 for_each_line(std::string_view bytes, const std::string& where, const TakeObject& take) {
  i64 number = 0;
  const std::size_t all = bytes.size();
  while (!bytes.empty()) {
    const std::size_t before = all - bytes.size();
    const std::size_t end = std::min(bytes.find('\n'), bytes.size());
    const std::string_view text = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = fmt::format("{} line {}", where, number);
    if (!take(json_object(text, place, "on each line"), place)) return static_cast<i64>(before);
  }
  return static_cast<i64>(all);
}

}  // namespace

bool begins_as_json_array(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (const char bracket : {'[', '{'}) {
    text.remove_prefix(std::min(text.find_first_not_of(kJsonBlanks), text.size()));
    if (!text.starts_with(bracket)) return false;
    text.remove_prefix(1);
  }
  return true;
}

i64 for_each_json_object(std::string_view bytes, const std::string& where, const TakeObject& take) {
  return begins_as_json_array(bytes) ? for_each_element(bytes, where, take)
                                     : for_each_line(bytes, where, take);
}

i64 for_each_json_text(std::string_view bytes, const std::string& field, const std::string& where,
                       const std::function<bool(const std::string&)>& take) {
  return for_each_json_object(bytes, where, [&](const Json& object, const std::string& place) {
    const auto found = object.find(field);
    if (found == object.end()) {
      fail<InputError>(place, "has no \"{}\" but {}. Name the key of the text by data.json_field{}", field,
                       keys_of(object),
                       looks_like_conversation(object) ? ", or for conversations a data.template" : "");
    }
    if (!found->is_string())
      fail<InputError>(place, "\"{}\" is {}, expected a text", field, describe(*found));
    return take(found->get_ref<const std::string&>());
  });
}

}  // namespace hetermoe
