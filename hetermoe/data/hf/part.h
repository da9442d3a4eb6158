#pragma once
#include <initializer_list>
#include <string>
#include <vector>

#include "hetermoe/base/sorted_json.h"

namespace hetermoe::hf {

/// The kind of a value, and a short one itself.
std::string shown(const SortedJson& value);

/// Whether a value is a whole number from 0 to 2^31 - 1.
bool is_token_number(const SortedJson& value);

/// An object within a tokenizer.json, and where it stands. All members throw ConfigError that names the place
/// and the key, with what was got and expected. Refers to the JSON.
class Part {
 public:
  /// where: as "tokenizer.json model".
  Part(const SortedJson& value, std::string where);

  const std::string& where() const { return where_; }
  /// Refuses keys other than these and "type".
  void only(std::initializer_list<const char*> known) const;
  bool has(const char* key) const;  ///< and it is not null
  std::string type() const { return text("type"); }

  std::string text(const char* key) const;
  std::string text(const char* key, const std::string& otherwise) const;
  bool flag(const char* key, bool otherwise) const;
  i64 number(const char* key) const;  ///< of an id: 0 to 2^31 - 1
  i64 number(const char* key, i64 otherwise) const;
  Part object(const char* key) const;
  std::vector<Part> objects(const char* key) const;  ///< entries of a list
  const SortedJson& at(const char* key) const;

  [[noreturn]] void refuse(const char* key, const std::string& expected) const;

 private:
  const SortedJson& json_;
  std::string where_;
};

}  // namespace hetermoe::hf
