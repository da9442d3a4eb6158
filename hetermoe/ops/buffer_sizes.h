#pragma once
#include <vector>

#include "hetermoe/model/op_cost.h"
#include "hetermoe/ops/buffers.h"
#include "hetermoe/ops/load_table.h"
#include "hetermoe/ops/work.h"

// Bytes of buffers, of what ops need besides them, and of states.
namespace hetermoe {

/// Memory of a device at one moment, by kind.
struct MemoryUse {
  Bytes weights = 0, gradients = 0;
  Bytes optimizer = 0;  ///< moments, and the fp32 master of 2-byte weights
  Bytes saved = 0;      ///< inputs, routing and activations that backward starts from
  Bytes in_flight = 0;  ///< all other buffers of the access table
  Bytes workspace = 0;  ///< of the ops that run just then
  Bytes state() const { return weights + gradients + optimizer; }
  Bytes total() const { return state() + saved + in_flight + workspace; }
};

/// Bytes of buffers and of the workspace of ops on a device whose compute dtype the plan gives.
class BufferSizes {
 public:
  /// Keeps references to all. margin: an owner has room for so many times the rows and copies of the routing
  /// load, at most for all there are.
  BufferSizes(const Placement& placement, const ModelConfig& model, const Cluster& cluster,
              const RoutingLoad& routing, double margin = 1);

  /// By the row of the buffer. Parameters and gradients that stay belong to the state and count 0 here.
  Bytes of(const BufferKey& key, PlaceId place);
  /// Memory that the op needs besides its buffers, by its row. Compute ops: activations that they recompute
  /// or do not keep and their gradients, gathered rows, logits of a run of tokens. Transfers: messages, and
  /// the copies of all participants in a reduction. Below zero where one buffer of the op takes the memory of
  /// another.
  Bytes workspace(const Op& op, DeviceId device);
  /// Weights, gradients and optimizer state of a device or host, without what visits.
  MemoryUse state(PlaceId place) const;

  // For rows.
  const Placement& placement() const { return placement_; }
  const ModelConfig& model() const { return model_; }
  const Cluster& cluster() const { return cluster_; }
  const WorkModel& work() const { return work_; }
  LoadTable& loads() { return loads_; }
  i32 group_of(DeviceId device) const { return group_of_[idx(device)]; }
  Bytes element(PlaceId place) const;   ///< of a number in the compute dtype
  Bytes gradient(PlaceId place) const;  ///< of one of a gradient
  Bytes row(DeviceId device) const { return row_bytes_of(element(device)); }
  Bytes row_bytes_of(Bytes element) const;
  /// Tokens of a device in a stage of a microbatch.
  double tokens(i32 stage, i32 microbatch, DeviceId device) const;

  /// Rows and copies that one device sends and receives in an exchange.
  struct Traffic {
    double rows_as_source = 0, copies_as_source = 0, rows_as_owner = 0, copies_as_owner = 0;
    double rows_kept = 0;  ///< of both, those that it sends itself
    double num_sources = 0;
  };
  Traffic traffic(i32 layer, i32 microbatch, i32 chunk, DeviceId device);
  /// For an op of an exchange: a device counts as source if it has tokens in the op (Exchange::sources).
  Traffic traffic(const Op& op, DeviceId device);
  /// A device of the layer after `layer` to which results go (Placement::joins_at); it has no tokens of
  /// `layer` itself.
  bool receives_next(i32 layer, i32 microbatch, DeviceId device) const;
  /// Rows of an exchange that come back to a source: of owners, or sums of nodes (NodeRows).
  double rows_back(const Op& op, DeviceId device);
  /// The combine of a chunk.
  Op combine_of(i32 layer, i32 microbatch, i32 chunk, DeviceId device) const;
  Traffic traffic(const BufferKey& key, DeviceId device) {
    return traffic(key.layer(), key.microbatch(), key.chunk(), device);
  }

  // Memory of attention parts, by what their layer keeps for backward: ops/attention_memory.cpp.
  /// Per token: what it makes besides its saved input; what of this lies in kSavedAttention; and with the
  /// residual stream that an MLP of its own makes.
  Bytes attention_work(i32 layer, DeviceId device) const;
  Bytes attention_kept(i32 layer, DeviceId device) const;
  Bytes attention_saved(i32 layer, DeviceId device) const;
  /// Whether the device is in a team: the part is then cut into ops, and these figures are those of the last
  /// one.
  bool of_team(i32 layer, DeviceId device) const {
    return group_of(device) >= 0 && placement_.has_teams(group_of(device), layer);
  }
  /// Per token: what the first op of a team keeps; and the attention kernel, of some heads.
  Bytes projection_kept(i32 layer, const Team& team, DeviceId device) const;
  Bytes scores_kept(i32 layer, const Team& team, DeviceId device) const;
  /// The device's team; of a buffer of a part of the heads, with that part alone.
  Team team_of(const BufferKey& key, DeviceId device) const;
  /// The buffer is part of kSavedAttention.
  bool saves_residual(i32 layer, DeviceId device) const;
  bool saves_send(i32 layer, DeviceId device) const;
  /// Forward keeps the activations of the layer.
  bool keeps(i32 layer, DeviceId device) const;
  /// Devices of a state exchange in two levels. Asked for each device of large states, found once.
  bool in_two_levels(i32 state);
  /// Weights or gradients of experts that are lent to the device, so many bytes a number.
  Bytes guests(i32 layer, i32 microbatch, DeviceId device, Bytes each);

 private:
  void add_margin(Traffic& traffic, const ExchangeLoad& load) const;
  ActivationOptions activations(i32 layer, DeviceId device, KeptActivations keeps) const;
  ActivationOptions activations(i32 layer, const Team& team, DeviceId device) const;
  bool selects(i32 layer, DeviceId device) const;
  bool has_mlp(i32 layer) const;

  const Placement& placement_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  double margin_;
  LoadTable loads_;
  WorkModel work_;
  std::vector<i32> group_of_;                       // [device]
  std::vector<std::optional<bool>> in_two_levels_;  // [state] as far as it is known
};

}  // namespace hetermoe
