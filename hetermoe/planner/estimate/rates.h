#pragma once
#include <limits>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "hetermoe/planner/planner.h"

// Times of devices for the parts of a layer: the input of estimates and of rounding.
namespace hetermoe {

inline constexpr Seconds kNever = std::numeric_limits<Seconds>::infinity();  ///< of a plan that there is not

inline constexpr i64 kSmallCluster = 6;    ///< devices of a cluster that is searched device by device
inline constexpr i64 kMiddleCluster = 16;  ///< of a cluster where many pipelines are weighed

/// Devices that no cost can tell apart: of one type and speed, on nodes with links within 10 % of each other;
/// in a small cluster also on one node. Where there are many speeds and links, also devices of nearly the
/// same: the fastest comes first and stands for all.
struct DeviceClass {
  i32 type = 0;
  double speed = 1;  ///< of the fastest
  std::vector<DeviceId> devices;
  double per_node = 1;    ///< devices of the class on the node that has most of them
  i64 on_full_nodes = 0;  ///< devices of the class on nodes that have as many
  BytesPerSecond port =
      0;  ///< effective, per direction, shared by the node's devices; the slowest node counts
  BytesPerSecond local = 0;
  Seconds latency = 0;
  Seconds peer = 0, local_peer = 0;  ///< what a transfer takes longer for each peer

  i64 size() const { return static_cast<i64>(devices.size()); }
};

/// Traffic when the holders of a state send it to each other, or sum it, with so many of them on each node.
struct StateExchange {
  Bytes port = 0;      ///< through the port of a node, in each direction
  Seconds inside = 0;  ///< between the devices of the node
};
/// `bytes`: of the whole state. In two levels where that is faster, as pays_two_levels() says.
StateExchange state_exchange(const DeviceClass& cls, Bytes bytes, double holders, double on_node);
/// Seconds for the peers of a transfer among so many devices.
Seconds peer_seconds(const DeviceClass& cls, double devices, double on_node);

/// Exchanges of a layer with experts in its backward pass, over those of its forward pass: a dispatch and a
/// combine are one. With phase R rows are sent again (occurs_in of their rows).
double backward_exchanges(Recompute recompute);

struct LayerCost {
  Seconds forward = 0, backward = 0;
  Seconds sum() const { return forward + backward; }
};

/// Costs by class, without contention. For one thread: what was asked for is remembered.
class Rates {
 public:
  explicit Rates(const PlanRequest& request);

  /// Classes by comparative advantage in attention, best first.
  const std::vector<DeviceClass>& classes() const { return classes_; }
  std::size_t num_classes() const { return classes_.size(); }
  /// Attention part of a layer (mean over layers) for so many sequences.
  const LayerCost& attention(std::size_t cls, double sequences, Recompute recompute) const;
  /// The same of one layer, with experts or dense; nothing where the model has none of the kind.
  LayerCost attention_of(std::size_t cls, double sequences, Recompute recompute, bool dense) const;
  /// Experts of one layer: (row, expert) pairs spread over so many experts.
  LayerCost experts(std::size_t cls, double copies, double experts, Recompute recompute) const;
  Seconds head(std::size_t cls, double sequences) const;
  Seconds update(std::size_t cls, double parameters) const;
  /// Seconds for the update of so many parameters in all, by the host of a node of such devices.
  Seconds host_update(std::size_t cls, double parameters) const;
  /// Probability that a token has an expert on a device with `owned` of them.
  double hit(double owned) const;
  const PlanRequest& request() const { return request_; }
  const ParamCounts& counts() const { return counts_; }
  const TrainedShares& trained() const { return trained_; }
  /// Bytes of a parameter of the part, on average, by the request's dtypes.
  Housed housed(UnitPart part) const { return trained_.mean_housed(state_bytes_of(request_), part); }
  StateBytes state_of(UnitPart part) const { return trained_.mean(state_bytes_of(request_), part); }
  /// Numbers of so many parameters of the part that are trained.
  double trained_of(UnitPart part, double parameters) const {
    return trained_.mean(part).trained * parameters;
  }
  /// Trained parameters of embedding, attention parts and head.
  double trained_attention() const;
  double moe_layers() const { return moe_layers_; }
  double attention_parameters() const { return attention_parameters_; }  ///< embedding and head included
  /// Bytes on a device of a parameter of such a part that is on so many devices, the optimizer's state
  /// divided over them or not.
  Bytes state_bytes(UnitPart part, double replicas) const;
  /// Weights of layers' parts like this live on hosts.
  bool visits(UnitPart part) const;
  Bytes usable_memory(std::size_t cls) const;
  /// The share of saved inputs or rows that is on a device at once, for `layers` layers and so many
  /// microbatches in flight: all, or where they wait on hosts those of one layer and those in slots.
  double saved_share(Recompute recompute, double layers, double in_flight) const;
  /// Whether devices first..first + count - 1 of each class are on one node. [class]
  bool on_one_node(const std::vector<i64>& first, const std::vector<i64>& count) const;

 private:
  const CostModel& cost(Recompute recompute) const {
    return recompute == Recompute::kSelect ? *selected_
           : keeps_activations(recompute)  ? *kept_
                                           : *recomputed_;
  }
  LayerCost attention_cost(std::size_t cls, double sequences, Recompute recompute) const;
  ComputeWork work(OpKind kind, std::size_t cls) const;
  void make_classes();
  void sort_classes();

  const PlanRequest& request_;
  ParamCounts counts_;
  TrainedShares trained_;
  double attention_parameters_ = 0;
  std::unique_ptr<CostModel> kept_, recomputed_, selected_;
  std::vector<DeviceClass> classes_;
  i32 moe_layer_ = -1, dense_layer_ = -1;
  double moe_layers_ = 0, moe_share_ = 1;
  mutable std::map<std::pair<std::size_t, Recompute>, std::unordered_map<double, LayerCost>> attention_;
};

/// Divides weights or keeps on hosts what the request's limits say; no activations of layers that keep all of
/// them.
void settle_homes(const PlanRequest& request, Plan& plan);

/// A plan without placement, dtypes as requested: what the cost model needs to know of a plan.
Plan blank_plan(const PlanRequest& request, Recompute recompute);

}  // namespace hetermoe
