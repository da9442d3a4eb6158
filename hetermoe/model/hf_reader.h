#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/fields.h"
#include "hetermoe/base/json.h"
#include "hetermoe/base/types.h"

namespace hetermoe {

/// No real model has a size above this. Products of sizes stay inside 64 bits.
inline constexpr i64 kMaxWidth = i64{1} << 24;
inline constexpr i64 kMaxPositions = i64{1} << 40;

/// Several names of one setting.
using Names = std::vector<const char*>;

/// Typed access to the keys of one config.json. A key that holds null counts as missing, as in transformers.
class HfReader {
 public:
  HfReader(const Json& config, const std::string& file) : config_(config), file_(file) {
    if (!config.is_object()) detail::wrong_type(file, config, "an object, as in a Hugging Face config.json");
  }

  std::string where(const std::string& key) const { return file_ + " " + key; }
  bool has(const char* key) const { return config_.contains(key); }
  const Json* find(const char* key) const {
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }

  /// The value of any of several names of one setting; names that disagree are an error.
  template <class T>
  std::optional<T> read(const Names& names, const Range& range = {}) const {
    std::optional<T> value;
    std::string first;
    for (const char* name : names) {
      const Json* json = find(name);
      if (!json) continue;
      T item{};
      read_value(*json, item, where(name), range);
      if (value && *value != item) {
        fail<ConfigError>(where(name), "two names of one setting disagree: got {} here and {} in \"{}\"",
                          item, *value, first);
      }
      value = item;
      first = name;
    }
    return value;
  }
  template <class T>
  T read_or(const Names& names, T missing, const Range& range = {}) const {
    return read<T>(names, range).value_or(missing);
  }
  i64 size(const Names& names, i64 max = kMaxWidth) const {
    const std::optional<i64> value = read<i64>(names, between(1, static_cast<double>(max)));
    if (!value) {
      std::string aliases;
      for (const char* name : names)
        aliases += name == names.front() ? "" : fmt::format(" (or \"{}\")", name);
      fail<ConfigError>(where(names.front()), "missing{}: expected an integer from 1 to {}", aliases, max);
    }
    return *value;
  }
  i64 size_or(const Names& names, i64 missing, i64 max = kMaxWidth) const {
    return read<i64>(names, between(1, static_cast<double>(max))).value_or(missing);
  }

 private:
  const Json& config_;
  const std::string& file_;
};

}  // namespace hetermoe
