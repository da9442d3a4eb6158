#include <cmath>

#include "hetermoe/exec/ops/op_functions.h"

// norm: what every device must know of the whole step before it updates.
namespace hetermoe {
namespace {

/// The trained states whose first device this is.
std::vector<i64> states_told_by(const OpContext& d, DeviceId device) {
  std::vector<i64> states;
  for (std::size_t s = 0; s < d.schedule.states.size(); ++s) {
    if (d.schedule.states[s].trainable && d.schedule.states[s].devices[0] == device)
      states.push_back(static_cast<i64>(s));
  }
  return states;
}

/// norm: squared gradients of the trained states whose first device this is, losses and expert counts. With
/// these in every message each device ends with the same numbers of the whole step.
void pack(OpContext& d, const Op&, Devices, std::vector<Message>& out) {
  Message mine;
  mine.numbers = states_told_by(d, d.device());
  for (const i64 s : mine.numbers) {
    mine.values.push_back(squared_norm(d.state.tensors(static_cast<i32>(s)).grads).item<double>());
  }
  double aux = 0;
  for (const auto& layer : d.aux) {
    for (const at::Tensor& value : layer) aux += value.defined() ? value.item<double>() : 0;
  }
  mine.values.push_back(d.forward_loss());
  mine.values.push_back(aux / d.input->loss_scale);  // computed from the scaled gradient
  mine.tensors.push_back(d.counts_LE);
  for (Message& message : out) message = mine;
}

void unpack(OpContext& d, const Op&, Devices, std::vector<Message>& in) {
  std::vector<double> squares(d.schedule.states.size(), 0);
  d.result.counts_LE = at::zeros_like(d.counts_LE);
  for (const Message& message : in) {
    for (std::size_t i = 0; i < message.numbers.size(); ++i)
      squares[idx(message.numbers[i])] = message.values[i];
    d.result.loss += message.values[message.numbers.size()];
    d.result.aux_loss += message.values[message.numbers.size() + 1];
    d.result.counts_LE.add_(message.tensors[0]);
  }
  double sum = 0;
  for (const double square : squares) sum += square;
  sum /= d.input->loss_scale * d.input->loss_scale;
  d.result.grad_norm = std::sqrt(sum);
  d.result.updated = std::isfinite(sum) && std::isfinite(d.result.loss) && std::isfinite(d.result.aux_loss);
  d.grad_factor = clip_factor(sum, d.input->max_grad_norm) / d.input->loss_scale;
}

std::optional<MessageShape> expected(OpContext& d, const Op&, DeviceId peer, const Message&) {
  MessageShape shape;
  shape.numbers = states_told_by(d, peer).size();
  shape.values = shape.numbers + 2;
  shape.tensors.push_back({at::kLong, d.counts_LE.sizes().vec()});
  return shape;
}

void check_states(OpContext& d, const Op&, DeviceId peer, const Message& message) {
  const std::vector<i64> states = states_told_by(d, peer);
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (message.numbers[i] == states[i]) continue;
    fail<TransportError>(d.name_of_peer(peer), "state {}: got {}, expected {}", i, message.numbers[i],
                         states[i]);
  }
}

}  // namespace

template <>
TransferOp transfer_op<TransferKind::kNorm>() {
  return {.pack = pack, .expected = expected, .check_content = check_states, .unpack = unpack};
}

}  // namespace hetermoe
