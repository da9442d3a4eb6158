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

void backward(OpContext& d, const Op& op) {
  ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  ExpertsGradient gradient = experts_backward(d.state.slab(op.layer), slot.rows, slot.groups, slot.weights,
                                              slot.saved.get(), slot.d_out);
  slot.d_rows = gradient.drows_RD;
  slot.d_weights = to_arrival(slot.groups, gradient.dweights_C);
}

}  // namespace

template <>
void compute_op<ComputeKind::kExperts>(OpContext& d, const Op& op) {
  op.phase == Phase::kBackward ? backward(d, op) : forward(d, op);
}

}  // namespace hetermoe
