#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"
#include "hetermoe/base/types.h"

// Values of Jinja templates, which behave as those of Python.
namespace hetermoe::jinja {

/// An error in a template while it is rendered: the text begins with line and column. Also thrown by
/// raise_exception().
class RenderError : public Error {
  using Error::Error;
};

class Value;
/// A name or a key that is not there. Printed as nothing; most other uses are errors.
struct Undefined {
  std::string name;
};
struct None {};
struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  const char* view = nullptr;  ///< "dict_keys", ...: it has items, but none by number
};
/// In the order in which keys were added.
struct Dict {
  std::vector<std::pair<std::string, Value>> entries;
  const Value* find(std::string_view key) const;
  void set(const std::string& key, Value value);
};
/// The one value that changes: {% set space.name = value %}. So it may hold itself.
struct Namespace {
  Dict values;
  bool changed = false;
};
/// `loop` in one pass of a loop.
struct Loop {
  std::shared_ptr<const List> items;
  std::size_t index = 0;
  i64 depth = 1;
};
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};
using Function = std::function<Value(const Arguments&)>;

class Value {
 public:
  using Variant = std::variant<Undefined, None, bool, i64, double, std::string, std::shared_ptr<const List>,
                               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                               std::shared_ptr<const Loop>, std::shared_ptr<const Function>>;
  Value() : of_(None{}) {}
  template <class T>
  requires(!std::is_same_v<T, Value> && std::is_constructible_v<Variant, T>) Value(T value)
      : of_(std::move(value)) {}
  Value(const char* text) : of_(std::string(text)) {}

  template <class T>
  const T* as() const {
    return std::get_if<T>(&of_);
  }
  const std::string* text() const { return as<std::string>(); }
  const List* list() const;
  const Dict* dict() const;
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  bool is_number() const { return as<bool>() || as<i64>() || as<double>(); }
  const Variant& variant() const { return of_; }

 private:
  Variant of_;
};

Value make_list(std::vector<Value> items, bool is_tuple = false);
Value make_dict(Dict dict);
Value make_function(Function function);
Value from_json(const Json& json);

bool is_true(const Value& value);
/// Python's ==.
bool equal(const Value& a, const Value& b);
/// Negative, 0 or positive; throws RenderError for what has no order.
int compare(const Value& a, const Value& b);
bool contains(const Value& container, const Value& value);
/// Python's str() and repr(); str() of what is undefined is empty.
std::string to_text(const Value& value);
std::string repr(const Value& value);
/// "a string", "a list", ... for messages.
std::string kind_of(const Value& value);

/// The values that a loop visits: items, keys, characters. Throws RenderError.
std::vector<Value> items_of(const Value& value);
/// Items, keys or characters. Throws RenderError.
i64 length_of(const Value& value);

/// Binary + - * / // % of Python. Throws RenderError.
Value arithmetic(const std::string& op, const Value& a, const Value& b);
/// No text in a template grows beyond.
inline constexpr std::size_t kMostText = 64 << 20;

}  // namespace hetermoe::jinja
