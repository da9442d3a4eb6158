#include "hetermoe/exec/ops/op_functions.h"
#include "hetermoe/nn/embed_head.h"

// Where a microbatch enters and leaves the model, and the update of the parameters; where it lags, what
// devices get of it and what it gets of their gradients.
namespace hetermoe {

namespace {

void run_embed(OpContext& d, const Op& op) {
  const at::Tensor tokens = d.rows_of(d.tokens, op, -1);
  if (op.phase == Phase::kBackward) {
    embed_backward(d.state.embed(), tokens, d.slots.layer(-1, op.microbatch).d_hidden);
    return;
  }
  LayerSlot& slot = d.slots.layer(0, op.microbatch);
  (d.p.moves_into(op.group, 0, op.microbatch) ? slot.move_out : slot.hidden) =
      embed_forward(d.state.embed(), tokens);
}

}  // namespace

ExecOp exec_ops::embed() { return run_embed; }

namespace {

void run_head(OpContext& d, const Op& op) {
  const i32 layers = d.p.num_layers();
  const at::Tensor y = d.take_input(op, layers);
  const at::Tensor targets = d.rows_of(d.targets, op, layers);
  if (!d.p.options().backward) {
    d.losses[idx(op.microbatch)] = head_loss_sum(d.model, d.state.head(), y, targets);
    return;
  }
  HeadOptions options;
  options.loss_scale = d.input->loss_scale;
  HeadResult result =
      head_forward_backward(d.model, d.state.head(), y, targets, d.input->target_count, options);
  d.losses[idx(op.microbatch)] = result.loss;
  set_input_gradient(d, op, layers, result.dy_TD);
}

}  // namespace

ExecOp exec_ops::head() { return run_head; }

namespace {

void run_update(OpContext& d, const Op& op) {
  if (!d.result.updated) return;  // all devices know the same numbers, so all skip or none
  StateTensors& tensors = d.state.tensors(op.state);
  std::vector<at::Tensor> values = tensors.own_values();
  adamw_update(values, tensors.own_grads(), tensors.moments, d.input->adamw, d.input->learning_rate,
               d.grad_factor);
}

}  // namespace

ExecOp exec_ops::update() { return run_update; }

namespace {

void run_publish(OpContext& d, const Op& op) { d.state.tensors(op.state).publish(); }

}  // namespace

ExecOp exec_ops::publish() { return run_publish; }

namespace {

void run_take(OpContext& d, const Op& op) { d.state.tensors(op.state).take_grads(); }

}  // namespace

ExecOp exec_ops::take() { return run_take; }

}  // namespace hetermoe
