#include "hetermoe/routing/joined_steps.h"

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// What is kept of a step is kept of all: positions of tokens are those of choices and weights.
class KeptAlike {
 public:
  explicit KeptAlike(const RoutingTrace& trace) : trace_(trace) {}

  /// Throws InputError when the step differs from those before.
  void add(const TraceStep& step) {
    if (is_first_) first_ = step.step;
    is_first_ = false;
    check_layers("choices", step, step.choices, choices_);
    check_layers("weights", step, step.weights, weights_);
    has_tokens_ = has_tokens_ || step.num_tokens() > 0;
  }

 private:
  /// kept: [layers] whether the steps before have it.
  template <class T>
  void check_layers(const char* what, const TraceStep& step, const std::vector<std::vector<T>>& of_step,
                    std::vector<bool>& kept) const {
    kept.resize(of_step.size(), false);
    for (std::size_t l = 0; l < of_step.size(); ++l) {
      const bool has = !of_step[l].empty();
      if (has_tokens_ && step.num_tokens() > 0 && has != kept[l])
        fail<InputError>(trace_.path().string(),
                         "steps {} and {} cannot be joined: step {} has {} of layer {}, step {} has none. "
                         "Name steps of one kind, as FILE:{}..{}",
                         first_, step.step, has ? step.step : first_, what, trace_.header().layers[l],
                         has ? first_ : step.step, first_, step.step - 1);
      kept[l] = kept[l] || has;
    }
  }

  const RoutingTrace& trace_;
  bool is_first_ = true, has_tokens_ = false;
  i64 first_ = 0;
  std::vector<bool> choices_, weights_;
};

}  // namespace

void for_each_joined_step(const RoutingTrace& trace, i64 first, i64 last,
                          const std::function<void(TraceStep)>& on_step) {
  KeptAlike alike(trace);
  bool found = false;
  for (const i64 number : trace.steps()) {
    if (number < first || number > last) continue;
    TraceStep step = trace.read(number);
    alike.add(step);
    on_step(std::move(step));
    found = true;
  }
  if (!found)
    fail<InputError>(trace.path().string(), "has no whole step from {} to {}: got {}", first, last,
                     trace.steps().empty()
                         ? "no whole step at all"
                         : fmt::format("steps {} to {}", trace.steps().front(), trace.steps().back()));
}

void append_step(TraceStep& to, TraceStep next) {
  if (to.first_token.empty()) {
    to = std::move(next);
    return;
  }
  to.sequences.insert(to.sequences.end(), next.sequences.begin(), next.sequences.end());
  const auto append = [](auto& all, const auto& more) {
    for (std::size_t l = 0; l < all.size(); ++l) all[l].insert(all[l].end(), more[l].begin(), more[l].end());
  };
  append(to.choices, next.choices);
  append(to.weights, next.weights);
  append(to.counts, next.counts);
  index_tokens(to);
}

TraceStep read_steps(const RoutingTrace& trace, i64 first, i64 last) {
  TraceStep out;
  for_each_joined_step(trace, first, last, [&](TraceStep step) { append_step(out, std::move(step)); });
  return out;
}

}  // namespace hetermoe
