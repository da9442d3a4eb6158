#pragma once
#include <string>
#include <vector>

#include "hetermoe/cluster/cluster.h"
#include "hetermoe/cost/trained.h"
#include "hetermoe/model/model_config.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/plan/plan.h"

namespace hetermoe {

inline constexpr Bytes kGiB = 1024.0 * 1024 * 1024;

/// Bytes that each device needs for a plan, in closed form: states of the parameters it holds, what it keeps
/// of the microbatches in flight, the working set of its largest op, transfer buffers. An estimate that costs
/// microseconds, for leaving out plans before they are built; whether a plan fits, its simulated peak says.
/// times: [group] how many groups are like it, each with devices of its own that the plan does not list;
/// empty = the plan lists all. margin: as AssumedRouting's.
std::vector<Bytes> estimate_memory(const Plan& plan, const ModelConfig& model,
                                   const std::vector<i64>& times = {}, const TrainedShares& trained = {},
                                   double margin = 1);

/// Memory that an op needs, by the same estimate. saved: for each microbatch in flight, the tensors from
/// which backward starts. largest: while the op runs. again, exchanged: for each microbatch that goes through
/// the layer together with others, the tensors that are sent and computed again, and those that its exchanges
/// carry.
struct OpMemory {
  Bytes saved = 0, largest = 0, again = 0, exchanged = 0;

  /// Adds so many layers; all figures but `saved` count once.
  void add_layers(const OpMemory& layer, double layers);
};
/// Memory of both ops of a layer.
OpMemory both(const OpMemory& attention, const OpMemory& experts);
/// Memory of an op of which `saved` bytes of each microbatch wait on the host. On the device these are in
/// their slots alone. One layer is the exception: those of its `in_flight` microbatches may have come before
/// their op begins.
OpMemory wait_on_host(OpMemory op, Bytes saved, double in_flight, i32 slots);
/// Weights of layers that live on hosts.
struct HostVisits {
  i64 layers = 0;
  Bytes largest = 0;  ///< of a layer, with its gradients

  void add(Bytes visit, i64 times = 1);
  Bytes at_once(i32 slots) const { return static_cast<double>(slots < layers ? slots : layers) * largest; }
};
/// figures: a plan of which order, sequence length, phase W and chunks count. recompute: of the layer.
/// element: bytes of a number.
/// rows: of a token that are sent.
OpMemory attention_memory(const Plan& figures, Recompute recompute, const ModelConfig& model, i64 layer,
                          double tokens, double rows, Bytes element);
/// Expert work of a device in a microbatch.
struct ExpertWork {
  double rows = 0, copies = 0;  ///< a copy is a (row, expert) pair
};
/// Work when so many tokens choose from all experts. owned: experts of the device. copies: with even routing.
/// margin: factor on rows and copies, which are at most all there are.
ExpertWork expert_work(const Plan& figures, const ModelConfig& model, double tokens, double owned,
                       double copies, double margin);
/// Rows that a token sends to owners that have so many experts each.
double rows_sent(const Plan& figures, const ModelConfig& model, const std::vector<double>& owned);
/// Probability that a token has an expert on a device with `owned` of them.
double hit_chance(const ModelConfig& model, double owned);
OpMemory experts_memory(const Plan& figures, Recompute recompute, const ModelConfig& model,
                        const ExpertWork& work, Bytes element);
OpMemory head_memory(const ModelConfig& model, double tokens, Bytes element);
/// Memory that the sum of one state's gradients over its holders takes besides the gradients, if they travel
/// so.
Bytes reduction_bytes(double parameters, double holders, Bytes gradient, WireReduce wire);
/// Memory of a layer's gathered weights if so many visits are on a device at once: the weights, their
/// gradients, and the messages that gather the weights of one visit and sum the gradients of another.
Bytes gathered_layer_bytes(double parameters, double holders, double visits, const StateBytes& each);
/// The messages alone, for an embedding or a head: its one visit has weights before it has gradients.
Bytes gathered_end_messages(double parameters, double holders, const StateBytes& each);
/// Memory of all ops of a device: `saved` is that of all its microbatches in flight, `of_window` that of one
/// window of them. Gradients are summed when the last window is all that is left.
Bytes stage_memory(const OpMemory& ops, Bytes of_window, Bytes reduction, double window, bool resends);

/// Memory of a device that tensors may use. The driver's context, the communication library and the framework
/// take the reserve; fragments of the allocator take the rest.
inline constexpr Bytes kReservedMemory = 1.0 * kGiB;
inline constexpr double kUsableMemory = 0.97;
Bytes usable_memory(const DeviceType& type);
/// "42.7 GiB"; below 1 GiB "6.14 MiB", because 0.0 GiB would say nothing.
std::string memory_text(Bytes bytes);
/// "(45 GiB, 42.7 GiB usable)", or why none of it is. kept_free: beside kReservedMemory.
std::string room_text(const DeviceType& type, Bytes usable, Bytes kept_free = 0);

/// The device that a plan overfills most: "device V100#6 (16 GiB, 14.5 GiB usable) needs 18.2 GiB"; empty =
/// the plan fits.
std::string overfilled_device(const std::vector<Bytes>& memory, const Cluster& cluster);

}  // namespace hetermoe
