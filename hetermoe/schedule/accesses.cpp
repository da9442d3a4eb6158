#include "hetermoe/schedule/accesses.h"

#include "hetermoe/schedule/residency.h"

namespace hetermoe {

namespace {

/// Collects the accesses of one op on one device; the rows below read as the table that they are.
class Table {
 public:
  Table(const Op& op, DeviceId device, const Placement& placement, std::vector<Access>& out)
      : op_(op), device_(device), p_(placement), out_(out) {}

  void fill() {
    switch (op_.kind) {
      case OpKind::kEmbed:
        return op_.phase == Phase::kBackward ? embed_backward() : embed_forward();
      case OpKind::kAttention:
        return attention();
      case OpKind::kDispatch:
        return op_.phase == Phase::kBackward ? dispatch_backward() : dispatch_forward();
      case OpKind::kExperts:
        return experts();
      case OpKind::kCombine:
        return op_.phase == Phase::kBackward ? combine_backward() : combine_forward();
      case OpKind::kMerge:
        merged_input(op_.layer);
        add(Buffer::kMoveOut, Mode::kWrite, op_.layer);
        break;
      case OpKind::kMove:
        return move();
      case OpKind::kHead:
        return head();
      case OpKind::kBalance:
        return balance();
      case OpKind::kReduce:
      case OpKind::kReduceScatter:
        return reduce();
      case OpKind::kNorm:
        return norm();
      case OpKind::kUpdate:
        return update();
      case OpKind::kPublish:
        return publish();
      case OpKind::kTake:
        return take();
      case OpKind::kAllGather:
        return all_gather();
      case OpKind::kFetch:
        return fetch();
      case OpKind::kStore:
        return store();
      case OpKind::kTally:
        return tally();
      case OpKind::kLend:
        return lend();
      case OpKind::kSettle:
        return settle();
      case OpKind::kMigrate:
        break;  // between steps, where there are no buffers
    }
  }

 private:
  void add(Buffer buffer, Mode mode, i32 layer) { out_.push_back({buffer, mode, layer, op_.microbatch, 0}); }
  void add_chunk(Buffer buffer, Mode mode, i32 layer) {
    out_.push_back({buffer, mode, layer, op_.microbatch, op_.chunk});
  }
  void add_all_chunks(Buffer buffer, Mode mode, i32 layer) {
    for (i32 c = 0; c < p_.plan().chunks; ++c) out_.push_back({buffer, mode, layer, op_.microbatch, c});
  }
  bool is_source(i32 layer) const {
    return p_.is_source(op_.group, layer, op_.microbatch, device_, op_.phase);
  }
  bool is_owner() const { return p_.is_owner(op_, device_); }
  bool moves_into(i32 layer, Phase phase) const {
    return p_.moves_into(op_.group, layer, op_.microbatch, phase);
  }
  Recompute recompute() const { return p_.recompute(op_.group, op_.layer); }
  bool saves_activations() const { return keeps_activations(recompute()) && p_.options().backward; }
  bool finds_activations() const { return !recomputes_inside(recompute(), p_.is_moe(op_.layer)); }

  void add_of_state(Buffer buffer, Mode mode) { out_.push_back({buffer, mode, op_.state, -1, 0}); }
  void add_state(Mode mode, i32 state) { out_.push_back({Buffer::kGrad, mode, state, -1, 0}); }
  void add_grad(UnitPart part, i32 layer) {
    for (const i32 state : p_.states_on(device_, part, layer)) {
      if (p_.trains(state)) add_state(Mode::kAdd, state);
    }
  }
  void read_params(UnitPart part, i32 layer) {
    for (const i32 state : p_.states_on(device_, part, layer)) {
      const bool visits = p_.states()[idx(state)].transient();
      out_.push_back({visits ? Buffer::kWeights : Buffer::kParams, Mode::kRead, state, -1, 0});
    }
    if (op_.slot >= 0) add_slot(part, Mode::kRead);
  }
  template <class Part>
  void add_slot(Part part, Mode mode) {
    out_.push_back({Buffer::kSlot, mode, static_cast<i32>(part), -1, op_.slot});
  }
  /// Forward makes saved activations, the others use them: in a slot where they live on the host.
  void add_saved() {
    if (op_.saved < 0) return;
    const SavedPart part = op_.kind == OpKind::kExperts ? SavedPart::kRows : SavedPart::kInputs;
    const Mode mode = op_.phase == Phase::kForward ? Mode::kWrite : Mode::kRead;
    out_.push_back({Buffer::kSlot, mode, static_cast<i32>(part), -1, op_.saved});
  }

  /// Of activations: `mode` on the device, and the other way round on the host.
  void copy_saved(Mode on_device, Mode on_host) {
    if (device_ != op_.device) {
      out_.push_back({Buffer::kHostHidden, on_host, op_.layer, op_.microbatch, p_.saved_piece(op_)});
      return;
    }
    const bool rows = op_.chunk > 0;
    add_slot(rows ? SavedPart::kRows : SavedPart::kInputs, on_device);
    if (rows)
      out_.push_back({Buffer::kRows, on_device, op_.layer, op_.microbatch, op_.chunk - 1});
    else
      add(Buffer::kHidden, on_device, op_.layer);
    // Elsewhere routing is already where backward needs it.
    if (!rows && p_.is_moe(op_.layer) && p_.roams(op_.group, op_.layer, op_.microbatch))
      add(Buffer::kRouting, on_device, op_.layer);
  }

  void update() {
    add(Buffer::kNorm, Mode::kRead, -1);
    add_of_state(p_.sums_apart(op_.state) ? Buffer::kTaken : Buffer::kGrad, Mode::kAdd);
    add_of_state(Buffer::kParams, Mode::kAdd);
  }
  void publish() {
    add_of_state(Buffer::kParams, Mode::kRead);
    add_of_state(Buffer::kPublished, Mode::kWrite);
  }
  void take() {
    add_of_state(Buffer::kGrad, Mode::kTake);
    add_of_state(Buffer::kTaken, Mode::kWrite);
  }

  /// Of gathered weights the gradient of a visit goes, and the sum of the own part stays. A device that has
  /// added nothing gives zeros. The slot is free when the gradient is gone, not before.
  void reduce() {
    add_state(Mode::kAdd, op_.state);
    if (!p_.states()[idx(op_.state)].gathered()) return;
    add_state(Mode::kTake, op_.state);
    add_of_state(Buffer::kTaken, Mode::kAdd);
    if (op_.slot >= 0) add_slot(p_.states()[idx(op_.state)].part, Mode::kRead);
  }
  void all_gather() {
    const State& state = p_.states()[idx(op_.state)];
    if (!state.gathered()) return add_of_state(Buffer::kParams, Mode::kAdd);
    add_of_state(Buffer::kParams, Mode::kRead);
    add_of_state(Buffer::kWeights, Mode::kWrite);
    add_slot(state.part, Mode::kWrite);
  }

  /// A visit of a part is the fetches of all its states here: the first of them needs the slot for itself.
  void fetch() {
    if (op_.state < 0) return copy_saved(Mode::kWrite, Mode::kRead);
    const State& state = p_.states()[idx(op_.state)];
    if (device_ != op_.device) {
      add_of_state(p_.lags(op_.state) ? Buffer::kPublished : Buffer::kParams, Mode::kRead);
    } else if (state.visits()) {
      const bool first = p_.states_on(device_, state.part, state.layer)[0] == op_.state;
      out_.push_back({Buffer::kWeights, Mode::kWrite, op_.state, -1, 0});
      add_slot(state.part, first ? Mode::kWrite : Mode::kAdd);
    } else {
      out_.push_back({Buffer::kParams, Mode::kAdd, op_.state, -1, 0});
    }
  }
  void store() {
    if (op_.state < 0) return copy_saved(Mode::kRead, Mode::kWrite);
    if (device_ != op_.device) {
      add_state(Mode::kAdd, op_.state);
    } else {
      add_state(p_.states()[idx(op_.state)].visits() ? Mode::kTake : Mode::kRead, op_.state);
    }
  }

  /// The pieces from which the output of layer `layer` - 1 is merged.
  void merged_input(i32 layer) {
    add(Buffer::kResidual, Mode::kRead, layer - 1);
    if (p_.is_moe(layer - 1)) {
      add(Buffer::kRouting, Mode::kRead, layer - 1);
      add_all_chunks(Buffer::kReturned, Mode::kRead, layer - 1);
    }
  }
  /// Input of a compute op of `layer`: from the embedding or a move it is there, else this op merges it.
  void read_input(i32 layer) {
    if (layer == 0 || moves_into(layer, Phase::kForward)) {
      add(Buffer::kHidden, Mode::kRead, layer);
    } else {
      merged_input(layer);
      add(Buffer::kHidden, Mode::kWrite, layer);
    }
  }
  void write_input(i32 layer) {
    add(moves_into(layer, Phase::kForward) ? Buffer::kMoveOut : Buffer::kHidden, Mode::kWrite, layer);
  }
  void write_input_gradient(i32 layer) {
    if (!p_.needs_input_gradient(layer)) return;
    if (moves_into(layer, Phase::kBackward)) {
      add(Buffer::kDMove, Mode::kWrite, layer);
    } else {
      add(Buffer::kDHidden, Mode::kWrite, layer - 1);
    }
  }

  /// norm adds, too: a device that has no figures of its own tells zeros.
  void add_figures() { out_.push_back({Buffer::kFigures, Mode::kAdd, -1, -1, 0}); }

  bool leaves_weights() const { return p_.leaves_weights(op_.kind, op_.layer); }

  void attention() {
    add_saved();
    switch (op_.phase) {
      case Phase::kForward:
        return attention_forward();
      case Phase::kRecompute:
        return attention_recompute();
      case Phase::kBackward:
        return attention_backward();
      case Phase::kWeights:
        add(Buffer::kLeftAttention, Mode::kRead, op_.layer);
        return add_grad(UnitPart::kAttention, op_.layer);
    }
  }
  void attention_recompute() {
    read_params(UnitPart::kAttention, op_.layer);
    add(Buffer::kHidden, Mode::kRead, op_.layer);
    if (p_.is_moe(op_.layer)) add(Buffer::kRouting, Mode::kRead, op_.layer);
    const bool kept = saves_activations();
    add(Buffer::kSavedAttention, kept ? Mode::kRead : Mode::kWrite, op_.layer);
    if (resends_rows(recompute())) add(Buffer::kSend, Mode::kWrite, op_.layer);
  }
  void attention_forward() {
    read_params(UnitPart::kAttention, op_.layer);
    read_input(op_.layer);
    add(Buffer::kResidual, Mode::kWrite, op_.layer);
    if (saves_activations()) add(Buffer::kSavedAttention, Mode::kWrite, op_.layer);
    if (!p_.is_moe(op_.layer)) return;
    add(Buffer::kSend, Mode::kWrite, op_.layer);
    add(Buffer::kRouting, Mode::kWrite, op_.layer);
    if (p_.balance_on()) add(Buffer::kCounts, Mode::kAdd, -1);
  }
  void attention_backward() {
    read_params(UnitPart::kAttention, op_.layer);
    add(Buffer::kHidden, Mode::kRead, op_.layer);
    add(Buffer::kDHidden, Mode::kRead, op_.layer);
    if (finds_activations()) add(Buffer::kSavedAttention, Mode::kRead, op_.layer);
    if (p_.is_moe(op_.layer)) {
      add(Buffer::kRouting, Mode::kRead, op_.layer);
      add_all_chunks(Buffer::kDSend, Mode::kRead, op_.layer);
      if (p_.balance_on()) add(Buffer::kBalance, Mode::kRead, -1);
    }
    write_input_gradient(op_.layer);
    if (leaves_weights())
      add(Buffer::kLeftAttention, Mode::kWrite, op_.layer);
    else
      add_grad(UnitPart::kAttention, op_.layer);
    if (p_.is_moe(op_.layer)) add_figures();  // the load-balancing loss
  }
  void embed_forward() {
    read_params(UnitPart::kEmbed, -1);
    write_input(0);
  }
  void embed_backward() {
    add(Buffer::kDHidden, Mode::kRead, -1);
    add_grad(UnitPart::kEmbed, -1);
  }

  bool lends() const { return p_.lends(op_.group, op_.layer); }
  void read_tally() {
    if (p_.tallies(op_.group, op_.layer)) add(Buffer::kTally, Mode::kRead, op_.layer);
  }
  void add_guest_turn(Mode mode) { out_.push_back({Buffer::kGuestTurn, mode, -1, -1, p_.guest_turn(op_)}); }
  void tally() {
    if (is_source(op_.layer)) add(Buffer::kRouting, Mode::kRead, op_.layer);
    if (is_source(op_.layer) || lends()) add(Buffer::kTally, Mode::kWrite, op_.layer);
  }
  void lend() {
    read_tally();
    read_params(UnitPart::kExperts, op_.layer);
    add(Buffer::kGuest, Mode::kWrite, op_.layer);
    add_guest_turn(Mode::kWrite);
  }
  void settle() {
    read_tally();
    add(Buffer::kGuestGrad, Mode::kTake, op_.layer);
    add_grad(UnitPart::kExperts, op_.layer);
  }
  void read_guests() {
    if (!lends()) return;
    add(Buffer::kGuest, Mode::kRead, op_.layer);
    add_guest_turn(Mode::kRead);
  }
  void add_expert_grad() {
    add_grad(UnitPart::kExperts, op_.layer);
    if (lends()) add(Buffer::kGuestGrad, Mode::kAdd, op_.layer);
  }
  void dispatch_forward() {
    add_chunk(Buffer::kLoad, Mode::kWrite, op_.layer);
    if (is_source(op_.layer) || lends()) read_tally();
    if (is_source(op_.layer)) {
      add(Buffer::kSend, Mode::kRead, op_.layer);
      add(Buffer::kRouting, Mode::kRead, op_.layer);
    }
    if (is_owner()) add_chunk(Buffer::kRows, Mode::kWrite, op_.layer);
  }
  void dispatch_backward() {
    add_chunk(Buffer::kLoad, Mode::kRead, op_.layer);
    if (is_owner()) add_chunk(Buffer::kDRows, Mode::kRead, op_.layer);
    if (is_source(op_.layer)) add_chunk(Buffer::kDSend, Mode::kWrite, op_.layer);
  }
  void experts() {
    add_saved();
    switch (op_.phase) {
      case Phase::kForward:
      case Phase::kRecompute:
        return experts_forward();
      case Phase::kBackward:
        return experts_backward();
      case Phase::kWeights:
        add_chunk(Buffer::kRows, Mode::kRead, op_.layer);
        add_chunk(Buffer::kDOut, Mode::kRead, op_.layer);
        add_chunk(Buffer::kLeftExperts, Mode::kRead, op_.layer);
        read_guests();
        return add_expert_grad();
    }
  }
  void experts_forward() {
    read_params(UnitPart::kExperts, op_.layer);
    read_guests();
    add_chunk(Buffer::kLoad, Mode::kRead, op_.layer);
    add_chunk(Buffer::kRows, Mode::kRead, op_.layer);
    if (op_.phase == Phase::kForward || recompute() == Recompute::kResend)
      add_chunk(Buffer::kOut, Mode::kWrite, op_.layer);
    if (saves_activations() || op_.phase == Phase::kRecompute) {
      add_chunk(Buffer::kSavedExperts, Mode::kWrite, op_.layer);
    }
  }
  void experts_backward() {
    read_params(UnitPart::kExperts, op_.layer);
    read_guests();
    add_chunk(Buffer::kLoad, Mode::kRead, op_.layer);
    add_chunk(Buffer::kRows, Mode::kRead, op_.layer);
    add_chunk(Buffer::kDOut, Mode::kRead, op_.layer);
    if (finds_activations()) add_chunk(Buffer::kSavedExperts, Mode::kRead, op_.layer);
    add_chunk(Buffer::kDRows, Mode::kWrite, op_.layer);
    if (leaves_weights())
      add_chunk(Buffer::kLeftExperts, Mode::kWrite, op_.layer);
    else
      add_expert_grad();
  }
  void combine_forward() {
    add_chunk(Buffer::kLoad, Mode::kRead, op_.layer);
    if (is_owner()) add_chunk(Buffer::kOut, Mode::kRead, op_.layer);
    if (is_source(op_.layer)) add_chunk(Buffer::kReturned, Mode::kWrite, op_.layer);
  }
  void combine_backward() {
    add_chunk(Buffer::kLoad, Mode::kRead, op_.layer);
    if (is_source(op_.layer)) {
      add(Buffer::kDHidden, Mode::kRead, op_.layer);
      add(Buffer::kRouting, Mode::kRead, op_.layer);
    }
    if (is_owner()) add_chunk(Buffer::kDOut, Mode::kWrite, op_.layer);
  }

  void move() {
    switch (op_.phase) {
      case Phase::kForward:
        return move_forward();
      case Phase::kBackward:
        return move_backward();
      case Phase::kRecompute:
        return move_saved();
      case Phase::kWeights:
        break;
    }
  }
  /// From the devices of forward to those of backward.
  void move_saved() {
    const bool gives = p_.is_source(op_.group, op_.layer, op_.microbatch, device_);
    add(Buffer::kHidden, gives ? Mode::kRead : Mode::kWrite, op_.layer);
    if (p_.is_moe(op_.layer)) add(Buffer::kRouting, gives ? Mode::kRead : Mode::kWrite, op_.layer);
  }
  void move_forward() {
    if (is_source(op_.layer - 1)) add(Buffer::kMoveOut, Mode::kRead, op_.layer);
    if (is_source(op_.layer)) add(Buffer::kHidden, Mode::kWrite, op_.layer);
  }
  void move_backward() {
    if (is_source(op_.layer)) add(Buffer::kDMove, Mode::kRead, op_.layer);
    if (is_source(op_.layer - 1)) add(Buffer::kDHidden, Mode::kWrite, op_.layer - 1);
  }
  void head() {
    read_params(p_.tied() ? UnitPart::kEmbed : UnitPart::kHead, -1);
    read_input(p_.num_layers());
    if (!p_.options().backward) return;
    write_input_gradient(p_.num_layers());
    add_grad(UnitPart::kHead, -1);
    add_grad(UnitPart::kEmbed, -1);  // tied embeddings; only there has a head device that state
    add_figures();                   // the loss
  }
  void balance() {
    for (const MicrobatchRef& member : p_.balance_set(p_.balance_set_of(op_.group, op_.microbatch))) {
      if (p_.routes(member, device_, Phase::kForward))
        out_.push_back({Buffer::kCounts, Mode::kRead, -1, member.microbatch, 0});
      if (p_.routes(member, device_, Phase::kBackward))
        out_.push_back({Buffer::kBalance, Mode::kWrite, -1, member.microbatch, 0});
    }
  }
  void norm() {
    for (const i32 state : p_.states_on(device_)) {
      if (!p_.tells_squares(state, device_)) continue;
      out_.push_back({p_.sums_apart(state) ? Buffer::kTaken : Buffer::kGrad, Mode::kRead, state, -1, 0});
    }
    add_figures();
    add(Buffer::kNorm, Mode::kWrite, -1);
  }

  const Op& op_;
  DeviceId device_;
  const Placement& p_;
  std::vector<Access>& out_;
};

}  // namespace

void accesses(const Op& op, DeviceId device, const Placement& placement, std::vector<Access>& out) {
  Table(op, device, placement, out).fill();
}

}  // namespace hetermoe
