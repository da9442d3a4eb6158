#include <algorithm>

#include "hetermoe/exec/migration_run.h"
#include "hetermoe/exec/ops/op_functions.h"

// migrate: between two steps, the units of one layer that other devices will hold.
namespace hetermoe {
namespace {

constexpr std::size_t kNumbersPerUnit = 4;  // layer, part, expert, optimizer updates

std::vector<i64> numbers_of(const UnitTensors& unit) {
  return {unit.unit.layer, static_cast<i64>(unit.unit.part), unit.unit.expert, unit.updates};
}

const MigrationRun& run_of(const OpContext& d) {
  HM_CHECK(d.migration != nullptr, "a migrate op needs a migration");
  return *d.migration;
}

/// The moves of the op from one device to another, in the order in which they lie in their message.
std::vector<UnitMove> moves_between_devices(const OpContext& d, const Op& op, DeviceId from, DeviceId to) {
  std::vector<UnitMove> all;
  for (const UnitMove& move : run_of(d).migration.moves_of(op)) {
    if (move.from == from && move.to == to) all.push_back(move);
  }
  return all;
}

/// What training keeps of a parameter travels in fp32, or in fp64 where it is: the receiver casts.
at::Tensor widened(const LogicalTensor& of, const at::Tensor& tensor) {
  return of.exp_avg.defined() ? tensor.to(accumulate_type(of.value.scalar_type())) : tensor;
}

void append(Message& message, const UnitTensors& unit) {
  const std::vector<i64> numbers = numbers_of(unit);
  message.numbers.insert(message.numbers.end(), numbers.begin(), numbers.end());
  for (const LogicalTensor& tensor : unit.tensors) {
    message.tensors.push_back(widened(tensor, tensor.master.defined() ? tensor.master : tensor.value));
    if (!tensor.exp_avg.defined()) continue;
    message.tensors.push_back(widened(tensor, tensor.exp_avg));
    message.tensors.push_back(widened(tensor, tensor.exp_avg_sq));
  }
}

void pack_moved(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  prepare_layer(run_of(d), d.p.states(), op.layer, d.state);
  for (std::size_t i = 0; i < participants.size(); ++i) {
    for (const UnitMove& move : moves_between_devices(d, op, d.device(), participants[i]))
      append(out[i], d.state.store().tensors(move.unit));
  }
}

MessageShape expected_moved(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  MessageShape shape;
  for (const UnitMove& move : moves_between_devices(d, op, peer, d.device())) {
    shape.numbers += kNumbersPerUnit;
    for (const LogicalTensor& tensor : d.state.store().prepared(move.unit).tensors) {
      const std::vector<i64> sizes = tensor.value.sizes().vec();
      const bool frozen = !tensor.buffer && !tensor.exp_avg.defined();
      const at::ScalarType wide = accumulate_type(d.state.dtype());
      shape.tensors.push_back({frozen ? scalar_type(move.dtype) : wide, sizes});
      if (!tensor.exp_avg.defined()) continue;
      shape.tensors.push_back({wide, sizes});
      shape.tensors.push_back({wide, sizes});
    }
  }
  return shape;
}

void check_content(OpContext& d, const Op& op, DeviceId peer, const Message& message) {
  const std::string where = d.name_of_peer(peer);
  std::span<const i64> numbers = message.numbers;
  for (const UnitMove& move : moves_between_devices(d, op, peer, d.device())) {
    const std::vector<i64> wanted = numbers_of(d.state.store().prepared(move.unit));
    for (std::size_t i = 0; i + 1 < kNumbersPerUnit; ++i) {
      if (numbers[i] == wanted[i]) continue;
      fail<TransportError>(where, "number {} of {}: got {}, expected {}", i, to_string(move.unit), numbers[i],
                           wanted[i]);
    }
    const i64 updates = numbers[kNumbersPerUnit - 1], own = run_of(d).updates;
    if (updates < 0 || (own > 0 && updates > 0 && updates != own)) {
      fail<TransportError>(where, "optimizer updates of {}: got {}, expected {}", to_string(move.unit),
                           updates, own);
    }
    numbers = numbers.subspan(kNumbersPerUnit);
  }
}

/// Values are those of the sender to the bit: a 16-bit value is the rounding of its master on every device.
void fill(const LogicalTensor& target, const at::Tensor& wide) {
  if (target.master.defined()) target.master.copy_(wide);
  target.value.copy_(wide);
}

/// Returns how many of the tensors it has used.
std::size_t fill(const UnitTensors& unit, std::span<const at::Tensor> tensors) {
  std::size_t next = 0;
  for (const LogicalTensor& tensor : unit.tensors) {
    fill(tensor, tensors[next++]);
    if (!tensor.exp_avg.defined()) continue;
    tensor.exp_avg.copy_(tensors[next++]);
    tensor.exp_avg_sq.copy_(tensors[next++]);
  }
  return next;
}

void unpack_moved(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  ParameterStore& store = d.state.store();
  i64 updates = run_of(d).updates;  // the store counts again when its states are bound
  for (std::size_t i = 0; i < participants.size(); ++i) {
    std::span<const at::Tensor> tensors = in[i].tensors;
    std::size_t number = kNumbersPerUnit - 1;
    for (const UnitMove& move : moves_between_devices(d, op, participants[i], d.device())) {
      tensors = tensors.subspan(fill(store.prepared(move.unit), tensors));
      updates = std::max(updates, in[i].numbers[number]);
      number += kNumbersPerUnit;
    }
  }
  adopt_layer(run_of(d), d.p.states(), op.layer, d.state);
  store.set_updates(updates);
}

}  // namespace

ExecOp exec_ops::migrate() {
  return TransferOp{
      .pack = pack_moved, .expected = expected_moved, .check_content = check_content, .unpack = unpack_moved};
}

}  // namespace hetermoe
