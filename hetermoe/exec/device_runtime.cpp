#include "hetermoe/exec/device_runtime.h"

#include "hetermoe/base/index.h"
#include "hetermoe/exec/ops/op_functions.h"
#include "hetermoe/schedule/residency.h"

namespace hetermoe {

void DeviceRuntime::compute(const Op& op) {
  if (const std::optional<UsedPart> graded = graded_part(op, context_.p))
    context_.state.store().open_grads(
        graded->part, graded->part == UnitPart::kHead ? context_.p.num_layers() : graded->layer);
  run_compute(context_, op);
}

Released DeviceRuntime::take(const BufferKey& key) {
  const auto hold = [](std::vector<at::Tensor> tensors) {
    return std::make_shared<std::vector<at::Tensor>>(std::move(tensors));
  };
  ParameterStore& store = context_.state.store();
  if (key.buffer() == Buffer::kWeights) return hold(store.dismiss(key.state()));
  const bool is_device = device() < context_.p.num_devices();
  if (key.buffer() == Buffer::kGrad && is_device) {
    const State& state = context_.schedule.states[idx(key.state())];
    if (state.gathered() || state.summed_on_hosts()) return hold(store.take_grads(key.state()));
  }
  return slots().take(key);
}

std::vector<Message> DeviceRuntime::pack(const TransferOp& transfer, const Op& op,
                                         std::span<const DeviceId> participants) {
  std::vector<Message> out(participants.size());
  transfer.pack(context_, op, participants, out);
  return out;
}

std::vector<MessageShape> DeviceRuntime::expected(const TransferOp& transfer, const Op& op,
                                                  std::span<const DeviceId> participants,
                                                  const Message& own) {
  std::vector<MessageShape> all;
  for (const DeviceId peer : participants) {
    all.emplace_back();
    if (transfer.expected) all.back() = transfer.expected(context_, op, peer, own);
  }
  return all;
}

void DeviceRuntime::check(const TransferOp& transfer, const Op& op, std::span<const DeviceId> participants,
                          const std::vector<MessageShape>& expected, const std::vector<Message>& in) {
  for (std::size_t i = 0; i < participants.size(); ++i) {
    const DeviceId peer = participants[i];
    if (peer == device()) continue;
    if (transfer.expected) check_shape(context_.name_of_peer(peer), in[i], expected[i]);
    if (transfer.check_content) transfer.check_content(context_, op, peer, in[i]);
  }
}

void DeviceRuntime::unpack(const TransferOp& transfer, const Op& op, std::span<const DeviceId> participants,
                           std::vector<Message>& in) {
  transfer.unpack(context_, op, participants, in);
}

const ExchangeLoad* DeviceRuntime::load_of(const Op& op) {
  if (row_of(op.kind).of_guests) {
    static const ExchangeLoad none;
    const DecidedSplit* decided = context_.decided(op);
    return decided == nullptr ? &none : &decided->load;
  }
  if (load_chunk(op) < 0) return nullptr;
  if (device() >= context_.p.num_devices())
    return &slots().saved(op.layer, op.microbatch, saved_piece(op, context_.p)).load;
  return &slots().chunk(op.layer, op.microbatch, load_chunk(op)).load;
}

}  // namespace hetermoe
