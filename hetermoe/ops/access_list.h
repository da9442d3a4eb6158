#pragma once
#include <vector>

#include "hetermoe/ops/buffers.h"

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
  void add(Buffer buffer, Mode mode, i32 layer) { add(key_of(buffer, layer), mode); }
  void add(const BufferKey& key, Mode mode) {
    append(key.buffer_, key.first_, key.microbatch_, key.last_, mode);
  }
  void add_of_state(Buffer buffer, Mode mode, i32 state) { add(BufferKey::of_state(buffer, state), mode); }
  void add_all_chunks(Buffer buffer, Mode mode, i32 layer);

  bool is_moe() const { return p.is_moe(op.layer); }
  /// The device has tokens of a layer.
  bool has_range(i32 layer) const { return p.has_range(op.group, layer, op.microbatch, device, op.phase); }
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
  BufferKey key_of(Buffer buffer, i32 layer) const {
    switch (shape_of(buffer)) {
      case KeyShape::kOfStep:
        return BufferKey::of_step(buffer);
      case KeyShape::kOfMicrobatch:
        return BufferKey::of_microbatch(buffer, op.microbatch);
      case KeyShape::kOfLayer:
        return BufferKey::of_layer(buffer, layer, op.microbatch);
      case KeyShape::kOfChunk:
        return BufferKey::of_chunk(buffer, layer, op.microbatch, op.chunk);
      case KeyShape::kOfState:
        return BufferKey::of_state(buffer, op.state);
      default:  // refused: no op alone says which of these it touches
        return BufferKey::of_step(buffer);
    }
  }
  /// Takes a key as numbers in registers. Inlined it would copy the key from memory that was just written,
  /// which stalls the processor: a tenth of the time of building a schedule.
  [[gnu::noinline]] void append(Buffer buffer, i32 first, i32 microbatch, i32 last, Mode mode);

  std::vector<Access>& out_;
};

}  // namespace hetermoe
