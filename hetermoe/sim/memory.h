#pragma once
#include <vector>

#include "hetermoe/cost/load_table.h"
#include "hetermoe/schedule/lifetimes.h"
#include "hetermoe/sim/simulator.h"

// Memory per device, from the same schedule, access table and routing load as the times.
namespace hetermoe {

/// What a device holds at one moment.
struct MemoryUse {
  Bytes weights = 0, gradients = 0;
  Bytes optimizer = 0;  ///< moments, and the fp32 master of 2-byte weights
  Bytes saved = 0;      ///< inputs, routing and activations that backward starts from
  Bytes in_flight = 0;  ///< all other buffers of the access table
  Bytes workspace = 0;  ///< of the ops that run just then
  Bytes state() const { return weights + gradients + optimizer; }
  Bytes total() const { return state() + saved + in_flight + workspace; }
};

/// The worst moment of a step on a device.
struct MemoryPeak {
  MemoryUse use;
  Seconds time = 0;
};

/// Bytes of buffers and of the workspace of ops on a device whose compute dtype the plan gives.
class BufferSizes {
 public:
  /// Keeps references to all. margin: an owner has room for so many times the rows and copies of the routing
  /// load, at most for all there are.
  BufferSizes(const Placement& placement, const ModelConfig& model, const Cluster& cluster,
              const RoutingLoad& routing, double margin = 1);

  /// kParams has no epochs; kNorm counts 0, and so does kGrad unless weights visit: parameters and gradients
  /// belong to the state.
  Bytes of(const Epoch& epoch);
  /// What the op needs besides its buffers: activations that it recomputes or does not keep, gradients of
  /// them, gathered rows, logits of a run of tokens, messages of a transfer, everybody's copy of what is
  /// reduced. Below zero where one buffer of the op takes the memory of another.
  Bytes workspace(const Op& op, DeviceId device);
  /// Weights, gradients and optimizer state of a device or host, without what visits.
  MemoryUse state(PlaceId place) const;

 private:
  /// Rows and copies that one device sends and receives in an exchange.
  struct Traffic {
    double rows_as_source = 0, copies_as_source = 0, rows_as_owner = 0, copies_as_owner = 0;
    double rows_kept = 0;  ///< of both, those that it sends itself
    double num_sources = 0;
  };
  void add_margin(Traffic& traffic, const ExchangeLoad& load) const;
  Traffic traffic(i32 layer, i32 microbatch, i32 chunk, DeviceId device);
  double tokens(i32 stage, i32 microbatch, DeviceId device) const;
  Bytes attention_kept(i32 layer, DeviceId device) const;
  Bytes attention_saved(i32 layer, DeviceId device) const;  ///< per token, in kSavedAttention
  /// The buffer is part of kSavedAttention.
  bool saves_residual(i32 layer, DeviceId device) const;
  bool saves_send(i32 layer, DeviceId device) const;
  bool selects(i32 layer, DeviceId device) const;
  Bytes attention_work(i32 layer, DeviceId device) const;
  bool keeps(i32 layer, DeviceId device) const;
  Bytes attention_workspace(const Op& op, DeviceId device) const;
  Bytes guests(const Epoch& epoch);
  Bytes guest_workspace(const Op& op, DeviceId device);
  Bytes changed_by_adapters(const Op& op, DeviceId device) const;
  Bytes experts_workspace(const Op& op, DeviceId device);
  Bytes experts_workspace(const Op& op, DeviceId device, double copies) const;
  Bytes compute_workspace(const Op& op, DeviceId device);
  Bytes transfer_workspace(const Op& op, DeviceId device);
  Bytes element(PlaceId place) const;
  Bytes gradient(PlaceId place) const;
  Bytes visiting(const Epoch& epoch);
  bool has_mlp(i32 layer) const;
  Bytes on_host(const Epoch& epoch);
  Bytes send_indices(const Epoch& epoch);
  double counts_of_sequences(const Epoch& epoch) const;
  Bytes row(DeviceId device) const;

  const Placement& placement_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  double margin_;
  LoadTable loads_;
  WorkModel work_;
  std::vector<i32> group_of_;  // [device]
};

/// [num_places] the worst moment of each device and host when ops run at these times. A buffer lives from the
/// start of its first writer to the end of its last reader.
std::vector<MemoryPeak> peak_memory(const Schedule& schedule, const OpTimes& times, BufferSizes& sizes,
                                    const Lifetimes& lifetimes);

/// The same from the parts that a prediction has at hand.
std::vector<MemoryPeak> peak_memory(const Schedule& schedule, const OpTimes& times,
                                    const Placement& placement, const ModelConfig& model,
                                    const Cluster& cluster, const RoutingLoad& routing, double margin = 1);

}  // namespace hetermoe
