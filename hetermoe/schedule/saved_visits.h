#pragma once
#include <array>
#include <optional>
#include <set>
#include <vector>

#include "hetermoe/ops/buffers.h"

namespace hetermoe {

/// Follows activations that wait on the host (Placement::saves_inputs) through the order of a step's compute
/// ops, and says which stores and fetches it takes. Forward puts each piece (is_saved_copy) into a slot of
/// its device; backward fetches it unless it still lies in one, so that the last layers make no copies. A
/// piece that backward still needs is stored when another one takes its slot, or at once where backward is on
/// another device (Placement::roams).
class SavedVisits {
 public:
  /// Keeps a reference.
  explicit SavedVisits(const Placement& placement);

  /// Some layer saves on a host.
  bool active() const { return !slots_.empty(); }
  /// Appends to `out` the copies that come before the next compute op `op`. Sets Op::saved.
  void before(Op& op, DeviceId device, std::vector<Op>& out);

 private:
  struct Piece {
    i32 group = 0, layer = -1, microbatch = -1, chunk = 0;
    auto operator<=>(const Piece&) const = default;
  };
  struct Slot {
    Piece piece = {};
    bool needed = false;  ///< by backward
    bool leaves = false;  ///< for the device of backward, and is not stored yet
    i64 entered = -1, used = -1;
  };
  /// Slots and pieces of one device.
  struct Device {
    std::array<std::vector<Slot>, 2> slots;  // of inputs, of rows
    std::set<Piece> stored;
  };
  std::optional<Piece> piece_of(const Op& op) const;
  /// Stores what leaves a device.
  void send_off(DeviceId device, std::vector<Op>& out);
  /// No later op of the step uses the op's piece on its device.
  bool uses_last(const Op& op) const;
  Slot& make_room(Device& of, DeviceId device, const Piece& piece, std::vector<Op>& out);
  static Op copy(OpKind kind, const Piece& piece, DeviceId device, std::size_t slot);

  const Placement& p_;
  std::vector<Device> slots_;  // [device]; empty where nothing is saved on hosts
  i64 now_ = 0;
};

}  // namespace hetermoe
