#pragma once
#include "hetermoe/exec/op_context.h"

// The code of each op kind on a device: exec_ops::NAME. A kind without one does not link.
namespace hetermoe {

using Devices = std::span<const DeviceId>;  ///< participants of a transfer, ascending

/// One side of a transfer.
struct TransferOp {
  /// Fills one message per participant; the other side of unpack.
  void (*pack)(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out);
  /// The shape that the message of `peer` must have; `own` is this device's message to itself. Null = only
  /// the peer knows: for copies inside a process, whose transport needs no shape.
  MessageShape (*expected)(OpContext& d, const Op& op, DeviceId peer, const Message& own);
  /// Throws TransportError for content that would be used without a look, such as indices. The shape is
  /// right. Null = nothing to check.
  void (*check_content)(OpContext& d, const Op& op, DeviceId peer, const Message& message) = nullptr;
  void (*unpack)(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in);
  /// The exchange of the same participants after this one. Null = none.
  const TransferOp* next = nullptr;
  /// Their exchange before this one if sizes are sent first; its `next` is this one. Null = none.
  const TransferOp* sizes = nullptr;
  /// Their exchange in place of this one for activations (is_saved_copy).
  const TransferOp* of_saved = nullptr;
  /// Their exchange in place of this one if two levels pay (TwoLevel). Null = this one in any case.
  const TransferOp* in_two_levels = nullptr;
  /// Their exchanges in place of this one where rows go by nodes (goes_by_node), and with sizes before them.
  const TransferOp *to_owners_by_node = nullptr, *to_sources_by_node = nullptr, *sizes_by_node = nullptr;
  /// Those among the participants with whom a device exchanges, itself included, ascending. They get a
  /// message each in pack and unpack. Null = all participants.
  std::vector<DeviceId> (*peers)(const Cluster& cluster, Devices participants, DeviceId self) = nullptr;
  /// The compute lane of the device waits for it, so it packs with the threads of that lane.
  bool wide = false;
};

using ComputeOp = void (*)(OpContext& d, const Op& op);

/// How a kind is executed: a compute op by one function, a transfer by its exchanges.
struct ExecOp {
  ExecOp(ComputeOp op) : compute(op) {}
  ExecOp(const TransferOp& op) : transfer(op) {}
  ComputeOp compute = nullptr;
  TransferOp transfer = {};
};

namespace exec_ops {
#define HM_EXEC(kind, name) ExecOp name();
HM_OP_KINDS(HM_EXEC)
#undef HM_EXEC
}  // namespace exec_ops

/// See TransferOp::wide. False for compute ops.
bool is_wide(const Op& op);
/// By the table of op kinds.
void run_compute(OpContext& d, const Op& op);
/// The first exchange of a transfer.
const TransferOp& transfer_op_of(const Op& op, const Placement& placement, const Cluster& cluster);
/// How many exchanges a transfer is.
i64 num_exchanges(const Op& op, const Placement& placement, const Cluster& cluster);
/// With whom a device exchanges, of all participants of the transfer.
std::vector<DeviceId> peers_of(const TransferOp& transfer, const Cluster& cluster, Devices participants,
                               DeviceId self);

/// Tables of which of an op's tokens go to which owner, per chunk; or of one chunk.
void route(OpContext& d, const Op& op, LayerSlot& slot);
void route_chunk(OpContext& d, const Op& op, LayerSlot& slot, i32 chunk);
/// Throws TransportError when a source told other copies of an expert in a dispatch than the split was
/// decided by. copies: [experts].
void check_decided(OpContext& d, const Op& op, DeviceId source, const std::vector<i64>& copies);
/// Slots for what a device computes in an exchange: [E] slot of its own experts and of its guests.
const std::vector<i64>& slots_here(OpContext& d, const Op& op);
/// A layer's choices, -1 for those that find their expert full.
at::Tensor taken_choices(const OpContext& d, const LayerSlot& slot);

/// Tokens of each document among tokens [begin, begin + count) of a microbatch, where documents are masked; a
/// sequence ends one, too. Empty = they are not.
std::vector<i64> document_lengths(const OpContext& d, i32 microbatch, i64 begin, i64 count);
/// Sequences of an op's tokens on this device. documents: as above.
Sequences sequences_of(const OpContext& d, const Op& op, const std::vector<i64>& documents);
/// Leaves the gradient of the input of an op's layer where the layer before finds it.
void give_input_gradient(OpContext& d, const Op& op, const at::Tensor& gradient_TD);
/// Likewise of stage `stage`, num_layers the head.
void set_input_gradient(OpContext& d, const Op& op, i32 stage, const at::Tensor& gradient_TD);

/// The tensors from which backward of an op's layer starts if it is on another device: the input, and in a
/// layer with experts the choice of the router.
std::vector<at::Tensor> backward_start(OpContext& d, const Op& op);
/// Sets these tensors for backward on this device.
void set_backward_start(OpContext& d, const Op& op, const std::vector<at::Tensor>& tensors);

/// Throws TransportError unless the message holds what is expected.
void check_shape(const std::string& where, const Message& message, const MessageShape& expected);
void check_count(const std::string& where, const char* what, std::size_t got, std::size_t expected);

/// Throws TransportError unless a source told as many copies as its tokens choose, or no more where experts
/// have a capacity.
void check_copies(OpContext& d, DeviceId source, const char* what, i64 got, i64 tokens);

/// What peers told, one after another, on the host. Waits once for all of it. Without kernels of our own some
/// of it may be on the host already.
at::Tensor told_to_host(const OpContext& d, std::vector<at::Tensor> told, const char* what);

/// Rows of an op as they travel, and those that came as numbers: in this device's dtype where they had
/// scales.
at::Tensor encoded(OpContext& d, const Op& op, const at::Tensor& x_RD);
at::Tensor decoded(const OpContext& d, const Op& op, const at::Tensor& received);

}  // namespace hetermoe
