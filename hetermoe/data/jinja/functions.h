#pragma once
#include "hetermoe/data/jinja/value.h"

// Filters, tests, methods and global functions of templates.
namespace hetermoe::jinja {

using Filter = Value (*)(const Value& of, const Arguments& arguments);
struct TestRow {
  const char* name;
  bool (*run)(const Value& of, const Arguments& arguments);
};
/// Null for a name that is not here.
Filter find_filter(const std::string& name);
const TestRow* find_test(const std::string& name);
/// "abs, default, ..."
std::string filter_names();
std::string test_names();

/// value.name and value[key], undefined where there is none. Throws RenderError for what is undefined itself.
Value attribute(const Value& value, const std::string& name);
Value item(const Value& value, const Value& key);
/// value[begin:end:step], each none or an integer.
Value slice(const Value& value, const Value& begin, const Value& end, const Value& step);
Value call(const Value& function, const Arguments& arguments);

/// The method of a text, a list or a mapping; undefined where there is none.
Value method(const Value& value, const std::string& name);

/// raise_exception, range, namespace, dict.
std::vector<std::pair<std::string, Value>> global_functions();

/// Argument `index`, or the one of that name; none where it is not given. Throws RenderError for names and
/// numbers of arguments that `names` has no place for.
class Given {
 public:
  Given(const Arguments& arguments, std::vector<const char*> names);
  const Value* find(std::size_t index) const { return found_[index]; }
  /// Throws RenderError where it is not given or no text.
  const std::string& text(std::size_t index) const;
  std::string text_or(std::size_t index, const std::string& otherwise) const;
  i64 whole_or(std::size_t index, i64 otherwise) const;
  bool flag_or(std::size_t index, bool otherwise) const;

 private:
  std::vector<const char*> names_;
  std::vector<const Value*> found_;
};

/// json.dumps(value, ensure_ascii=False, indent=indent), -1 = none. item and key: what separates, empty = as
/// Python does.
struct JsonStyle {
  i64 indent = -1;
  std::string item, key;
  bool sort_keys = false, ascii = false;
};
std::string to_json_text(const Value& value, const JsonStyle& style);

}  // namespace hetermoe::jinja
