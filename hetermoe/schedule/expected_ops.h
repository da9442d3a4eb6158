#pragma once
#include <array>
#include <compare>
#include <vector>

#include "hetermoe/ops/buffers.h"

namespace hetermoe {

/// An op that a step must contain. Compute ops name their device; transfers have -1 and take their lanes from
/// participants().
struct ExpectedOp {
  Op op;
  DeviceId device = -1;
  friend auto operator<=>(const ExpectedOp& a, const ExpectedOp& b) { return a.key() <=> b.key(); }
  friend bool operator==(const ExpectedOp& a, const ExpectedOp& b) { return a.key() == b.key(); }

 private:
  std::array<i32, 10> key() const {
    return {static_cast<i32>(op.kind),
            static_cast<i32>(op.phase),
            op.group,
            op.layer,
            op.microbatch,
            op.chunk,
            op.team,
            op.state,
            op.device,
            device};
  }
};

/// The ops of one step but for the visits of weights (replay_visits), sorted. Which ops there are follows
/// from plan and options alone; order policies choose no more than their order.
std::vector<ExpectedOp> expected_ops(const Placement& placement);

}  // namespace hetermoe
