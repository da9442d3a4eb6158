#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "hetermoe/data/jinja/functions.h"
#include "hetermoe/data/jinja/text.h"

namespace hetermoe::jinja {
namespace {

const Value& other(const Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty())
    throw RenderError("a test that compares takes one value");
  return arguments.positional[0];
}

bool is_rest(const Value& value, i64 rest) {
  return equal(arithmetic("%", value, Value(static_cast<i64>(2))), Value(rest));
}

bool is_boolean(const Value& of, bool wanted) { return of.as<bool>() && *of.as<bool>() == wanted; }

const std::vector<TestRow> kTests = {
    {"!=", [](const Value& of, const Arguments& a) { return !equal(of, other(a)); }},
    {"<", [](const Value& of, const Arguments& a) { return compare(of, other(a)) < 0; }},
    {"<=", [](const Value& of, const Arguments& a) { return compare(of, other(a)) <= 0; }},
    {"==", [](const Value& of, const Arguments& a) { return equal(of, other(a)); }},
    {">", [](const Value& of, const Arguments& a) { return compare(of, other(a)) > 0; }},
    {">=", [](const Value& of, const Arguments& a) { return compare(of, other(a)) >= 0; }},
    {"boolean",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       return of.as<bool>() != nullptr;
     }},
    {"callable",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       return of.as<std::shared_ptr<const Function>>() != nullptr;
     }},
    {"defined",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       return !of.is_undefined();
     }},
    {"divisibleby",
     [](const Value& of, const Arguments& a) {
       return equal(arithmetic("%", of, other(a)), Value(static_cast<i64>(0)));
     }},
    {"eq", [](const Value& of, const Arguments& a) { return equal(of, other(a)); }},
    {"equalto", [](const Value& of, const Arguments& a) { return equal(of, other(a)); }},
    {"even",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       return is_rest(of, 0);
     }},
    {"false",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       return is_boolean(of, false);
     }},
    {"float",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       return of.as<double>() != nullptr;
     }},
    {"ge", [](const Value& of, const Arguments& a) { return compare(of, other(a)) >= 0; }},
    {"greaterthan", [](const Value& of, const Arguments& a) { return compare(of, other(a)) > 0; }},
    {"gt", [](const Value& of, const Arguments& a) { return compare(of, other(a)) > 0; }},
    {"in", [](const Value& of, const Arguments& a) { return contains(other(a), of); }},
    {"integer",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       return of.as<i64>() != nullptr;
     }},
    {"iterable",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       return of.is_undefined() || of.text() != nullptr || of.list() != nullptr || of.dict() != nullptr;
     }},
    {"le", [](const Value& of, const Arguments& a) { return compare(of, other(a)) <= 0; }},
    {"lessthan", [](const Value& of, const Arguments& a) { return compare(of, other(a)) < 0; }},
    {"lower",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       const std::string text = to_text(of);
       return lower(text) == text && upper(text) != text;
     }},
    {"lt", [](const Value& of, const Arguments& a) { return compare(of, other(a)) < 0; }},
    {"mapping",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       return of.dict() != nullptr;
     }},
    {"ne", [](const Value& of, const Arguments& a) { return !equal(of, other(a)); }},
    {"none",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       return of.is_none();
     }},
    {"number",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       return of.is_number();
     }},
    {"odd",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       return is_rest(of, 1);
     }},
    {"sequence",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       const bool is_list = of.list() != nullptr && of.list()->view == nullptr;
       return of.is_undefined() || of.text() != nullptr || is_list || of.dict() != nullptr;
     }},
    {"string",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       return of.text() != nullptr;
     }},
    {"true",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       return is_boolean(of, true);
     }},
    {"undefined",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       return of.is_undefined();
     }},
    {"upper",
     [](const Value& of, const Arguments& none) {
       Given(none, {});
       const std::string text = to_text(of);
       return upper(text) == text && lower(text) != text;
     }},
};

}  // namespace

const TestRow* find_test(const std::string& name) {
  for (const TestRow& row : kTests) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

std::string test_names() {
  std::vector<std::string> out;
  for (const TestRow& row : kTests) out.emplace_back(row.name);
  return fmt::format("{}", fmt::join(out, ", "));
}

}  // namespace hetermoe::jinja
