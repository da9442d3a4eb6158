#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hetermoe/data/jinja/lexer.h"
#include "hetermoe/data/jinja/value.h"

// The parts of a parsed template: functions of the names in scope.
namespace hetermoe::jinja {

/// Limits of one rendering, because templates come from unknown sources.
struct Budget {
  i64 steps = 3'000'000;
  int calls = 0;
  std::vector<std::weak_ptr<Namespace>> changed = {};  ///< by assignments
  ~Budget();  ///< empties the changed ones: of two that hold each other none would end
  /// Throws RenderError when they are used up.
  void take();
  /// While a macro runs; throws RenderError where too many call each other.
  class Call {
   public:
    explicit Call(Budget& budget);
    ~Call() { --budget_.calls; }
    Call(const Call&) = delete;

   private:
    Budget& budget_;
  };
};

/// Names in force in a loop's pass, a macro or the whole template. Those of outer scopes are seen, not
/// changed.
class Scope {
 public:
  explicit Scope(Budget* budget) : budget_(budget) {}
  explicit Scope(std::shared_ptr<Scope> outer) : outer_(std::move(outer)), budget_(outer_->budget_) {}
  Value get(const std::string& name) const;
  void set(const std::string& name, Value value);
  Budget& budget() const { return *budget_; }

 private:
  std::shared_ptr<Scope> outer_;
  Budget* budget_;
  std::vector<std::pair<std::string, Value>> values_;
};
using ScopePtr = std::shared_ptr<Scope>;

/// A function that is cheap to copy.
template <class R, class... A>
class Shared {
 public:
  Shared() = default;
  template <class F>
  requires std::is_invocable_r_v<R, const F&, A...> Shared(F run)
      : run_(std::make_shared<const std::function<R(A...)>>(std::move(run))) {}
  R operator()(A... arguments) const { return (*run_)(arguments...); }

 private:
  std::shared_ptr<const std::function<R(A...)>> run_;
};
using Expression = Shared<Value, const ScopePtr&>;
enum class Flow { kNext, kBreak, kContinue };
/// Adds to the text.
using Statement = Shared<Flow, const ScopePtr&, std::string&>;

/// Runs `what` and puts the place before the text of a RenderError that has none.
template <class F>
auto at_place(const Place& place, const F& what) {
  try {
    return what();
  } catch (const RenderError& error) {
    const std::string text = error.what();
    if (text.starts_with("line ")) throw;
    throw RenderError(to_text(place) + ": " + text);
  }
}

}  // namespace hetermoe::jinja
