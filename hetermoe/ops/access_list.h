#pragma once
#include <vector>

#include "hetermoe/ops/buffers.h"
#include "hetermoe/ops/exchange.h"

namespace hetermoe {

/// Collects the accesses of one op on one device, for OpRow::accesses. Buffers are those of the op's layer,
/// microbatch, chunk or state, as their rows ask, unless another layer is given.
class AccessList {
 public:
  AccessList(const Op& op, DeviceId device, const Placement& placement, std::vector<Access>& out)
      : op(op), device(device), p(placement), out_(out) {}

  const Op& op;
  const DeviceId device;
  const Placement& p;

  void read(Buffer buffer) { add(buffer, Mode::kRead); }
  void write(Buffer buffer) { add(buffer, Mode::kWrite); }
  void add(Buffer buffer, Mode mode) { add(buffer, mode, op.layer); }
  void add(Buffer buffer, Mode mode, i32 layer);
  void add(const BufferKey& key, Mode mode) { out_.push_back({key, mode}); }
  void add_of_state(Buffer buffer, Mode mode, i32 state) { add(BufferKey::of_state(buffer, state), mode); }
  void add_all_chunks(Buffer buffer, Mode mode, i32 layer);

  bool is_moe() const { return p.is_moe(op.layer); }
  /// The device has tokens of a layer.
  bool has_range(i32 layer) const { return p.has_range(op.group, layer, op.microbatch, device, op.phase); }
  /// For ops of an exchange.
  bool sends() const { return Exchange(op, p).sends(device); }
  bool receives() const { return Exchange(op, p).receives(device); }
  bool moves_into(i32 layer, Phase phase) const {
    return p.moves_into(op.group, layer, op.microbatch, phase);
  }
  bool joins_at(i32 layer) const { return p.joins_at(op.group, layer, op.microbatch); }
  Recompute recompute() const { return p.recompute(op.group, op.layer); }
  bool saves_activations() const { return keeps_activations(recompute()) && p.options().backward; }
  bool finds_activations() const { return !recomputes_inside(recompute(), is_moe()); }
  bool has_teams() const { return p.has_teams(op.group, op.layer); }
  bool lends() const { return p.lends(op.group, op.layer); }
  const State& state() const { return p.states()[static_cast<std::size_t>(op.state)]; }

  /// Weights of a part, and the slot in which they visit.
  void read_params(UnitPart part, i32 layer);
  void read_params();  ///< of the part that the op uses
  void add_grad(UnitPart part, i32 layer);
  void add_slot(SlotPart part, Mode mode) { add(BufferKey::of_slot(Buffer::kSlot, part, op.slot), mode); }
  /// Forward makes saved activations, the others use them: in a slot where they live on the host.
  void add_saved();
  /// Input of a compute op of `layer`: from the embedding or a move it is there, else the op merges it.
  void read_input(i32 layer);
  /// The pieces from which the output of layer `layer` - 1 is merged.
  void read_merged_input(i32 layer);
  void write_input_gradient(i32 layer);
  /// norm adds, too: a device that has no figures of its own tells zeros.
  void add_figures() { add(BufferKey::of_step(Buffer::kFigures), Mode::kAdd); }
  void read_tally();
  void read_guests();
  void add_guest_turn(Mode mode) { add(BufferKey::of_turn(Buffer::kGuestTurn, p.guest_turn(op)), mode); }

 private:
  std::vector<Access>& out_;
};

}  // namespace hetermoe
