#pragma once
#include <span>
#include <string>
#include <vector>

#include "hetermoe/base/index.h"
#include "hetermoe/comm/transport.h"
#include "hetermoe/exec/device_state.h"
#include "hetermoe/exec/migration_run.h"
#include "hetermoe/exec/slots.h"
#include "hetermoe/exec/step.h"
#include "hetermoe/ops/exchange.h"

namespace hetermoe {

/// Constant data that all devices of an executor share.
struct RunContext {
  const ModelConfig& model;
  const Cluster& cluster;
  const Placement& placement;
  const Schedule& schedule;
  const MigrationRun* migration = nullptr;  ///< for migrate ops; the placement is then the new one
};

/// What the wires of a step lose, of the first tensor that a device sends so: fp64 [2], see wire_loss().
/// Undefined = it sends none.
struct WireLosses {
  at::Tensor rows, gradients;
};

/// Data of the ops of one device: parameters, buffers, the step's input, and the sums of the step. Ops of
/// different lanes run at the same time and touch different members or slots. Keeps references to all
/// constructor arguments.
class OpContext {
 public:
  OpContext(const RunContext& run, DeviceState& state);

  void begin_step(const StepInput& step);
  DeviceId device() const { return state.device(); }
  c10::Device where() const { return state.where(); }

  /// The part of a microbatch that this device computes at a stage (-1 the embedding, num_layers the head):
  /// sequences [begin, begin + count), in a team a part of each.
  struct Sequences {
    i64 begin = 0, count = 0;
    i64 first = 0;   ///< position in its sequence of this device's first token
    i64 tokens = 0;  ///< of this device
  };
  Sequences sequences(const Op& op, i32 stage) const;
  /// The first of them, of the step; and the first of a microbatch of this device's group.
  i64 first_sequence(const Op& op, i32 stage) const {
    return first_sequence(op.microbatch) + sequences(op, stage).begin;
  }
  i64 first_sequence(i32 microbatch) const {
    return group_begin_[idx(group)] + microbatch_begin_[idx(group)][idx(microbatch)];
  }
  /// The number in the step of the first token of a microbatch.
  i64 first_token(i32 microbatch) const { return first_sequence(microbatch) * p.plan().seq_len; }
  /// This device's part of `tokens` or `targets`, flattened; and those of tokens [begin, begin + count) of
  /// its microbatch.
  at::Tensor rows_of(const at::Tensor& all, const Op& op, i32 stage) const;
  at::Tensor rows_of(const at::Tensor& all, i32 microbatch, i64 begin, i64 count) const;
  /// For ops of an exchange: this device sends rows, or receives them.
  bool sends(const Op& op) const { return Exchange(op, p).sends(device()); }
  bool receives(const Op& op) const { return Exchange(op, p).receives(device()); }
  /// The division of work in the exchanges of the op's layer and microbatch; null: by the shares.
  DecidedSplit* decided(const Op& op);
  /// Owners of the op's layer, with guests where there are some.
  LayerRouting& routing_of(const Op& op);
  /// Forward keeps the activations of the op's layer.
  bool keeps_activations(const Op& op) const;
  /// Output of layer `layer` - 1: residual stream plus the returned rows, added in device order.
  at::Tensor merged(const Op& op, i32 layer);
  /// Input of a compute op of `layer`; merged here unless a move or the embedding brought it.
  at::Tensor take_input(const Op& op, i32 layer);
  /// "message of device 3 (V100#1)", for errors.
  std::string name_of_peer(DeviceId peer) const;
  /// Tokens of a sequence per expert; 0 = no limit.
  i64 expert_capacity() const;
  /// Forward only: the term that this device adds to the step's loss.
  double forward_loss() const;

  const ModelConfig& model;
  const Cluster& cluster;
  const Placement& p;
  const Schedule& schedule;
  const MigrationRun* migration;
  DeviceState& state;
  Slots slots;
  const StepInput* input = nullptr;
  at::Tensor tokens, targets;                ///< of the step, on this device
  i32 group = 0;                             ///< this device's
  std::vector<LayerRouting> routing;         ///< [layer] of this device's group, without guests
  std::vector<DecidedSplit> foreseen;        ///< see foreseen_splits()
  std::vector<at::Tensor> losses;            ///< [microbatch]
  std::vector<std::vector<at::Tensor>> aux;  ///< [layer][microbatch]
  at::Tensor counts_LE;                      ///< int64 [layers, experts] of this device's own tokens
  /// int64 [layers] those that found no room; undefined without a capacity.
  at::Tensor dropped_L;
  /// In a sum of two levels, those of this device's node: [part that it stands for][tensor of the state].
  std::vector<std::vector<at::Tensor>> node_sums;
  double grad_factor = 1;
  WireLosses wire_losses;
  StepResult result;

 private:
  std::vector<i64> group_begin_;                    // [group] first sequence of the step
  std::vector<std::vector<i64>> microbatch_begin_;  // [group][microbatch] first sequence of the group
};

}  // namespace hetermoe
