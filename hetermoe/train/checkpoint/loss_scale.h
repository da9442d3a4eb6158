#pragma once
#include "hetermoe/base/types.h"

namespace hetermoe {

/// Factor on the loss that keeps fp16 gradients within fp16's range, as in "Mixed Precision Training"
/// (Micikevicius et al., 2018): halved when gradients overflow, doubled after many steps without. Powers of
/// two: they change exponents only.
class LossScale {
 public:
  static constexpr double kFirst = 65536, kMost = 16777216;
  static constexpr i64 kGrowAfter = 2000;  ///< steps in a row without an overflow

  struct State {
    double value = 1;
    i64 good_steps = 0;  ///< since the last change
  };

  /// fixed: the factor, 0 = it adapts, from kFirst, if `needed` (a device computes in fp16) and is 1 if not.
  LossScale(double fixed, bool needed) : adapts_(fixed == 0 && needed) {
    state_.value = fixed > 0 ? fixed : needed ? kFirst : 1;
  }

  bool adapts() const { return adapts_; }
  double value() const { return state_.value; }
  const State& state() const { return state_; }
  /// Takes the state of a checkpoint. A fixed factor stays, and so does this one when the checkpoint's run
  /// needed none.
  void restore(const State& state) {
    if (adapts_ && state.value > 1) state_ = state;
  }

  /// After a step. True when its gradients overflowed and a lower factor, now set, may mend that.
  bool lower_after(bool overflowed) {
    if (!adapts_) return false;
    if (overflowed) {
      if (state_.value <= 1) return false;
      state_ = {state_.value / 2, 0};
      return true;
    }
    if (++state_.good_steps >= kGrowAfter && state_.value < kMost) state_ = {state_.value * 2, 0};
    return false;
  }

 private:
  bool adapts_;
  State state_;
};

}  // namespace hetermoe
