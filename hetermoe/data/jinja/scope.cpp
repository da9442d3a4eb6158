#include "hetermoe/data/jinja/scope.h"

namespace hetermoe::jinja {

Budget::~Budget() {
  for (const std::weak_ptr<Namespace>& space : changed) {
    if (const std::shared_ptr<Namespace> held = space.lock()) std::exchange(held->values, {});
  }
}

void Budget::take() {
  if (--steps < 0) throw RenderError("the template takes more than 3 million steps");
}

Budget::Call::Call(Budget& budget) : budget_(budget) {
  constexpr int kMostCalls = 50;
  if (budget.calls >= kMostCalls) throw RenderError("over 50 macros call each other");
  ++budget.calls;
}

Value Scope::get(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer_.get()) {
    for (const auto& [known, value] : scope->values_) {
      if (known == name) return value;
    }
  }
  return Undefined{name};
}

void Scope::set(const std::string& name, Value value) {
  for (auto& [known, old] : values_) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  values_.emplace_back(name, std::move(value));
}

}  // namespace hetermoe::jinja
