#include "hetermoe/exec/ops/op_functions.h"

// reduce: gradients of a state among the devices that hold it.
namespace hetermoe {
namespace {

/// reduce: everybody gets everybody's gradients and adds them in device order, so that all replicas end
/// bit-equal.
void pack(OpContext& d, const Op& op, Devices, std::vector<Message>& out) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& grad : d.state.tensors(op.state).grads) copies.push_back(grad.clone());
  for (Message& message : out) message.tensors = copies;
}

void unpack(OpContext& d, const Op& op, Devices, std::vector<Message>& in) {
  std::vector<at::Tensor>& grads = d.state.tensors(op.state).grads;
  for (std::size_t t = 0; t < grads.size(); ++t) {
    grads[t].copy_(in[0].tensors[t]);
    for (std::size_t i = 1; i < in.size(); ++i) grads[t].add_(d.received(in[i].tensors[t]));
  }
}

/// Everybody sends the same.
std::optional<MessageShape> expected(OpContext& d, const Op&, DeviceId peer, const Message& own) {
  MessageShape shape;
  const at::ScalarType theirs = scalar_type(grad_dtype_of(d.p.plan(), peer));
  for (const at::Tensor& tensor : own.tensors) shape.tensors.push_back({theirs, tensor.sizes().vec()});
  return shape;
}

}  // namespace

template <>
TransferOp transfer_op<TransferKind::kReduce>() {
  return {.pack = pack, .expected = expected, .unpack = unpack};
}

}  // namespace hetermoe
