#pragma once
#include <vector>

#include "hetermoe/exec/op_context.h"

namespace hetermoe {

struct TransferOp;

/// The ops of one device by their kinds: computes, packs, checks and unpacks what the files of exec/ops say.
/// Knows nothing of threads, clocks and transports. Ops of different lanes run at the same time and touch
/// different slots.
class DeviceRuntime {
 public:
  DeviceRuntime(const RunContext& run, DeviceState& state) : context_(run, state) {}

  DeviceId device() const { return context_.device(); }
  c10::Device where() const { return context_.where(); }
  void begin_step(const StepInput& input) { context_.begin_step(input); }

  /// Runs a compute op.
  void compute(const Op& op);
  // One exchange of a transfer op.
  /// One message per participant; the other side of unpack().
  std::vector<Message> pack(const TransferOp& transfer, const Op& op, std::span<const DeviceId> participants);
  /// The shape of the message that each participant must send. `own`: of pack(), to this device.
  std::vector<MessageShape> expected(const TransferOp& transfer, const Op& op,
                                     std::span<const DeviceId> participants, const Message& own);
  /// Throws TransportError when a participant did not send what this op needs here: numbers, values and
  /// tensors of the right count, shape and dtype, indices in range. To be called before unpack(). `expected`:
  /// of expected().
  void check(const TransferOp& transfer, const Op& op, std::span<const DeviceId> participants,
             const std::vector<MessageShape>& expected, const std::vector<Message>& in);
  void unpack(const TransferOp& transfer, const Op& op, std::span<const DeviceId> participants,
              std::vector<Message>& in);

  /// Load of the exchange this op belongs to, known from dispatch.F on; null for ops without one.
  const ExchangeLoad* load_of(const Op& op);
  Slots& slots() { return context_.slots; }
  /// Takes one buffer of the access table out of its place. The result holds its memory.
  Released take(const BufferKey& key);
  bool has_visitors() const { return context_.state.store().has_visitors(); }
  /// Bytes of parameters, gradients and moments.
  i64 state_bytes() const { return context_.state.store().bytes(); }
  /// After the norm op (or after the last op, when forward only): the numbers of the whole step.
  StepResult& result() { return context_.result; }
  /// Forward only: what this device adds to the step's loss.
  double forward_loss() const { return context_.forward_loss(); }
  const at::Tensor& local_counts() const { return context_.counts_LE; }
  const WireLosses& wire_losses() const { return context_.wire_losses; }

 private:
  OpContext context_;
};

}  // namespace hetermoe
