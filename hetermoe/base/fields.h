#pragma once
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"
#include "hetermoe/base/small_vector.h"
#include "hetermoe/base/suggest.h"
#include "hetermoe/base/types.h"

// Options are structs whose members are described once. Reading, writing, errors of ranges and unknown keys,
// help and docs/options.md follow from the description:
//
//   struct TrainOptions {
//     i64 steps = 100;
//     template <class V> void fields(V& v) {
//       v("steps", steps, "optimizer steps to run", at_least(1));
//     }
//   };
//
// A member may be bool, an integer, a double, a string, or an enum with names (see EnumNames). It may also be
// a std::vector, SmallVector or std::optional of these, or another struct with fields().
namespace hetermoe {

/// Limits of a member: the range of a number, inclusive, and more.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false, high_open = false;  ///< the end itself is not allowed
  bool required = false;                     ///< the key must be there
  bool lines = false;                        ///< a text of several lines
  std::optional<double> unset = {};          ///< a number that stands for "not given" is not written
};
inline Range at_least(double low) { return {low, std::numeric_limits<double>::infinity(), false}; }
inline Range above(double low) { return {low, std::numeric_limits<double>::infinity(), true}; }
inline Range between(double low, double high) { return {low, high, false}; }
/// From `low` on, `high` left out.
inline Range below(double low, double high) { return {low, high, false, true}; }
inline Range required(Range range = {}) {
  range.required = true;
  return range;
}
/// From this number on, which is not written.
inline Range unset_at(double low) {
  Range range = at_least(low);
  range.unset = low;
  return range;
}
inline Range text_of_lines() {
  Range range;
  range.lines = true;
  return range;
}
std::string to_string(const Range& range);

/// Specialise for an enum: names() gives the text of each value, in order of the values 0, 1, 2...
template <class E>
struct EnumNames;  // static const std::vector<std::string>& names();

template <class E>
concept NamedEnum = std::is_enum_v<E> && requires {
  EnumNames<E>::names();
};

template <NamedEnum E>
const std::string& name_of(E value) {
  return EnumNames<E>::names()[static_cast<std::size_t>(value)];
}

/// Accepts '-' for '_' and the reverse.
template <NamedEnum E>
E enum_from(const std::string& text, const std::string& where) {
  std::string with_underscores = text;
  for (char& c : with_underscores) c = c == '-' ? '_' : c;
  const std::vector<std::string>& names = EnumNames<E>::names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::string name = names[i];
    for (char& c : name) c = c == '-' ? '_' : c;
    if (name == with_underscores) return static_cast<E>(i);
  }
  fail<ConfigError>(where, "unknown value \"{}\".{}", text, known_names_hint(text, names));
}

namespace detail {
template <class T>
struct is_vector : std::false_type {};
template <class T>
struct is_vector<std::vector<T>> : std::true_type {};
template <class T>
struct is_vector<SmallVector<T>> : std::true_type {};
template <class T>
struct is_optional : std::false_type {};
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};
[[noreturn]] void wrong_type(const std::string& where, const Json& got, const std::string& expected);
bool is_in_range(double value, const Range& range);
void check_range(const std::string& where, double value, const Range& range);
/// Control characters are allowed in no text, line breaks and tabs only in a text of several lines.
void check_text(const std::string& where, const Json& text, const Range& range);
/// A key that must be there is not.
struct MissingKey {
  const char* name;
  std::string type;
  const char* help;
};
[[noreturn]] void missing_key(const std::string& where, const MissingKey& missing);
}  // namespace detail

template <class T>
void read_fields(const Json& json, T& out, const std::string& where);
template <class T>
Json write_fields(const T& value);

/// Reads one value. Throws ConfigError naming `where`, what was got and what was expected.
template <class T>
void read_value(const Json& json, T& out, const std::string& where, const Range& range = {}) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) detail::wrong_type(where, json, "true or false");
    out = json.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    if (!json.is_number_integer()) detail::wrong_type(where, json, "an integer");
    detail::check_range(where, json.get<double>(), range);
    const bool fits =
        json.is_number_unsigned() ? std::in_range<T>(json.get<u64>()) : std::in_range<T>(json.get<i64>());
    if (!fits) {
      fail<ConfigError>(where, "out of range: got {}, expected {} to {}", json.dump(),
                        std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max());
    }
    out = json.get<T>();
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!json.is_number()) detail::wrong_type(where, json, "a number");
    if (!std::isfinite(json.get<double>())) detail::wrong_type(where, json, "a finite number");
    detail::check_range(where, json.get<double>(), range);
    out = json.get<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!json.is_string()) detail::wrong_type(where, json, "a string");
    detail::check_text(where, json, range);
    out = json.get<std::string>();
  } else if constexpr (NamedEnum<T>) {
    if (!json.is_string()) detail::wrong_type(where, json, "a name");
    out = enum_from<T>(json.get<std::string>(), where);
  } else if constexpr (detail::is_vector<T>::value) {
    if (!json.is_array()) detail::wrong_type(where, json, "a list");
    out.clear();
    for (std::size_t i = 0; i < json.size(); ++i) {
      typename T::value_type item{};
      read_value(json[i], item, where + "[" + std::to_string(i) + "]", range);
      out.push_back(std::move(item));
    }
  } else if constexpr (detail::is_optional<T>::value) {
    if (json.is_null()) {
      out.reset();
    } else {
      typename T::value_type item{};
      read_value(json, item, where, range);
      out = std::move(item);
    }
  } else {
    read_fields(json, out, where);
  }
}

template <class T>
Json write_value(const T& value) {
  if constexpr (NamedEnum<T>) {
    return name_of(value);
  } else if constexpr (detail::is_vector<T>::value) {
    Json out = Json::array();
    for (const auto& item : value) out.push_back(write_value<typename T::value_type>(item));
    return out;
  } else if constexpr (detail::is_optional<T>::value) {
    return value ? write_value(*value) : Json(nullptr);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    return value;
  } else {
    return write_fields(value);
  }
}

/// The kind of value that a user writes for a member: "integer", "list of numbers", ...
template <class T>
std::string type_text() {
  if constexpr (std::is_same_v<T, bool>)
    return "true or false";
  else if constexpr (std::is_integral_v<T>)
    return "integer";
  else if constexpr (std::is_floating_point_v<T>)
    return "number";
  else if constexpr (std::is_same_v<T, std::string>)
    return "text";
  else if constexpr (NamedEnum<T>)
    return "name";
  else if constexpr (detail::is_vector<T>::value)
    return "list of " + type_text<typename T::value_type>();
  else if constexpr (detail::is_optional<T>::value)
    return type_text<typename T::value_type>();
  else
    return "mapping";
}

namespace detail {

/// "job.yaml " + name, "--" + name, or place.name.
std::string member_place(const std::string& where, const char* name);

/// Whether a member may keep what it holds. A default outside its range stands for "not given".
template <class M>
bool is_allowed(const M& member, const Range& range) {
  if constexpr (std::is_arithmetic_v<M>)
    return is_in_range(static_cast<double>(member), range);
  else
    return true;
}

/// Reads members and collects what check_keys() then tells: an unknown key says more than the one that is
/// missing.
struct FieldReader {
  const Json& json;
  const std::string& where;
  std::vector<std::string> names;
  std::optional<MissingKey> missing;  ///< the first
  template <class M>
  void operator()(const char* name, M& member, const char* help, Range range = {}) {
    names.emplace_back(name);
    const auto found = json.find(name);
    if (found != json.end()) {
      read_value(*found, member, member_place(where, name), range);
    } else if (range.required || !is_allowed(member, range)) {
      if (!missing) missing = MissingKey{name, type_text<M>(), help};
    }
  }
};

struct FieldWriter {
  Json& json;
  template <class M>
  void operator()(const char* name, const M& member, const char* /*help*/, const Range& range = {}) {
    if constexpr (std::is_arithmetic_v<M>) {
      if (range.unset && static_cast<double>(member) == *range.unset) return;
    }
    json[name] = write_value(member);
  }
};

void check_keys(const Json& json, const std::vector<std::string>& names, const std::string& where);
std::string help_text(const char* help, const std::vector<std::string>& names, const Range& range);

}  // namespace detail

/// Reads an object into a struct with fields(). Absent keys keep their default, and are errors where it is
/// out of the range; unknown keys are errors with the nearest known name. `where` is the file and a blank, as
/// "job.yaml ", or "--" for flags; paths inside are appended.
template <class T>
void read_fields(const Json& json, T& out, const std::string& where) {
  if (!json.is_object()) detail::wrong_type(where, json, "a mapping");
  detail::FieldReader reader{json, where, {}, {}};
  out.fields(reader);
  detail::check_keys(json, reader.names, where);
  if (reader.missing) detail::missing_key(where, *reader.missing);
}

template <class T>
Json write_fields(const T& value) {
  Json json = Json::object();
  detail::FieldWriter writer{json};
  const_cast<T&>(value).fields(writer);  // the writer only reads; one description serves both directions
  return json;
}

/// Names that T, or its items, may take; empty when T is no enum.
template <class T>
std::vector<std::string> allowed_names() {
  if constexpr (NamedEnum<T>)
    return EnumNames<T>::names();
  else if constexpr (detail::is_vector<T>::value || detail::is_optional<T>::value)
    return allowed_names<typename T::value_type>();
  else
    return {};
}

/// One option.
struct FieldDoc {
  std::string name;           ///< dotted: train.steps
  std::string type;           ///< see type_text()
  std::string default_value;  ///< as JSON
  std::string help;           ///< meaning, then the allowed names in (), then the allowed range in []
};
template <class T>
std::vector<FieldDoc> document_fields(const std::string& prefix = "");

namespace detail {
struct FieldDocs {
  std::string prefix;
  std::vector<FieldDoc>& out;
  template <class M>
  void operator()(const char* name, M& member, const char* help, Range range = {}) {
    if constexpr (std::is_class_v<M> && !std::is_same_v<M, std::string> && !is_vector<M>::value &&
                  !is_optional<M>::value) {
      for (FieldDoc& doc : document_fields<M>(prefix + name + ".")) out.push_back(std::move(doc));
    } else {
      out.push_back({prefix + name, type_text<M>(), write_value(member).dump(),
                     help_text(help, allowed_names<M>(), range)});
    }
  }
};
}  // namespace detail

template <class T>
std::vector<FieldDoc> document_fields(const std::string& prefix) {
  std::vector<FieldDoc> out;
  detail::FieldDocs docs{prefix, out};
  T defaults{};
  defaults.fields(docs);
  return out;
}

}  // namespace hetermoe
