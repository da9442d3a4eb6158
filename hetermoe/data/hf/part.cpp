#include "hetermoe/data/hf/part.h"

#include <fmt/ranges.h>

#include <limits>

#include "hetermoe/base/error.h"

namespace hetermoe::hf {

std::string shown(const SortedJson& value) {
  if (value.is_structured()) return fmt::format("{} of {}", value.type_name(), value.size());
  return describe(Json(value));
}

bool is_token_number(const SortedJson& value) {
  return value.is_number_integer() && value >= 0 && value <= std::numeric_limits<i32>::max();
}

Part::Part(const SortedJson& value, std::string where) : json_(value), where_(std::move(where)) {
  if (!json_.is_object()) fail<ConfigError>(where_, "got {}, expected an object", shown(json_));
}

void Part::only(std::initializer_list<const char*> known) const {
  for (const auto& [key, value] : json_.items()) {
    const bool is_known = key == "type" || std::find(known.begin(), known.end(), key) != known.end();
    if (!is_known) fail<ConfigError>(where_, "got the key {}, expected {}", key, fmt::join(known, ", "));
  }
}

bool Part::has(const char* key) const {
  const auto found = json_.find(key);
  return found != json_.end() && !found->is_null();
}

const SortedJson& Part::at(const char* key) const {
  const auto found = json_.find(key);
  if (found == json_.end()) fail<ConfigError>(where_, "has no \"{}\"", key);
  return *found;
}

void Part::refuse(const char* key, const std::string& expected) const {
  fail<ConfigError>(where_, "\"{}\" is {}, expected {}", key, shown(at(key)), expected);
}

std::string Part::text(const char* key) const {
  if (!at(key).is_string()) refuse(key, "a text");
  return at(key).get<std::string>();
}

std::string Part::text(const char* key, const std::string& otherwise) const {
  return has(key) ? text(key) : otherwise;
}

bool Part::flag(const char* key, bool otherwise) const {
  if (!has(key)) return otherwise;
  if (!at(key).is_boolean()) refuse(key, "true or false");
  return at(key).get<bool>();
}

i64 Part::number(const char* key) const {
  const SortedJson& value = at(key);
  if (!is_token_number(value)) refuse(key, "a whole number from 0 to 2147483647");
  return value.get<i64>();
}

i64 Part::number(const char* key, i64 otherwise) const { return has(key) ? number(key) : otherwise; }

Part Part::object(const char* key) const { return {at(key), where_ + " " + key}; }

std::vector<Part> Part::objects(const char* key) const {
  const SortedJson& list = at(key);
  if (!list.is_array()) refuse(key, "a list");
  std::vector<Part> out;
  out.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i)
    out.emplace_back(list[i], fmt::format("{} {}[{}]", where_, key, i));
  return out;
}

}  // namespace hetermoe::hf
