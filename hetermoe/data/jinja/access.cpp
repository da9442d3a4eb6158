#include <fmt/format.h>

#include <algorithm>

#include "hetermoe/data/jinja/functions.h"
#include "hetermoe/data/jinja/text.h"

// Attributes, items and slices.
namespace hetermoe::jinja {
namespace {

Value loop_attribute(const Loop& loop, const std::string& name) {
  const auto size = static_cast<i64>(loop.items->items.size()), at = static_cast<i64>(loop.index);
  if (name == "index") return at + 1;
  if (name == "index0") return at;
  if (name == "revindex") return size - at;
  if (name == "revindex0") return size - at - 1;
  if (name == "first") return at == 0;
  if (name == "last") return at + 1 == size;
  if (name == "length") return size;
  if (name == "depth") return loop.depth;
  if (name == "depth0") return loop.depth - 1;
  if (name == "previtem")
    return at == 0 ? Value(Undefined{"loop.previtem"}) : loop.items->items[loop.index - 1];
  if (name == "nextitem")
    return at + 1 == size ? Value(Undefined{"loop.nextitem"}) : loop.items->items[loop.index + 1];
  if (name == "cycle") {
    return make_function([at](const Arguments& arguments) {
      if (arguments.positional.empty()) throw RenderError("cycle of nothing");
      return arguments.positional[static_cast<std::size_t>(at) % arguments.positional.size()];
    });
  }
  throw RenderError(fmt::format("loop.{} is not here", name));
}

/// Whole number of an index; bool counts as one.
const i64* whole_of(const Value& key, i64& room) {
  if (const bool* b = key.as<bool>())
    room = *b ? 1 : 0;
  else if (const i64* i = key.as<i64>())
    room = *i;
  else
    return nullptr;
  return &room;
}

i64 bound(const Value& given, i64 otherwise, i64 size, i64 low, i64 high) {
  i64 room = 0;
  if (given.is_none()) return otherwise;
  const i64* at = whole_of(given, room);
  if (at == nullptr) throw RenderError(fmt::format("a slice by {}, expected an integer", kind_of(given)));
  return std::clamp(*at < 0 ? *at + size : *at, low, high);
}

}  // namespace

Value attribute(const Value& value, const std::string& name) {
  if (const Undefined* missing = value.as<Undefined>())
    throw RenderError(fmt::format("{} is undefined, so it has no {}", missing->name, name));
  if (const auto* space = value.as<std::shared_ptr<Namespace>>()) {
    const Value* found = (*space)->values.find(name);
    return found != nullptr ? *found : Value(Undefined{name});
  }
  if (const auto* loop = value.as<std::shared_ptr<const Loop>>()) return loop_attribute(**loop, name);
  Value found = method(value, name);
  if (!found.is_undefined() || value.dict() == nullptr) return found;
  const Value* entry = value.dict()->find(name);
  return entry != nullptr ? *entry : Value(Undefined{name});
}

Value item(const Value& value, const Value& key) {
  if (value.dict() != nullptr && key.text() != nullptr) {
    if (const Value* entry = value.dict()->find(*key.text())) return *entry;
  }
  i64 room = 0;
  if (const i64* index = whole_of(key, room)) {
    const bool is_view = value.list() != nullptr && value.list()->view != nullptr;
    if ((value.list() == nullptr && value.text() == nullptr) || is_view) {
      if (const Undefined* missing = value.as<Undefined>())
        throw RenderError(fmt::format("{} is undefined, so it has no item {}", missing->name, *index));
      return Undefined{fmt::format("item {}", *index)};
    }
    const std::vector<Value> items = items_of(value);
    const i64 at = *index < 0 ? *index + static_cast<i64>(items.size()) : *index;
    if (at < 0 || at >= static_cast<i64>(items.size())) return Undefined{fmt::format("item {}", *index)};
    return items[static_cast<std::size_t>(at)];
  }
  return key.text() != nullptr ? attribute(value, *key.text()) : Value(Undefined{"item " + to_text(key)});
}

Value slice(const Value& value, const Value& begin, const Value& end, const Value& step) {
  if (value.text() == nullptr && (value.list() == nullptr || value.list()->view != nullptr))
    throw RenderError("a slice of " + kind_of(value));
  const std::vector<Value> items = items_of(value);
  const auto size = static_cast<i64>(items.size());
  i64 room = 1;
  const i64* by = step.is_none() ? &room : whole_of(step, room);
  if (by == nullptr || *by == 0) throw RenderError("a slice whose step is 0 or no integer");
  const bool up = *by > 0;
  const i64 low = up ? 0 : -1, high = up ? size : size - 1;
  const i64 first = bound(begin, up ? 0 : size - 1, size, low, high),
            last = bound(end, up ? size : -1, size, low, high);
  std::vector<Value> out;
  for (i64 i = first; up ? i < last : i > last;) {
    out.push_back(items[static_cast<std::size_t>(i)]);
    if (__builtin_add_overflow(i, *by, &i)) break;
  }
  if (value.list() != nullptr) return make_list(std::move(out), value.list()->is_tuple);
  std::string text;
  for (const Value& character : out) text += *character.text();
  return text;
}

Value call(const Value& function, const Arguments& arguments) {
  if (const auto* f = function.as<std::shared_ptr<const Function>>()) return (**f)(arguments);
  if (const Undefined* missing = function.as<Undefined>())
    throw RenderError(fmt::format("{} is undefined, expected a function", missing->name));
  throw RenderError(fmt::format("a call of {}", kind_of(function)));
}

}  // namespace hetermoe::jinja
