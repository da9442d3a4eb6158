#include "hetermoe/data/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "hetermoe/data/jinja/text.h"

namespace hetermoe::jinja {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw RenderError(text); }

i64 whole(const Value& value) {
  if (const bool* b = value.as<bool>()) return *b ? 1 : 0;
  return *value.as<i64>();
}

double number(const Value& value) {
  if (const double* d = value.as<double>()) return *d;
  return static_cast<double>(whole(value));
}

bool is_whole(const Value& value) { return value.as<i64>() || value.as<bool>(); }

[[noreturn]] void refuse_operands(const std::string& op, const Value& a, const Value& b) {
  for (const Value* side : {&a, &b}) {
    if (const Undefined* missing = side->as<Undefined>())
      refuse(fmt::format("{} is undefined", missing->name));
  }
  refuse(fmt::format("{} of {} and {}", op, kind_of(a), kind_of(b)));
}

Value whole_arithmetic(const std::string& op, i64 a, i64 b) {
  i64 out = 0;
  if (op == "+" && !__builtin_add_overflow(a, b, &out)) return out;
  if (op == "-" && !__builtin_sub_overflow(a, b, &out)) return out;
  if (op == "*" && !__builtin_mul_overflow(a, b, &out)) return out;
  if (op == "+" || op == "-" || op == "*" || (b == -1 && a == std::numeric_limits<i64>::min()))
    refuse("a number beyond 64 bits");
  const i64 rest = a % b;
  const bool down = rest != 0 && (rest < 0) != (b < 0);
  return op == "%" ? rest + (down ? b : 0) : a / b - (down ? 1 : 0);
}

Value float_arithmetic(const std::string& op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "/") return a / b;
  const double rest = std::fmod(a, b);
  const double modulo = rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  return op == "%" ? modulo : std::floor((a - modulo) / b + 0.5);
}

Value repeated(const List& list, i64 times) {
  if (times > 0 && list.items.size() * static_cast<u64>(std::min<i64>(times, 1 << 30)) > kMostText / 64)
    refuse("a list that is too long");
  List out{{}, list.is_tuple};
  for (i64 i = 0; i < times && !list.items.empty(); ++i)
    out.items.insert(out.items.end(), list.items.begin(), list.items.end());
  return make_list(std::move(out.items), out.is_tuple);
}

Value repeated(const std::string& text, i64 times) {
  if (times > 0 && text.size() * static_cast<u64>(std::min<i64>(times, 1 << 30)) > kMostText)
    refuse("a text that is too long");
  std::string out;
  for (i64 i = 0; i < times && !text.empty(); ++i) out += text;
  return out;
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Dict::set(const std::string& key, Value value) {
  for (auto& [name, old] : entries) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  entries.emplace_back(key, std::move(value));
}

const List* Value::list() const {
  const auto* out = as<std::shared_ptr<const List>>();
  return out ? out->get() : nullptr;
}

const Dict* Value::dict() const {
  const auto* out = as<std::shared_ptr<const Dict>>();
  return out ? out->get() : nullptr;
}

Value make_list(std::vector<Value> items, bool is_tuple) {
  return std::make_shared<const List>(List{std::move(items), is_tuple});
}
Value make_dict(Dict dict) { return std::make_shared<const Dict>(std::move(dict)); }
Value make_function(Function function) { return std::make_shared<const Function>(std::move(function)); }

Value from_json(const Json& json) {
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<i64>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    std::vector<Value> items;
    for (const Json& item : json) items.push_back(from_json(item));
    return make_list(std::move(items));
  }
  Dict dict;
  for (const auto& [key, value] : json.items()) dict.entries.emplace_back(key, from_json(value));
  return make_dict(std::move(dict));
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return number(value) != 0;
  if (value.text()) return !value.text()->empty();
  if (value.list()) return !value.list()->items.empty();
  if (value.dict()) return !value.dict()->entries.empty();
  return true;
}

bool equal(const Value& a, const Value& b) {
  if (is_whole(a) && is_whole(b)) return whole(a) == whole(b);
  if (a.is_number() && b.is_number()) return number(a) == number(b);
  if (a.text() && b.text()) return *a.text() == *b.text();
  if (a.list() && b.list()) {
    return a.list()->is_tuple == b.list()->is_tuple &&
           std::equal(a.list()->items.begin(), a.list()->items.end(), b.list()->items.begin(),
                      b.list()->items.end(), equal);
  }
  if (a.dict() && b.dict()) {
    const auto& entries = a.dict()->entries;
    return entries.size() == b.dict()->entries.size() &&
           std::all_of(entries.begin(), entries.end(), [&](const auto& entry) {
             const Value* other = b.dict()->find(entry.first);
             return other != nullptr && equal(entry.second, *other);
           });
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int compare(const Value& a, const Value& b) {
  if (is_whole(a) && is_whole(b)) return whole(a) < whole(b) ? -1 : whole(a) > whole(b);
  if (a.is_number() && b.is_number()) return number(a) < number(b) ? -1 : number(a) > number(b);
  if (a.text() && b.text()) return a.text()->compare(*b.text());
  if (!a.list() || !b.list() || a.list()->is_tuple != b.list()->is_tuple) refuse_operands("order", a, b);
  const std::vector<Value>&x = a.list()->items, &y = b.list()->items;
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (!equal(x[i], y[i])) return compare(x[i], y[i]);
  }
  return x.size() < y.size() ? -1 : x.size() > y.size();
}

bool contains(const Value& container, const Value& value) {
  if (container.text()) {
    if (!value.text()) refuse(fmt::format("{} in a string", kind_of(value)));
    return container.text()->find(*value.text()) != std::string::npos;
  }
  if (container.dict() && (value.list() || value.dict())) refuse(fmt::format("{} as a key", kind_of(value)));
  if (container.dict()) return value.text() && container.dict()->find(*value.text()) != nullptr;
  const std::vector<Value> items = items_of(container);
  return std::any_of(items.begin(), items.end(), [&](const Value& item) { return equal(item, value); });
}

std::string to_text(const Value& value) {
  if (value.is_undefined()) return "";
  return value.text() ? *value.text() : repr(value);
}

std::string repr(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (const bool* b = value.as<bool>()) return *b ? "True" : "False";
  if (const i64* i = value.as<i64>()) return std::to_string(*i);
  if (const double* d = value.as<double>()) return float_repr(*d);
  if (value.text()) return text_repr(*value.text());
  std::string out;
  if (const List* list = value.list()) {
    for (const Value& item : list->items) out += (out.empty() ? "" : ", ") + repr(item);
    if (list->view != nullptr) return fmt::format("{}([{}])", list->view, out);
    if (!list->is_tuple) return "[" + out + "]";
    return "(" + out + (list->items.size() == 1 ? ",)" : ")");
  }
  if (const Dict* dict = value.dict()) {
    for (const auto& [key, item] : dict->entries)
      out += (out.empty() ? "" : ", ") + text_repr(key) + ": " + repr(item);
    return "{" + out + "}";
  }
  refuse(fmt::format("{} as text", kind_of(value)));
}

std::string kind_of(const Value& value) {
  static const char* const kKinds[] = {"what is undefined", "none",     "a boolean", "an integer",
                                       "a float",           "a string", "a list",    "a mapping",
                                       "a namespace",       "loop",     "a function"};
  return kKinds[value.variant().index()];
}

std::vector<Value> items_of(const Value& value) {
  if (value.is_undefined()) return {};
  if (value.list()) return value.list()->items;
  std::vector<Value> out;
  if (value.text()) {
    for (const std::string_view c : characters_of(*value.text())) out.emplace_back(std::string(c));
    return out;
  }
  if (!value.dict()) refuse(kind_of(value) + " has no items");
  for (const auto& [key, item] : value.dict()->entries) out.emplace_back(key);
  return out;
}

i64 length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.text()) return num_characters(*value.text());
  if (value.list()) return static_cast<i64>(value.list()->items.size());
  if (value.dict()) return static_cast<i64>(value.dict()->entries.size());
  refuse(kind_of(value) + " has no length");
}

Value arithmetic(const std::string& op, const Value& a, const Value& b) {
  if (op == "+" && a.text() && b.text()) {
    if (a.text()->size() + b.text()->size() > kMostText) refuse("a text that is too long");
    return *a.text() + *b.text();
  }
  const bool are_lists = a.list() && b.list() && !a.list()->view && !b.list()->view;
  if (op == "+" && are_lists && a.list()->is_tuple == b.list()->is_tuple) {
    List out = *a.list();
    out.items.insert(out.items.end(), b.list()->items.begin(), b.list()->items.end());
    return make_list(std::move(out.items), out.is_tuple);
  }
  if (op == "*" && a.text() && is_whole(b)) return repeated(*a.text(), whole(b));
  if (op == "*" && b.text() && is_whole(a)) return repeated(*b.text(), whole(a));
  if (op == "*" && a.list() && !a.list()->view && is_whole(b)) return repeated(*a.list(), whole(b));
  if (op == "*" && b.list() && !b.list()->view && is_whole(a)) return repeated(*b.list(), whole(a));
  if (!a.is_number() || !b.is_number()) refuse_operands(op, a, b);
  if ((op == "/" || op == "//" || op == "%") && number(b) == 0) refuse("division by zero");
  if (is_whole(a) && is_whole(b) && op != "/") return whole_arithmetic(op, whole(a), whole(b));
  return float_arithmetic(op, number(a), number(b));
}

}  // namespace hetermoe::jinja
