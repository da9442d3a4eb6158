#include "hetermoe/exec/ops/op_functions.h"
#include "hetermoe/nn/router.h"

// balance: expert counts of whole load-balancing groups to all who compute gradients of the loss over them.
namespace hetermoe {
namespace {

/// balance: expert counts of the set's load-balancing groups and of the loss's parts, summed over devices
/// there.
at::Tensor balance_counts(OpContext& d, const Op& op) {
  std::vector<at::Tensor> counts;
  const i64 parts = d.p.balance_parts();
  i64 sequences = 0;
  for (const MicrobatchRef& member : d.p.balance_sets().with(op.group, op.microbatch)) {
    const i64 size = d.p.plan().groups[idx(member.group)].microbatches[idx(member.microbatch)];
    at::Tensor of_microbatch;
    if (member.group == d.group) of_microbatch = d.slots.microbatch(member.microbatch).counts;
    counts.push_back(of_microbatch.defined()
                         ? of_microbatch
                         : at::zeros({size, parts, d.model.num_experts}, d.counts_LE.options()));
    sequences += size;
  }
  const i64 size = d.p.options().aux_group > 0 ? d.p.options().aux_group : total_sequences(d.p.plan());
  return at::cat(counts).view({sequences / size, size, parts, d.model.num_experts}).sum(1);
}

void pack_routing(OpContext& d, const Op& op, Devices, std::vector<Message>& out) {
  const at::Tensor counts = balance_counts(d, op);
  for (Message& message : out) message.tensors.push_back(counts);
}

void unpack_routing(OpContext& d, const Op& op, Devices, std::vector<Message>& in) {
  at::Tensor counts = in[0].tensors[0].clone();
  for (std::size_t i = 1; i < in.size(); ++i) counts.add_(in[i].tensors[0]);
  const i64 step_tokens = total_tokens(d.p.plan());
  const at::Tensor gradient =
      balance_gradient(d.model, counts, step_tokens, accumulate_type(d.state.dtype()));
  const i64 size = d.p.options().aux_group > 0 ? d.p.options().aux_group : total_sequences(d.p.plan());
  const at::Tensor by_sequence = gradient.repeat_interleave(size, 0).mul_(d.input->loss_scale);
  i64 begin = 0;
  for (const MicrobatchRef& member : d.p.balance_sets().with(op.group, op.microbatch)) {
    const i64 sequences = d.p.plan().groups[idx(member.group)].microbatches[idx(member.microbatch)];
    if (member.group == d.group) {
      MicrobatchSlot& slot = d.slots.microbatch(member.microbatch);
      if (d.p.routes(member, d.device(), Phase::kBackward))
        slot.balance = by_sequence.narrow(0, begin, sequences);
    }
    begin += sequences;
  }
}

/// Everybody sends the same.
MessageShape expected_routing(OpContext&, const Op&, DeviceId, const Message& own) {
  MessageShape shape;
  for (const at::Tensor& tensor : own.tensors)
    shape.tensors.push_back({tensor.scalar_type(), tensor.sizes().vec()});
  return shape;
}

}  // namespace

ExecOp exec_ops::balance() {
  return TransferOp{.pack = pack_routing, .expected = expected_routing, .unpack = unpack_routing};
}

}  // namespace hetermoe
