#pragma once
#include <vector>

#include "hetermoe/comm/transport.h"
#include "hetermoe/exec/device_state.h"
#include "hetermoe/exec/slots.h"
#include "hetermoe/exec/step.h"

namespace hetermoe {

/// What all devices of an executor share and nobody changes.
struct RunContext {
  const ModelConfig& model;
  const Cluster& cluster;
  const Placement& placement;
  const Schedule& schedule;
};

/// What a message must hold.
struct MessageShape {
  std::size_t numbers = 0, values = 0;
  struct Part {
    at::ScalarType dtype;
    std::vector<i64> sizes;
  };
  std::vector<Part> tensors;
};

/// The numerics of one device: what each op computes, packs and unpacks. Knows nothing of threads, clocks and
/// transports. Ops of different lanes run at the same time and touch different slots.
class DeviceRuntime {
 public:
  DeviceRuntime(const RunContext& context, DeviceState& state);

  DeviceId device() const { return state_.device(); }
  c10::Device where() const { return state_.where(); }
  void begin_step(const StepInput& input);

  /// Runs a compute op.
  void compute(const Op& op);
  /// One message per participant; the other side of unpack().
  std::vector<Message> pack(const Op& op, std::span<const DeviceId> participants);
  /// Throws TransportError when a participant did not send what this op needs here: numbers, values and
  /// tensors of the right count, shape and dtype, indices in range. To be called before unpack().
  void check(const Op& op, std::span<const DeviceId> participants, const std::vector<Message>& in);
  void unpack(const Op& op, std::span<const DeviceId> participants, std::vector<Message>& in);

  /// Load of the exchange this op belongs to, known from dispatch.F on; null for ops without one.
  const ExchangeLoad* load_of(const Op& op);
  void free(Buffer buffer, i32 layer, i32 microbatch, i32 chunk) {
    slots_.free(buffer, layer, microbatch, chunk);
  }
  Slots& slots() { return slots_; }
  /// Of parameters, gradients and moments.
  i64 state_bytes() const { return state_.store().bytes(); }
  /// After the norm op (or after the last op, when forward only): the numbers of the whole step.
  StepResult& result() { return result_; }
  /// Forward only: what this device adds to the step's loss.
  double forward_loss() const;
  const at::Tensor& local_counts() const { return counts_LE_; }

 private:
  struct Range {
    i64 begin = 0, sequences = 0;  ///< of the microbatch
  };
  i32 stage_of(const Op& op) const;
  Range range(i32 group, i32 stage, i32 microbatch) const;
  at::Tensor rows_of(const at::Tensor& all, const Op& op, i32 stage) const;
  at::Tensor take_input(const Op& op, i32 layer);
  at::Tensor received(const at::Tensor& tensor) const;
  at::Tensor merged(const Op& op, i32 layer);
  bool keeps_activations() const;

  void embed(const Op& op);
  void attention_forward_op(const Op& op);
  void attention_recompute(const Op& op);
  void attention_backward_op(const Op& op);
  void experts_forward_op(const Op& op);
  void experts_backward_op(const Op& op);
  void head(const Op& op);
  void update(const Op& op);
  void route(const Op& op, LayerSlot& slot);
  void count(const Op& op, const at::Tensor& counts_BE);

  void pack_dispatch(const Op& op, std::span<const DeviceId> participants, std::vector<Message>& out);
  void unpack_dispatch(const Op& op, std::span<const DeviceId> participants, std::vector<Message>& in);
  void pack_combine(const Op& op, std::span<const DeviceId> participants, std::vector<Message>& out);
  void unpack_combine(const Op& op, std::span<const DeviceId> participants, std::vector<Message>& in);
  void pack_combine_backward(const Op& op, std::span<const DeviceId> participants, std::vector<Message>& out);
  void unpack_combine_backward(const Op& op, std::span<const DeviceId> participants,
                               std::vector<Message>& in);
  void pack_dispatch_backward(const Op& op, std::span<const DeviceId> participants,
                              std::vector<Message>& out);
  void unpack_dispatch_backward(const Op& op, std::span<const DeviceId> participants,
                                std::vector<Message>& in);
  void pack_move(const Op& op, std::span<const DeviceId> participants, std::vector<Message>& out);
  void unpack_move(const Op& op, std::span<const DeviceId> participants, std::vector<Message>& in);
  void pack_balance(const Op& op, std::vector<Message>& out);
  void unpack_balance(const Op& op, std::vector<Message>& in);
  void pack_reduce(const Op& op, std::vector<Message>& out);
  void unpack_reduce(const Op& op, std::vector<Message>& in);
  void pack_norm(std::vector<Message>& out);
  void unpack_norm(std::vector<Message>& in);
  at::Tensor balance_counts(const Op& op) const;
  MessageShape expected_from(const Op& op, DeviceId peer, const Message& message, const Message& own);
  MessageShape expected_dispatch(const Op& op, DeviceId peer, const Message& message);
  MessageShape expected_rows_back(const Op& op, DeviceId peer);
  MessageShape expected_move(const Op& op, DeviceId peer) const;
  MessageShape expected_norm(DeviceId peer, const Message& message) const;
  void check_indices(const Op& op, DeviceId peer, const Message& message);
  std::string name_of_peer(DeviceId peer) const;

  const RunContext& context_;
  const Placement& p_;
  DeviceState& state_;
  Slots slots_;
  const StepInput* input_ = nullptr;
  std::vector<i64> group_begin_;                    // [group] first sequence of the step
  std::vector<std::vector<i64>> microbatch_begin_;  // [group][microbatch] first sequence of the group
  std::vector<OwnerTable> owner_tables_;            // [layer] of this device's group
  i32 group_ = 0;                                   // this device's group
  std::vector<at::Tensor> losses_;                  // [microbatch]
  std::vector<std::vector<at::Tensor>> aux_;        // [layer][microbatch]
  at::Tensor counts_LE_;                            // int64 [layers, experts] of this device's own tokens
  double grad_factor_ = 1;
  StepResult result_;
};

}  // namespace hetermoe
