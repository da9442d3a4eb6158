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

i64 for_each_json_line(std::string_view bytes, const std::string& where,
                       const std::function<bool(const Json& line, const std::string& place)>& take) {
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
    if (json_too_deep(text)) fail<InputError>(place, "is nested more than {} levels deep", kMaxJsonDepth);
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (line.is_discarded()) fail<InputError>(place, "is no JSON in UTF-8, expected an object on each line");
    if (!line.is_object()) fail<InputError>(place, "got {}, expected an object", describe(line));
    if (!take(line, place)) return static_cast<i64>(before);
  }
  return static_cast<i64>(all);
}

i64 for_each_json_text(std::string_view bytes, const std::string& field, const std::string& where,
                       const std::function<bool(const std::string&)>& take) {
  return for_each_json_line(bytes, where, [&](const Json& line, const std::string& place) {
    const auto found = line.find(field);
    if (found == line.end()) {
      fail<InputError>(place, "has no \"{}\" but {}. Name the key of the text by data.json_field{}", field,
                       keys_of(line),
                       looks_like_conversation(line) ? ", or for conversations a data.template" : "");
    }
    if (!found->is_string())
      fail<InputError>(place, "\"{}\" is {}, expected a text", field, describe(*found));
    return take(found->get_ref<const std::string&>());
  });
}

}  // namespace hetermoe
