#include <algorithm>
#include <numeric>

#include "hetermoe/device/host_copy.h"
#include "hetermoe/exec/ops/op_functions.h"

// lend: weights of experts go to other owners for one exchange. settle: the gradients that these leave come
// back and are added.
namespace hetermoe {

const std::vector<i64>& slots_here(OpContext& d, const Op& op) {
  const DecidedSplit* decided = d.p.lends(op.group, op.layer) ? d.decided(op) : nullptr;
  return decided != nullptr && decided->routing ? decided->slot_of : d.state.slab(op.layer).slot_of;
}

void check_decided(OpContext& d, const Op& op, DeviceId source, const std::vector<i64>& copies) {
  // Owners that lend nothing were not told the counts.
  if (d.p.tallies(op.group, op.layer) && !d.p.lends(op.group, op.layer)) return;
  const DecidedSplit* decided = d.decided(op);
  if (decided == nullptr) return;
  const std::vector<i64>& known = decided->copies[idx(op.chunk)][idx(d.p.ranges(op).index_of(source))];
  for (std::size_t e = 0; e < known.size(); ++e) {
    if (copies[e] == known[e]) continue;
    fail<TransportError>(d.name_of_peer(source),
                         "copies of expert {}: got {}, expected {}, by which they were "
                         "divided",
                         e, copies[e], known[e]);
  }
}

namespace {

/// Experts that one device lends another for the op's exchange.
std::vector<ExpertId> lent(OpContext& d, const Op& op, DeviceId from, DeviceId to) {
  const DecidedSplit* decided = d.decided(op);
  return decided == nullptr ? std::vector<ExpertId>() : lent_between(d, op.layer, *decided, from, to);
}

i64 count_trained(const OpContext& d, const Op& op, const std::vector<ExpertId>& experts) {
  return std::count_if(experts.begin(), experts.end(),
                       [&](ExpertId expert) { return d.p.states().trains(op.layer, expert); });
}

/// Of so many experts: none has no tensors.
MessageShape shape_of(const OpContext& d, i64 count, at::ScalarType dtype) {
  if (count == 0) return {};
  const i64 hidden = d.model.hidden, width = d.model.expert_hidden;
  return {.numbers = 0,
          .values = 0,
          .tensors = {{dtype, {count, d.model.gate_up_rows(), hidden}},
                      {dtype, {count, d.model.down_rows(), width}}}};
}

void pack_guests(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  const ExpertSlab& slab = d.state.slab(op.layer);
  for (std::size_t i = 0; i < participants.size(); ++i) {
    std::vector<i64> slots;
    for (const ExpertId expert : lent(d, op, d.device(), participants[i]))
      slots.push_back(slab.slot_of[idx(expert)]);
    if (slots.empty()) continue;
    const at::Tensor index = to_device(int32_tensor(slots), d.where());
    const at::ScalarType dtype = scalar_type(d.p.plan().dtype[idx(participants[i])]);
    out[i].tensors = {slab.gate_up.index_select(0, index).to(dtype),
                      slab.down.index_select(0, index).to(dtype)};
  }
}

MessageShape expected_guests(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  return shape_of(d, static_cast<i64>(lent(d, op, peer, d.device()).size()), d.state.dtype());
}

void keep_guests(OpContext& d, const Op& op, Devices, std::vector<Message>& in) {
  const ExpertSlab& own = d.state.slab(op.layer);
  ExpertSlab& guests = d.slots.layer(op.layer, op.microbatch).guests;
  guests = {};
  guests.layer = op.layer;
  guests.products = own.products;
  guests.activation = own.activation;
  std::vector<at::Tensor> gate_up, down;
  for (const Message& message : in) {
    if (message.tensors.empty()) continue;
    gate_up.push_back(message.tensors[0]);
    down.push_back(message.tensors[1]);
  }
  if (gate_up.empty()) return;
  guests.gate_up = gate_up.size() == 1 ? gate_up[0] : at::cat(gate_up);
  guests.down = down.size() == 1 ? down[0] : at::cat(down);
  guests.experts = d.decided(op)->lent;
}

/// Those that a device lent lie together, and those of them that are trained first.
void pack_gradients(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  const LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  i64 begin = 0;
  for (std::size_t i = 0; i < participants.size(); ++i) {
    const std::vector<ExpertId> experts = lent(d, op, participants[i], d.device());
    if (const i64 count = count_trained(d, op, experts); count > 0) {
      for (const at::Tensor& grad : slot.guest_grads) out[i].tensors.push_back(grad.narrow(0, begin, count));
    }
    begin += static_cast<i64>(experts.size());
  }
}

MessageShape expected_gradients(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  return shape_of(d, count_trained(d, op, lent(d, op, d.device(), peer)),
                  scalar_type(grad_dtype_of(d.p.plan(), peer)));
}

/// In the order of the devices that had them.
void add_gradients(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  ExpertSlab& slab = d.state.slab(op.layer);
  for (std::size_t i = 0; i < participants.size(); ++i) {
    if (in[i].tensors.empty()) continue;
    const std::vector<ExpertId> experts = lent(d, op, d.device(), participants[i]);
    const at::Tensor gate_up = in[i].tensors[0], down = in[i].tensors[1];
    for (i64 e = 0; e < gate_up.size(0); ++e) {
      const i64 slot = slab.slot_of[idx(experts[idx(e)])];
      slab.gate_up_grad[slot].add_(gate_up[e]);
      slab.down_grad[slot].add_(down[e]);
    }
  }
}

}  // namespace

ExecOp exec_ops::lend() {
  return TransferOp{.pack = pack_guests, .expected = expected_guests, .unpack = keep_guests};
}

ExecOp exec_ops::settle() {
  return TransferOp{.pack = pack_gradients, .expected = expected_gradients, .unpack = add_gradients};
}

}  // namespace hetermoe
