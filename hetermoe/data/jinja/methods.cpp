#include <fmt/format.h>

#include <algorithm>

#include "hetermoe/data/jinja/functions.h"
#include "hetermoe/data/jinja/text.h"

// Methods of Python's str, dict and list, as far as chat templates use them.
namespace hetermoe::jinja {
namespace {

using TextMethod = Value (*)(const std::string& text, const Arguments& arguments);

bool begins_or_ends(const std::string& text, const Arguments& arguments, bool begins) {
  const Given given(arguments, {"prefix"});
  if (given.find(0) == nullptr) throw RenderError("startswith and endswith take a string");
  const auto fits = [&](const Value& part) {
    if (part.text() == nullptr) throw RenderError("startswith or endswith of " + kind_of(part));
    return begins ? text.starts_with(*part.text()) : text.ends_with(*part.text());
  };
  if (given.find(0)->list() == nullptr) return fits(*given.find(0));
  const std::vector<Value>& parts = given.find(0)->list()->items;
  return std::any_of(parts.begin(), parts.end(), fits);
}

std::string stripped(const std::string& text, const Arguments& arguments, bool left, bool right) {
  return strip(text, Given(arguments, {"chars"}).text_or(0, ""), left, right);
}

Value texts(const std::vector<std::string>& parts) {
  return make_list(std::vector<Value>(parts.begin(), parts.end()));
}

Value split_text(const std::string& text, const Arguments& arguments, bool from_right) {
  const Given given(arguments, {"sep", "maxsplit"});
  const std::string separator = given.text_or(0, "");
  if (given.find(0) != nullptr && given.find(0)->text() != nullptr && separator.empty())
    throw RenderError("an empty separator");
  const i64 most = given.whole_or(1, -1);
  if (from_right && separator.empty() && most >= 0)
    throw RenderError("rsplit at blanks with maxsplit is not here");
  return texts(from_right && !separator.empty() ? split_from_right(text, separator, most)
                                                : split(text, separator, most));
}

Value find_text(const std::string& text, const Arguments& arguments, bool from_right) {
  const std::string& part = Given(arguments, {"sub"}).text(0);
  const std::size_t found = from_right ? text.rfind(part) : text.find(part);
  if (found == std::string::npos) return static_cast<i64>(-1);
  return num_characters(std::string_view(text).substr(0, found));
}

Value count_text(const std::string& text, const Arguments& arguments) {
  const std::string& part = Given(arguments, {"sub"}).text(0);
  if (part.empty()) return num_characters(text) + 1;
  return static_cast<i64>(split(text, part, -1).size()) - 1;
}

Value join_texts(const std::string& separator, const Arguments& arguments) {
  const Given given(arguments, {"iterable"});
  if (given.find(0) == nullptr) throw RenderError("join of nothing");
  std::string out;
  bool first = true;
  for (const Value& item : items_of(*given.find(0))) {
    if (item.text() == nullptr) throw RenderError(fmt::format("join of {}, expected strings", kind_of(item)));
    if (!std::exchange(first, false)) out += separator;
    out += *item.text();
    if (out.size() > kMostText) throw RenderError("a text that is too long");
  }
  return out;
}

Value without_part(const std::string& text, const Arguments& arguments, bool begin) {
  const std::string& part = Given(arguments, {"prefix"}).text(0);
  if (begin && text.starts_with(part)) return text.substr(part.size());
  if (!begin && text.ends_with(part)) return text.substr(0, text.size() - part.size());
  return text;
}

std::string none_given(const std::string& text, const Arguments& arguments) {
  Given(arguments, {});
  return text;
}

const std::vector<std::pair<const char*, TextMethod>> kTextMethods = {
    {"capitalize",
     [](const std::string& t, const Arguments& a) -> Value { return capitalized(none_given(t, a), false); }},
    {"count", count_text},
    {"endswith",
     [](const std::string& t, const Arguments& a) -> Value { return begins_or_ends(t, a, false); }},
    {"find", [](const std::string& t, const Arguments& a) -> Value { return find_text(t, a, false); }},
    {"join", join_texts},
    {"lower", [](const std::string& t, const Arguments& a) -> Value { return lower(none_given(t, a)); }},
    {"lstrip", [](const std::string& t, const Arguments& a) -> Value { return stripped(t, a, true, false); }},
    {"removeprefix",
     [](const std::string& t, const Arguments& a) -> Value { return without_part(t, a, true); }},
    {"removesuffix",
     [](const std::string& t, const Arguments& a) -> Value { return without_part(t, a, false); }},
    {"replace",
     [](const std::string& t, const Arguments& a) -> Value {
       const Given given(a, {"old", "new", "count"});
       return replaced(t, given.text(0), given.text(1), given.whole_or(2, -1));
     }},
    {"rfind", [](const std::string& t, const Arguments& a) -> Value { return find_text(t, a, true); }},
    {"rsplit", [](const std::string& t, const Arguments& a) -> Value { return split_text(t, a, true); }},
    {"rstrip", [](const std::string& t, const Arguments& a) -> Value { return stripped(t, a, false, true); }},
    {"split", [](const std::string& t, const Arguments& a) -> Value { return split_text(t, a, false); }},
    {"splitlines",
     [](const std::string& t, const Arguments& a) -> Value { return texts(lines_of(none_given(t, a))); }},
    {"startswith",
     [](const std::string& t, const Arguments& a) -> Value { return begins_or_ends(t, a, true); }},
    {"strip", [](const std::string& t, const Arguments& a) -> Value { return stripped(t, a, true, true); }},
    {"title",
     [](const std::string& t, const Arguments& a) -> Value { return capitalized(none_given(t, a), true); }},
    {"upper", [](const std::string& t, const Arguments& a) -> Value { return upper(none_given(t, a)); }}};

Value dict_method(const Value& value, const std::string& name) {
  const auto bound = [&](auto run) {
    return make_function([value, run](const Arguments& arguments) { return run(*value.dict(), arguments); });
  };
  if (name == "items" || name == "keys" || name == "values") {
    return bound([name](const Dict& dict, const Arguments& arguments) {
      Given(arguments, {});
      std::vector<Value> out;
      for (const auto& [key, entry] : dict.entries)
        out.push_back(name == "items" ? make_list({key, entry}, true) : name == "keys" ? Value(key) : entry);
      const char* view = name == "items" ? "dict_items" : name == "keys" ? "dict_keys" : "dict_values";
      return Value(std::make_shared<const List>(List{std::move(out), false, view}));
    });
  }
  if (name == "get") {
    return bound([](const Dict& dict, const Arguments& arguments) -> Value {
      const Given given(arguments, {"key", "default"});
      const Value* found =
          given.find(0) != nullptr && given.find(0)->text() ? dict.find(*given.find(0)->text()) : nullptr;
      if (found != nullptr) return *found;
      return given.find(1) != nullptr ? *given.find(1) : Value(None{});
    });
  }
  return Undefined{name};
}

/// The sandbox of transformers refuses them, too.
bool changes(bool is_list, const std::string& name) {
  static const std::vector<std::string> kOfLists = {"append", "clear",  "extend",  "insert",
                                                    "pop",    "remove", "reverse", "sort"};
  static const std::vector<std::string> kOfDicts = {"clear", "pop", "popitem", "setdefault", "update"};
  const std::vector<std::string>& all = is_list ? kOfLists : kOfDicts;
  return std::find(all.begin(), all.end(), name) != all.end();
}

}  // namespace

Value method(const Value& value, const std::string& name) {
  if (const std::string* text = value.text()) {
    for (const auto& [known, run] : kTextMethods) {
      if (name == known)
        return make_function(
            [text = *text, run = run](const Arguments& arguments) { return run(text, arguments); });
    }
    return Undefined{name};
  }
  if ((value.dict() != nullptr || value.list() != nullptr) && changes(value.list() != nullptr, name)) {
    return make_function([name](const Arguments&) -> Value {
      throw RenderError(
          fmt::format("{} changes a value, which no template may: use namespace() and +", name));
    });
  }
  if (value.dict() != nullptr) return dict_method(value, name);
  if (value.list() == nullptr || value.list()->view != nullptr || name != "count") return Undefined{name};
  return make_function([value](const Arguments& arguments) -> Value {
    const Given given(arguments, {"value"});
    if (given.find(0) == nullptr) throw RenderError("count of nothing");
    const std::vector<Value>& items = value.list()->items;
    return static_cast<i64>(std::count_if(items.begin(), items.end(),
                                          [&](const Value& item) { return equal(item, *given.find(0)); }));
  });
}

std::vector<std::pair<std::string, Value>> global_functions() {
  const auto raise = [](const Arguments& arguments) -> Value {
    const Given given(arguments, {"message"});
    throw RenderError("the template refuses this conversation: " + given.text_or(0, ""));
  };
  const auto range = [](const Arguments& arguments) {
    constexpr i64 kMostItems = 100'000;  // as Jinja's sandbox
    const Given given(arguments, {"start", "stop", "step"});
    const bool one = given.find(1) == nullptr;
    const i64 begin = one ? 0 : given.whole_or(0, 0), end = given.whole_or(one ? 0 : 1, 0),
              step = given.whole_or(2, 1);
    if (step == 0) throw RenderError("range by steps of 0");
    std::vector<Value> out;
    for (i64 i = begin; step > 0 ? i < end : i > end;) {
      out.emplace_back(i);
      if (static_cast<i64>(out.size()) > kMostItems) throw RenderError("range of over 100000");
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    return make_list(std::move(out));
  };
  const auto dict = [](const Arguments& arguments) {
    if (!arguments.positional.empty()) throw RenderError("dict takes names only: dict(a=1)");
    return make_dict({arguments.named});
  };
  const auto space = [](const Arguments& arguments) -> Value {
    if (!arguments.positional.empty()) throw RenderError("namespace takes names only: namespace(a=1)");
    return std::make_shared<Namespace>(Namespace{{arguments.named}});
  };
  return {{"raise_exception", make_function(raise)},
          {"range", make_function(range)},
          {"dict", make_function(dict)},
          {"namespace", make_function(space)}};
}

}  // namespace hetermoe::jinja
