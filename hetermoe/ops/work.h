#pragma once
#include <optional>
#include <span>
#include <vector>

#include "hetermoe/base/index.h"
#include "hetermoe/cluster/network.h"
#include "hetermoe/ops/op_row.h"
#include "hetermoe/placement/routing_load.h"

// How much an op computes or carries. Other code decides its cost.
namespace hetermoe {

/// The work of one compute op on one device.
struct ComputeWork {
  Op op;
  DeviceId device = 0;
  i64 seq_len = 0;
  double tokens = 0;     ///< of this device's range
  bool of_team = false;  ///< attention: of a team, which computes projections and scores in ops of their own
  bool latents = false;  ///< project, scores: keys and values are made in scores
  double heads = 1;      ///< scores: part of all query heads
  double rows = 0;       ///< experts: distinct rows
  double copies = 0;     ///< experts: (row, expert) pairs
  double experts = 0;    ///< experts: how many the device owns in this layer
  double params = 0;     ///< update: parameters
  Bytes copied = 0;      ///< publish, take: read and written in the memory of the host
  double frozen = 0;     ///< backward, head: part of the parameters for which no gradient is computed
  double merged_rows = 0;  ///< attention.F, head, merge: rows added to the residual stream first
  bool trains = false;     ///< head: the loss's gradient and backward belong to the op
  double sequences() const { return seq_len > 0 ? tokens / real(seq_len) : 0; }
};

/// How what an op sends is written: rows of experts as the plan has them, other ops without scales.
Wire wire_of(const Op& op, const Plan& plan);

/// Wire bytes of `rows` rows and `copies` copies in one direction of a transfer, of whole groups if rows have
/// any. A copy of dispatch.F carries its weight, expert and row (12 bytes), one of dispatch.B the gradient of
/// the weight (4 bytes).
Bytes wire_bytes(const Op& op, const Plan& plan, i64 hidden, double rows, double copies);
/// The same of one message, whose last group may have fewer rows.
Bytes message_bytes(const Op& op, const Plan& plan, i64 hidden, double rows, double copies);

/// Bytes of the rows of an expert owner with the index of each copy and its routing weight: Buffer::kRows.
Bytes received_rows_bytes(const ModelConfig& model, double rows, double copies, Bytes element);

/// A token's chosen experts with their weights, for a device that computes in so many bytes.
Bytes choice_bytes(const ModelConfig& model, Bytes element);

/// The numbers of the owners of a token's choices, for the device that has the token in the next layer.
Bytes owners_bytes(const ModelConfig& model);

/// Computes the work of ops from plan, model and routing load, by their rows.
class WorkModel {
 public:
  /// Keeps references to all.
  WorkModel(const Placement& placement, const ModelConfig& model, const Cluster& cluster);

  const Placement& placement() const { return placement_; }
  const ModelConfig& model() const { return model_; }
  const Cluster& cluster() const { return cluster_; }

  ComputeWork compute_work(const Op& op, DeviceId device, const ExchangeLoad* load) const;
  /// `load` is needed where an op has a load_chunk(). Returns [exchange][participants], as TransferWork has
  /// them.
  std::vector<PortBytes> port_bytes(const Op& op, std::span<const PlaceId> participants,
                                    const ExchangeLoad* load) const;

  /// Over how many devices the optimizer's state of a state is divided.
  double optimizer_parts(i32 state) const;
  /// Bytes of one device's part of the gradients of a state, on its way to the device that sums it, and as it
  /// is kept; and of its weights. Replicas have one dtype.
  Bytes sent_part(i32 state) const;
  Bytes gradient_part(i32 state) const;
  Bytes gathered_part(i32 state) const;
  /// Bytes that a fetch or a store carries. `load` is needed for saved rows (load_chunk).
  Bytes host_copy_bytes(const Op& op, const ExchangeLoad* load) const;
  /// Parameters of a state (one replica).
  double state_params(i32 state) const { return state_params_[idx(state)]; }
  /// Numbers of its adapters, 0 where there are none.
  double adapter_params(i32 state) const;
  double expert_params() const { return expert_params_; }  ///< of one
  /// Gradients of an expert that is lent go back: it is trained.
  bool settles(const Op& op, const Guest& guest) const;
  /// Parameters of the state that are reduced and updated.
  double trained_params(i32 state) const;

  // For rows.
  /// Fills what follows from the tokens of the op's stage. merges_into: rows of the layer before are added
  /// first, to the input of this layer.
  void add_tokens(ComputeWork& work, std::optional<i32> merges_into = {}) const;
  /// Part of the parameters of a part of the model for which a device computes no gradient.
  double frozen_part(DeviceId device, const UsedPart& part) const;
  /// Adds what one participant sends to another; nothing where they are one.
  void add(std::vector<PortBytes>& bytes, std::span<const PlaceId> participants, PlaceId from, PlaceId to,
           Bytes amount) const;
  /// `each` from every participant to every other.
  std::vector<PortBytes> all_to_all_bytes(std::span<const PlaceId> participants, Bytes each) const;
  std::size_t node_of(PlaceId place) const { return idx(cluster_.node_of(place)); }

 private:
  double merged_rows_per_token(const Op& op, i32 layer) const;
  Bytes part_of_gradients(i32 state, Dtype dtype) const;

  const Placement& placement_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  std::vector<double> state_params_;
  double expert_params_ = 0;
};

}  // namespace hetermoe
