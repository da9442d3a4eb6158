#include "hetermoe/exec/ops/op_functions.h"

// The experts of a layer on one of their owners: its own, and then those that others lend it.
namespace hetermoe {
namespace {

/// What one slab computes of an exchange. Its copies are the first ones, or those behind them.
struct Part {
  ExpertSlab slab;
  CopyGroups groups;
  at::Tensor weights_C;

  Part(const ChunkSlot& slot, const ExpertSlab& of, i64 first_slot)
      : slab(of), groups(groups_of_slots(slot.groups, first_slot, of.num_slots())) {
    weights_C = slot.weights.narrow(0, slot.groups.offsets[idx(first_slot)], groups.num_copies());
  }
};

Part part_of_owned(OpContext& d, const Op& op) {
  return {d.slots.chunk(op.layer, op.microbatch, op.chunk), d.state.slab(op.layer), 0};
}
Part part_of_guests(OpContext& d, const Op& op) {
  return {d.slots.chunk(op.layer, op.microbatch, op.chunk), d.slots.layer(op.layer, op.microbatch).guests,
          d.state.slab(op.layer).num_slots()};
}

bool has_guests(OpContext& d, const Op& op) {
  return d.p.lends(op.group, op.layer) && !d.slots.layer(op.layer, op.microbatch).guests.experts.empty();
}

/// With room for gradients, which the chunks of a microbatch share.
Part graded_guests(OpContext& d, const Op& op) {
  Part part = part_of_guests(d, op);
  std::vector<at::Tensor>& grads = d.slots.layer(op.layer, op.microbatch).guest_grads;
  const auto options =
      at::TensorOptions().dtype(scalar_type(grad_dtype_of(d.p.plan(), d.device()))).device(d.where());
  if (grads.empty())
    grads = {at::zeros(part.slab.gate_up.sizes(), options), at::zeros(part.slab.down.sizes(), options)};
  part.slab.gate_up_grad = grads[0];
  part.slab.down_grad = grads[1];
  return part;
}

void forward(OpContext& d, const Op& op) {
  ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  const bool save = d.keeps_activations(op) || op.phase == Phase::kRecompute;
  if (save) slot.saved = std::make_unique<ExpertsSaved>();
  if (!has_guests(d, op)) {
    slot.out =
        experts_forward(d.state.slab(op.layer), slot.rows, slot.groups, slot.weights, slot.saved.get());
    return;
  }
  if (save) slot.guests_saved = std::make_unique<ExpertsSaved>();
  const Part own = part_of_owned(d, op), guests = part_of_guests(d, op);
  slot.out = experts_forward(own.slab, slot.rows, own.groups, own.weights_C, slot.saved.get());
  slot.out.add_(
      experts_forward(guests.slab, slot.rows, guests.groups, guests.weights_C, slot.guests_saved.get()));
}

/// Ahead of the gradient: nothing travels, so backward needs no more than what forward would have saved.
void recompute_rows(OpContext& d, const Op& op) {
  ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  const auto made = [&](const Part& part) {
    return std::make_unique<ExpertsSaved>(experts_recompute(part.slab, slot.rows, part.groups));
  };
  if (has_guests(d, op)) {
    slot.saved = made(part_of_owned(d, op));
    slot.guests_saved = made(part_of_guests(d, op));
    return;
  }
  slot.saved =
      std::make_unique<ExpertsSaved>(experts_recompute(d.state.slab(op.layer), slot.rows, slot.groups));
}

void backward_with_guests(OpContext& d, const Op& op) {
  ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  if (d.p.leaves_weights(UnitPart::kExperts, op.layer)) slot.guests_left = std::make_unique<ExpertsLeft>();
  const auto run = [&](Part part, ExpertsSaved* saved, ExpertsLeft* left) {
    return experts_backward(part.slab, slot.rows, part.groups, part.weights_C, saved, slot.d_out,
                            ExpertProducts::kAuto, left);
  };
  const ExpertsGradient own = run(part_of_owned(d, op), slot.saved.get(), slot.left.get()),
                        guests = run(graded_guests(d, op), slot.guests_saved.get(), slot.guests_left.get());
  slot.d_rows = own.drows_RD.add_(guests.drows_RD);
  slot.d_weights = to_arrival(slot.groups, at::cat({own.dweights_C, guests.dweights_C}));
}

void backward(OpContext& d, const Op& op) {
  ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  if (d.p.leaves_weights(UnitPart::kExperts, op.layer)) slot.left = std::make_unique<ExpertsLeft>();
  if (has_guests(d, op)) return backward_with_guests(d, op);
  ExpertsGradient gradient =
      experts_backward(d.state.slab(op.layer), slot.rows, slot.groups, slot.weights, slot.saved.get(),
                       slot.d_out, ExpertProducts::kAuto, slot.left.get());
  slot.d_rows = gradient.drows_RD;
  slot.d_weights = to_arrival(slot.groups, gradient.dweights_C);
}

void expert_weight_gradients(OpContext& d, const Op& op) {
  const ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  if (!has_guests(d, op))
    return experts_weight_gradients(d.state.slab(op.layer), slot.rows, slot.groups, *slot.left, slot.d_out);
  const auto run = [&](Part part, const ExpertsLeft& left) {
    experts_weight_gradients(part.slab, slot.rows, part.groups, left, slot.d_out);
  };
  run(part_of_owned(d, op), *slot.left);
  run(graded_guests(d, op), *slot.guests_left);
}

}  // namespace

namespace {

void run_experts(OpContext& d, const Op& op) {
  switch (op.phase) {
    case Phase::kForward:
      return forward(d, op);
    case Phase::kBackward:
      return backward(d, op);
    case Phase::kRecompute:
      return d.p.recompute(op.group, op.layer) == Recompute::kAhead ? recompute_rows(d, op) : forward(d, op);
    case Phase::kWeights:
      return expert_weight_gradients(d, op);
  }
}

}  // namespace

ExecOp exec_ops::experts() { return run_experts; }

}  // namespace hetermoe
