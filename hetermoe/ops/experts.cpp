#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/ops/buffer_sizes.h"
#include "hetermoe/ops/layer_op.h"

namespace hetermoe {
namespace {

void add_gradients(AccessList& list) {
  list.add_grad(UnitPart::kExperts, list.op.layer);
  if (list.lends()) list.add(Buffer::kGuestGrad, Mode::kAdd);
}

void experts_forward_accesses(AccessList& list) {
  list.read_params();
  list.read_guests();
  list.read(Buffer::kLoad);
  list.read(Buffer::kRows);
  const bool again = list.op.phase == Phase::kRecompute;
  if (!again || list.recompute() == Recompute::kResend) list.write(Buffer::kOut);
  if (list.saves_activations() || again) list.write(Buffer::kSavedExperts);
}

void experts_backward_accesses(AccessList& list) {
  list.read_params();
  list.read_guests();
  list.read(Buffer::kLoad);
  list.read(Buffer::kRows);
  list.read(Buffer::kDOut);
  if (list.finds_activations()) list.read(Buffer::kSavedExperts);
  list.write(Buffer::kDRows);
  if (list.p.leaves_weights(UnitPart::kExperts, list.op.layer))
    list.write(Buffer::kLeftExperts);
  else
    add_gradients(list);
}

void experts_accesses(AccessList& list) {
  list.add_saved();
  switch (list.op.phase) {
    case Phase::kForward:
    case Phase::kRecompute:
      return experts_forward_accesses(list);
    case Phase::kBackward:
      return experts_backward_accesses(list);
    case Phase::kWeights:
      list.read(Buffer::kRows);
      list.read(Buffer::kDOut);
      list.read(Buffer::kLeftExperts);
      list.read_guests();
      return add_gradients(list);
  }
}

bool experts_occurs_in(const Op& op, const Placement& placement) {
  if (!placement.is_moe(op.layer)) return false;
  const Recompute recompute = placement.recompute(op.group, op.layer);
  if (op.phase == Phase::kRecompute) return recompute == Recompute::kAhead || recompute == Recompute::kResend;
  return op.phase != Phase::kWeights || placement.plan().weight_gradients == WeightGradients::kAfter;
}

void work_of_op(const WorkModel& model, const ExchangeLoad* load, ComputeWork& work) {
  const Op& op = work.op;
  const Placement& p = model.placement();
  HM_CHECK(load != nullptr, "experts need a routing load");
  work.frozen = model.frozen_part(work.device, {UnitPart::kExperts, op.layer});
  const std::size_t owner = position(p.owners(op), work.device);
  work.rows = load->rows_at(owner);
  work.copies = load->copies_at(owner);
  if (!load->instances.empty()) {
    work.experts = load->instances[owner];
    return;
  }
  for (const i32 state : p.states().on(work.device, UnitPart::kExperts, op.layer))
    work.experts += real(p.states()[idx(state)].experts.size());
}

/// Matrices of experts as their adapters change them, and the gradients of these, made for one op. An op of
/// gradients alone makes no matrices.
Bytes changed_by_adapters(const BufferSizes& s, const Op& op, DeviceId device) {
  const Placement& p = s.placement();
  if (p.options().lora == nullptr) return 0;
  const bool makes_gradients =
      op.phase == Phase::kWeights ||
      (op.phase == Phase::kBackward && !p.leaves_weights(UnitPart::kExperts, op.layer));
  const Bytes matrices = op.phase == Phase::kWeights ? 0 : s.element(device);
  Bytes bytes = 0;
  for (const i32 state : p.states().on(device, UnitPart::kExperts, op.layer)) {
    if (s.work().adapter_params(state) == 0) continue;
    bytes += s.work().state_params(state) * (matrices + (makes_gradients ? s.gradient(device) : 0));
  }
  return bytes;
}

/// Rows in expert order, outputs, and in backward the gradients of both: the gradient of the output is the
/// input of one product, that of the rows the result of the other.
Bytes workspace_of(BufferSizes& s, const Op& op, DeviceId device, double copies) {
  const Placement& p = s.placement();
  const bool backward = op.phase == Phase::kBackward;
  const bool kept = backward ? !recomputes_inside(p.recompute(op.group, op.layer), true)
                             : s.keeps(op.layer, device) || op.phase == Phase::kRecompute;
  const Bytes inside = expert_work_bytes(s.model(), s.element(device)) -
                       (kept ? expert_kept_bytes(s.model(), s.element(device)) : 0);
  const Bytes changed = changed_by_adapters(s, op, device);
  if (op.phase == Phase::kWeights) return copies * 2 * s.row(device) + changed;
  if (op.phase == Phase::kRecompute && p.recompute(op.group, op.layer) == Recompute::kAhead)
    return copies * s.row(device) + changed;
  const Bytes left = backward && p.leaves_weights(UnitPart::kExperts, op.layer)
                         ? copies * expert_left_bytes(s.model(), s.element(device))
                         : 0;  // a buffer
  const int rows =
      backward && !(kept && left > 0) ? 3 : 2;  // of kept gate and up no input has to be gathered
  return copies * (inside + rows * s.row(device)) +
         activation_work_bytes(s.model(), copies, s.element(device)) - left + changed;
}

/// Guests run after the own experts: their result is there beside that of these, and their gradients are not
/// there before.
Bytes experts_workspace(BufferSizes& s, const Op& op, DeviceId device) {
  const Placement& p = s.placement();
  const BufferSizes::Traffic t = s.traffic(op.layer, op.microbatch, op.chunk, device);
  const ExchangeLoad& load = *s.loads().of(op);
  if (load.guest_copies.empty()) return workspace_of(s, op, device, t.copies_as_owner);
  const double copies = load.guest_copies[position(p.owners(op), device)];
  const Bytes result = op.phase == Phase::kWeights ? 0 : t.rows_as_owner * s.row(device);
  const bool makes_gradients =
      op.phase == Phase::kWeights ||
      (op.phase == Phase::kBackward && !p.leaves_weights(UnitPart::kExperts, op.layer));
  const Bytes later =
      makes_gradients && op.chunk == 0 ? s.guests(op.layer, op.microbatch, device, s.gradient(device)) : 0;
  return std::max(workspace_of(s, op, device, t.copies_as_owner - copies) - later,
                  workspace_of(s, op, device, copies) + (copies > 0 ? result : 0));
}

}  // namespace

const OpRow op_rows::experts = {
    .phases = Phases::kAll,
    .queue = QueueRule::always(Queue::kCompute),
    .participants = Participants::kOneDevice,
    .occurs = Occurs::kInMicrobatch,
    .has_layer = true,
    .has_microbatch = true,
    .has_chunk = true,
    .pricing = Pricing::kExperts,
    .saved = SavedPart::kRows,
    .accesses = experts_accesses,
    .occurs_in = experts_occurs_in,
    .has_work = has_work_in_layer<UnitPart::kExperts>,
    .uses = uses_in_layer<UnitPart::kExperts>,
    .grades = grades_in_layer<UnitPart::kExperts>,
    .work = work_of_op,
    .workspace = experts_workspace,
};

}  // namespace hetermoe
