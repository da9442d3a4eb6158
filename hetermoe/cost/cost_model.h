#pragma once
#include <span>
#include <vector>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/routing_load.h"
#include "hetermoe/schedule/schedule.h"

// One question: seconds of this op on this device for this much work, alone on its links. The virtual clock
// of the executor and the simulator ask it alike; only the simulator adds contention.
namespace hetermoe {

/// What one compute op does on one device.
struct ComputeWork {
  Op op;
  DeviceId device = 0;
  i64 seq_len = 0;
  double sequences = 0;    ///< of this device's share
  double tokens = 0;       ///< sequences * seq_len
  double rows = 0;         ///< experts: distinct rows
  double copies = 0;       ///< experts: (row, expert) pairs
  double experts = 0;      ///< experts: how many the device owns in this layer
  double params = 0;       ///< update: parameters
  Bytes copied = 0;        ///< publish, take: read and written in the memory of the host
  double frozen = 0;       ///< backward, head: part of the parameters for which no gradient is computed
  double merged_rows = 0;  ///< attention.F, head, merge: rows added to the residual stream first
  bool trains = false;     ///< head: the loss's gradient and backward belong to the op
};

/// Bytes of one transfer through the ports of one participant; rows that stay on the device do not count.
struct PortBytes {
  Bytes net_out = 0, net_in = 0;      ///< to and from other nodes
  Bytes local_out = 0, local_in = 0;  ///< to and from devices of the same node
  Bytes host_out = 0, host_in = 0;    ///< of a device to and from its host; of the host the reverse
};

/// A transfer is one exchange, or several one after another, which TwoLevel makes of it.
struct TransferWork {
  Op op;
  std::span<const DeviceId> participants;
  std::span<const PortBytes> bytes;  ///< [exchange][participants]
  std::size_t num_exchanges() const { return bytes.size() / participants.size(); }
  std::span<const PortBytes> of_exchange(std::size_t i) const {
    return bytes.subspan(i * participants.size(), participants.size());
  }
};

/// A transfer keeps port `port` busy for `seconds` when it has the port to itself.
/// Ports of a cluster with N nodes: 2n = uplink and 2n+1 = downlink of node n; 2N + 2d, +1 = local out, in of
/// device d. After these, with D devices: 2N + 2D + 2d, +1 = link of device d to and from its host; then of
/// node n 3n, +1, +2 = links of all its devices to and from the host, memory of the host.
struct PortLoad {
  i32 port;
  Seconds seconds;
  i32 copies = 1;  ///< folded schedules: so many transfers that do the same at the same time use the port
};

i32 num_ports(const Cluster& cluster);

struct TransferCost {
  Seconds latency = 0;  ///< with what several exchanges cost beyond the busiest port of all together
  std::vector<PortLoad> loads;
  Seconds seconds() const;  ///< latency + the busiest port
};

class CostModel {
 public:
  virtual ~CostModel() = default;
  virtual Seconds compute(const ComputeWork& work) const = 0;
  virtual TransferCost transfer(const TransferWork& work) const = 0;
  /// Share of a device's compute speed that is lost while a transfer of that device is active; contention, so
  /// only the simulator applies it.
  virtual double interference(DeviceId /*device*/) const { return 0; }
};

/// Wire bytes of `rows` rows and `copies` copies in one direction of a transfer. A copy of dispatch.F carries
/// its weight, expert and row (12 bytes), one of dispatch.B the gradient of the weight (4 bytes).
Bytes wire_bytes(const Op& op, const Plan& plan, i64 hidden, double rows, double copies);

/// Of the rows of an expert owner with the index of each copy and its routing weight: Buffer::kRows.
Bytes received_rows_bytes(const ModelConfig& model, double rows, double copies, Bytes element);

/// Computes the work of ops from plan, model and routing load.
class WorkModel {
 public:
  WorkModel(const Placement& placement, const ModelConfig& model, const Cluster& cluster);
  ComputeWork compute_work(const Op& op, DeviceId device, const ExchangeLoad* load) const;
  /// `load` is needed where an op has a load_chunk(). Returns bytes as TransferWork has them.
  std::vector<PortBytes> port_bytes(const Op& op, std::span<const DeviceId> participants,
                                    const ExchangeLoad* load) const;
  /// Over how many devices the optimizer's state of a state is divided.
  double optimizer_parts(i32 state) const;
  /// Bytes of one device's part of the gradients of a state, and of its weights. Replicas have one dtype.
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
  bool settles(const Op& op, const Guest& guest) const { return placement_.trains(op.layer, guest.expert); }
  /// What is reduced and updated of it.
  double trained_params(i32 state) const {
    return placement_.options().lora == nullptr ? state_params(state) : adapter_params(state);
  }

 private:
  double merged_rows_per_token(const Op& op) const;
  double frozen_part(const Op& op, DeviceId device) const;
  std::vector<PortBytes> exchange_bytes(const Op& op, std::span<const DeviceId> participants,
                                        const ExchangeLoad& load) const;
  std::vector<PortBytes> pairwise_bytes(const Op& op, std::span<const DeviceId> participants,
                                        const ExchangeLoad& load, bool to_owners) const;
  std::vector<PortBytes> product_bytes(const Op& op, std::span<const DeviceId> participants,
                                       const ExchangeLoad& load) const;
  Bytes copied_bytes(const Op& op, PlaceId host) const;
  std::vector<PortBytes> host_bytes(const Op& op, std::span<const PlaceId> participants,
                                    const ExchangeLoad* load) const;
  std::size_t node_of(PlaceId place) const;
  Bytes moved_token(const Op& op) const;
  std::vector<PortBytes> move_bytes(const Op& op, std::span<const DeviceId> participants) const;
  std::vector<PortBytes> guest_bytes(const Op& op, std::span<const DeviceId> participants,
                                     const ExchangeLoad& load) const;
  std::vector<PortBytes> tally_bytes(const Op& op, std::span<const DeviceId> participants) const;
  std::vector<PortBytes> all_to_all_bytes(std::span<const DeviceId> participants, Bytes each) const;
  std::vector<PortBytes> state_bytes(std::span<const PlaceId> participants, Bytes part, bool sums,
                                     bool tells) const;
  void add(std::vector<PortBytes>& bytes, std::span<const DeviceId> participants, DeviceId from, DeviceId to,
           Bytes amount) const;

  const Placement& placement_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  std::vector<double> state_params_;
  double expert_params_ = 0;
};

}  // namespace hetermoe
