#include <fmt/format.h>

#include "hetermoe/data/jinja/functions.h"

namespace hetermoe::jinja {

Given::Given(const Arguments& arguments, std::vector<const char*> names)
    : names_(std::move(names)), found_(names_.size(), nullptr) {
  if (arguments.positional.size() > names_.size())
    throw RenderError(
        fmt::format("got {} arguments, expected at most {}", arguments.positional.size(), names_.size()));
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) found_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    bool known = false;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (name != names_[i]) continue;
      if (found_[i] != nullptr) throw RenderError(fmt::format("argument {} is given twice", name));
      found_[i] = &value;
      known = true;
    }
    if (!known) throw RenderError(fmt::format("unknown argument {}", name));
  }
}

const std::string& Given::text(std::size_t index) const {
  if (found_[index] == nullptr) throw RenderError(fmt::format("argument {} is missing", names_[index]));
  if (found_[index]->text() == nullptr)
    throw RenderError(
        fmt::format("argument {} is {}, expected a string", names_[index], kind_of(*found_[index])));
  return *found_[index]->text();
}

std::string Given::text_or(std::size_t index, const std::string& otherwise) const {
  return found_[index] == nullptr || found_[index]->is_none() ? otherwise : text(index);
}

i64 Given::whole_or(std::size_t index, i64 otherwise) const {
  const Value* value = found_[index];
  if (value == nullptr || value->is_none()) return otherwise;
  if (const bool* flag = value->as<bool>()) return *flag ? 1 : 0;
  if (const i64* whole = value->as<i64>()) return *whole;
  throw RenderError(fmt::format("argument {} is {}, expected an integer", names_[index], kind_of(*value)));
}

bool Given::flag_or(std::size_t index, bool otherwise) const {
  return found_[index] == nullptr ? otherwise : is_true(*found_[index]);
}

}  // namespace hetermoe::jinja
