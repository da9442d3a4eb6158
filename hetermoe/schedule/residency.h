#pragma once
#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "hetermoe/schedule/saved_visits.h"

namespace hetermoe {

/// Where the optimizer of a state is on the host and its weights are not: the summed gradient goes to each
/// host once, by the first of its devices; the updated weights come back to every device. Else none.
std::vector<Op> stores_once(const Placement& placement, i32 state);
std::vector<Op> fetches_once(const Placement& placement, i32 state);

/// Follows the weights that visit devices (State::transient) through the order of a step's compute ops. It
/// returns the fetches and stores that they need; for gathered weights the all_gathers and reduce_scatters.
/// Every strategy gets offload from here: order policies contain nothing of it. Visit j of a part on a device
/// lies in slot j mod slots of that part; a later use of a layer that still lies in a slot makes no new
/// visit. The gradients of a visit are stored when the visit ends, or when no further op adds to the state on
/// that device. The host sums in the order in which devices are done. Gathered weights visit all their
/// devices at once, when the first of them needs them, in the slot that has been of no use for longest.
class Residency {
 public:
  /// Keeps a reference.
  explicit Residency(const Placement& placement);

  /// Weights of some state visit, or activations wait on hosts (SavedVisits).
  bool active() const { return active_ || saved_.active(); }
  /// Appends to `out` the copies that come before the next compute op `op`. Sets its slots.
  void before(Op& op, DeviceId device, std::vector<Op>& out);
  /// For a compute op that was appended: the stores of gradients to which it was the last to add on the
  /// device.
  void after(const Op& op, DeviceId device, std::vector<Op>& out);
  /// The stores that are due when no further op adds to the gradients of a visiting state.
  void finish(i32 state, std::vector<Op>& out);
  /// finish() of all states.
  void finish_all(std::vector<Op>& out);

 private:
  /// The visits of one part on one device.
  struct Visits {
    std::vector<i32> layers;  // [slot] which layer lies there, kNobody = none yet
    i32 next = 0;             // slot of the next visit from a host
    std::vector<i64> used;    // [slot] when the layer there was used last
  };
  static constexpr i32 kNobody = -2;
  Visits& visits(DeviceId device, const State& state);
  std::vector<bool>::reference due(i32 state, DeviceId device);
  static std::size_t next_slot(Visits& visits, const State& state);
  std::int16_t slot_of(i32 state);
  bool any_visits(DeviceId device, const std::optional<UsedPart>& used) const;
  /// States to whose gradients the op adds and that go back to hosts one by one.
  std::span<const i32> stored_after(const Op& op, DeviceId device) const;
  void count_adds();
  void admit(Op& op, DeviceId device, const UsedPart& used, std::vector<Op>& out);
  void store_due(i32 state, DeviceId device, std::vector<Op>& out);

  const Placement& p_;
  SavedVisits saved_;
  bool active_ = false;  // weights of some state visit
  i64 num_uses_ = 0;
  std::vector<std::array<Visits, kEnumCount<UnitPart>>> visits_;  // [device, then gatherers][part]
  std::vector<std::vector<bool>>
      due_;  // [state][device, or first of the gatherers] a gradient waits for its store
  std::vector<std::vector<i64>>
      adds_left_;  // [state][device] ops that will add to a gradient that the device stores
};

/// The visits that an order of compute ops, each with its device, takes, in their order, and these ops with
/// their slots.
struct VisitReplay {
  std::vector<Op> visits, computed;
};
VisitReplay replay_visits(const Placement& placement, const std::vector<std::pair<Op, DeviceId>>& computed);
/// A copy of weights that visit, or of activations.
bool is_visit(const Op& op, const Placement& placement);

}  // namespace hetermoe
