#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "hetermoe/data/jinja/functions.h"
#include "hetermoe/data/jinja/text.h"

namespace hetermoe::jinja {
namespace {

/// Filters that are for texts take the text of anything, as Jinja's do.
Value trim(const Value& of, const Arguments& arguments) {
  return strip(to_text(of), Given(arguments, {"chars"}).text_or(0, ""), true, true);
}

Value to_json(const Value& of, const Arguments& arguments) {
  const Given given(arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = given.flag_or(0, false);
  style.indent = given.whole_or(1, -1);
  style.sort_keys = given.flag_or(3, false);
  if (style.indent > 64) throw RenderError("indent is over 64");
  if (const Value* separators = given.find(2); separators != nullptr && !separators->is_none()) {
    const std::vector<Value> both = items_of(*separators);
    if (both.size() != 2 || !both[0].text() || !both[1].text())
      throw RenderError("separators are two strings: (',', ':')");
    style.item = *both[0].text(), style.key = *both[1].text();
  }
  return to_json_text(of, style);
}

Value length(const Value& of, const Arguments& arguments) {
  Given(arguments, {});
  return length_of(of);
}

Value to_upper(const Value& of, const Arguments& arguments) {
  Given(arguments, {});
  return upper(to_text(of));
}

Value to_lower(const Value& of, const Arguments& arguments) {
  Given(arguments, {});
  return lower(to_text(of));
}

Value capitalize(const Value& of, const Arguments& arguments) {
  Given(arguments, {});
  return capitalized(to_text(of), false);
}

Value replace(const Value& of, const Arguments& arguments) {
  const Given given(arguments, {"old", "new", "count"});
  if (given.find(0) == nullptr || given.find(1) == nullptr)
    throw RenderError("replace takes an old and a new text");
  return replaced(to_text(of), to_text(*given.find(0)), to_text(*given.find(1)), given.whole_or(2, -1));
}

Value default_of(const Value& of, const Arguments& arguments) {
  const Given given(arguments, {"default_value", "boolean"});
  if (!of.is_undefined() && !(given.flag_or(1, false) && !is_true(of))) return of;
  return given.find(0) != nullptr ? *given.find(0) : Value("");
}

/// item.a.b of an attribute "a.b".
Value attribute_of(const Value& value, const std::string& path) {
  Value out = value;
  for (const std::string& part : split(path, ".", -1)) {
    const bool index =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    out = item(out, index && part.size() < 9 ? Value(static_cast<i64>(std::stoll(part))) : Value(part));
  }
  return out;
}

Value join(const Value& of, const Arguments& arguments) {
  const Given given(arguments, {"d", "attribute"});
  std::string out;
  bool first = true;
  for (const Value& item : items_of(of)) {
    if (!std::exchange(first, false)) out += given.text_or(0, "");
    out += to_text(given.find(1) != nullptr ? attribute_of(item, given.text(1)) : item);
    if (out.size() > kMostText) throw RenderError("a text that is too long");
  }
  return out;
}

Value first(const Value& of, const Arguments& arguments) {
  Given(arguments, {});
  const std::vector<Value> items = items_of(of);
  return items.empty() ? Value(Undefined{"first"}) : items.front();
}

Value last(const Value& of, const Arguments& arguments) {
  Given(arguments, {});
  const std::vector<Value> items = items_of(of);
  return items.empty() ? Value(Undefined{"last"}) : items.back();
}

Value to_list(const Value& of, const Arguments& arguments) {
  Given(arguments, {});
  return make_list(items_of(of));
}

Value to_string_value(const Value& of, const Arguments& arguments) {
  Given(arguments, {});
  return to_text(of);
}

Value to_int(const Value& of, const Arguments& arguments) {
  const i64 otherwise = Given(arguments, {"default"}).whole_or(0, 0);
  if (const Undefined* missing = of.as<Undefined>())
    throw RenderError(fmt::format("{} is undefined, so it is no number", missing->name));
  if (const bool* b = of.as<bool>()) return static_cast<i64>(*b);
  if (of.as<i64>()) return of;
  if (const double* d = of.as<double>()) return std::abs(*d) < 9e18 ? static_cast<i64>(*d) : otherwise;
  if (of.text() == nullptr) return otherwise;
  const std::string digits = strip(*of.text(), "", true, true);
  char* end = nullptr;
  errno = 0;
  const i64 whole = std::strtoll(digits.c_str(), &end, 10);
  return !digits.empty() && *end == '\0' && errno == 0 ? whole : otherwise;
}

Value entries(const Value& of, const Arguments& arguments) {
  Given(arguments, {});
  if (of.is_undefined()) return make_list({});
  if (of.dict() == nullptr) throw RenderError("items of " + kind_of(of));
  return call(attribute(of, "items"), {});
}

Value reverse(const Value& of, const Arguments& arguments) {
  Given(arguments, {});
  std::vector<Value> items = items_of(of);
  std::reverse(items.begin(), items.end());
  if (of.text() == nullptr) return make_list(std::move(items));
  std::string out;
  for (const Value& c : items) out += *c.text();
  return out;
}

Value same(const Value& of, const Arguments& arguments) {
  Given(arguments, {});
  return of;
}

/// As map() and select() have it: none of none, 0 and false.
std::vector<Value> items_unless_false(const Value& value) {
  return is_true(value) ? items_of(value) : std::vector<Value>{};
}

/// The test of select() and selectattr(), which begins at `index` of the arguments; without one, the truth.
bool passes(const Value& value, const Arguments& arguments, std::size_t index) {
  if (arguments.positional.size() <= index) return is_true(value);
  const std::string name = to_text(arguments.positional[index]);
  const TestRow* test = find_test(name);
  if (test == nullptr)
    throw RenderError(fmt::format("test {} is not here, expected one of {}", name, test_names()));
  const auto begin = arguments.positional.begin() + static_cast<std::ptrdiff_t>(index) + 1;
  return test->run(value, {std::vector<Value>(begin, arguments.positional.end()), arguments.named});
}

Value chosen(const Value& of, const Arguments& arguments, bool by_attribute, bool wanted) {
  if (by_attribute && arguments.positional.empty()) throw RenderError("the name of an attribute is missing");
  std::vector<Value> out;
  for (const Value& entry : items_unless_false(of)) {
    const Value looked_at = by_attribute ? attribute_of(entry, to_text(arguments.positional[0])) : entry;
    if (passes(looked_at, arguments, by_attribute ? 1 : 0) == wanted) out.push_back(entry);
  }
  return make_list(std::move(out));
}

Value select(const Value& of, const Arguments& arguments) { return chosen(of, arguments, false, true); }
Value reject(const Value& of, const Arguments& arguments) { return chosen(of, arguments, false, false); }
Value select_attr(const Value& of, const Arguments& arguments) { return chosen(of, arguments, true, true); }
Value reject_attr(const Value& of, const Arguments& arguments) { return chosen(of, arguments, true, false); }

Value map(const Value& of, const Arguments& arguments) {
  std::vector<Value> out;
  if (arguments.positional.empty()) {
    const Given given(arguments, {"attribute", "default"});
    for (const Value& entry : items_unless_false(of)) {
      Value found = attribute_of(entry, given.text(0));
      out.push_back(found.is_undefined() && given.find(1) != nullptr ? *given.find(1) : found);
    }
    return make_list(std::move(out));
  }
  const std::string name = to_text(arguments.positional[0]);
  const Filter filter = find_filter(name);
  if (filter == nullptr)
    throw RenderError(fmt::format("filter {} is not here, expected one of {}", name, filter_names()));
  const Arguments rest{std::vector<Value>(arguments.positional.begin() + 1, arguments.positional.end()),
                       arguments.named};
  for (const Value& entry : items_unless_false(of)) out.push_back(filter(entry, rest));
  return make_list(std::move(out));
}

struct FilterRow {
  const char* name;
  Filter filter;
};
constexpr std::array<FilterRow, 24> kFilters = {{{"capitalize", capitalize},
                                                 {"count", length},
                                                 {"d", default_of},
                                                 {"default", default_of},
                                                 {"first", first},
                                                 {"int", to_int},
                                                 {"items", entries},
                                                 {"join", join},
                                                 {"last", last},
                                                 {"length", length},
                                                 {"list", to_list},
                                                 {"lower", to_lower},
                                                 {"map", map},
                                                 {"reject", reject},
                                                 {"rejectattr", reject_attr},
                                                 {"replace", replace},
                                                 {"reverse", reverse},
                                                 {"safe", same},
                                                 {"select", select},
                                                 {"selectattr", select_attr},
                                                 {"string", to_string_value},
                                                 {"tojson", to_json},
                                                 {"trim", trim},
                                                 {"upper", to_upper}}};

}  // namespace

Filter find_filter(const std::string& name) {
  for (const FilterRow& row : kFilters) {
    if (name == row.name) return row.filter;
  }
  return nullptr;
}

std::string filter_names() {
  std::vector<std::string> out;
  for (const FilterRow& row : kFilters) out.emplace_back(row.name);
  return fmt::format("{}", fmt::join(out, ", "));
}

}  // namespace hetermoe::jinja
