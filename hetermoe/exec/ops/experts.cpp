#include "hetermoe/exec/ops/op_functions.h"

// The experts of a layer on one of their owners.
namespace hetermoe {
namespace {

void forward(OpContext& d, const Op& op) {
  ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  const bool save = d.keeps_activations(op) || op.phase == Phase::kRecompute;
  if (save) slot.saved = std::make_unique<ExpertsSaved>();
  slot.out = experts_forward(d.state.slab(op.layer), slot.rows, slot.groups, slot.weights, slot.saved.get());
}

/// Ahead of the gradient: nothing travels, so backward needs no more than what forward would have saved.
void recompute(OpContext& d, const Op& op) {
  ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  slot.saved =
      std::make_unique<ExpertsSaved>(experts_recompute(d.state.slab(op.layer), slot.rows, slot.groups));
}

void backward(OpContext& d, const Op& op) {
  ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  if (d.p.leaves_weights(op.kind, op.layer)) slot.left = std::make_unique<ExpertsLeft>();
  ExpertsGradient gradient =
      experts_backward(d.state.slab(op.layer), slot.rows, slot.groups, slot.weights, slot.saved.get(),
                       slot.d_out, ExpertProducts::kAuto, slot.left.get());
  slot.d_rows = gradient.drows_RD;
  slot.d_weights = to_arrival(slot.groups, gradient.dweights_C);
}

void weight_gradients(OpContext& d, const Op& op) {
  const ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  experts_weight_gradients(d.state.slab(op.layer), slot.rows, slot.groups, *slot.left, slot.d_out);
}

}  // namespace

template <>
void compute_op<ComputeKind::kExperts>(OpContext& d, const Op& op) {
  switch (op.phase) {
    case Phase::kForward:
      return forward(d, op);
    case Phase::kBackward:
      return backward(d, op);
    case Phase::kRecompute:
      return d.p.recompute(op.group, op.layer) == Recompute::kAhead ? recompute(d, op) : forward(d, op);
    case Phase::kWeights:
      return weight_gradients(d, op);
  }
}

}  // namespace hetermoe
