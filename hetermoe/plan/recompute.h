#pragma once
#include <map>
#include <string>
#include <utility>

#include "hetermoe/model/op_cost.h"
#include "hetermoe/plan/plan.h"

// Where the backward pass of a layer finds its activations. All other code uses these functions, because a
// layer may have its own Recompute.
namespace hetermoe {

/// Recomputation of a layer of a group: its own, else the plan's. The plan may be unfinished, without layers.
Recompute recompute_of(const Plan& plan, i32 group, i32 layer);

/// recompute_of() for callers that outlive the plan.
class RecomputeTable {
 public:
  explicit RecomputeTable(const Plan& plan);
  Recompute of(i32 group, i32 layer) const;

 private:
  Recompute all_;
  std::map<std::pair<i32, i32>, Recompute> own_;  // by group and layer
};

/// Exactly one of these three functions is true. Forward keeps activations (with select those that are
/// expensive to make) ...
constexpr bool keeps_activations(Recompute recompute) {
  return recompute == Recompute::kOff || recompute == Recompute::kSelect;
}
/// ... or ops of their own make them again (phase R) ...
constexpr bool recomputes_apart(Recompute recompute, bool is_moe) {
  return recompute == Recompute::kAhead || (recompute == Recompute::kResend && is_moe);
}
/// ... or the backward op does. With resend that of a dense layer does: it has no exchange that could resend.
constexpr bool recomputes_inside(Recompute recompute, bool is_moe) {
  return !keeps_activations(recompute) && !recomputes_apart(recompute, is_moe);
}

/// Experts have their rows no longer when backward comes: a round trip or a dispatch of phase R brings them
/// again.
constexpr bool resends_rows(Recompute recompute) {
  return recompute == Recompute::kResend || recompute == Recompute::kSelect;
}
/// The activations of a layer that forward keeps.
constexpr KeptActivations kept_activations(Recompute recompute) {
  return recompute == Recompute::kSelect ? KeptActivations::kSelected
         : keeps_activations(recompute)  ? KeptActivations::kAll
                                         : KeptActivations::kInputs;
}

/// Sets the layers of all groups from "0-3:off,4-7:local,9:resend"; the others inherit. Throws ConfigError
/// that names `where`.
void set_recompute_of_layers(Plan& plan, const std::string& ranges, const std::string& where);

/// For people: "local", or "local, layers 0-3 off, layer 7 resend" where layers have their own; of more than
/// three ranges "local, off in 12 of 48 layers".
std::string recompute_text(const Plan& plan);

}  // namespace hetermoe
