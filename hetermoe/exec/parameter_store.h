#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hetermoe/exec/parts.h"
#include "hetermoe/model/unit.h"
#include "hetermoe/nn/optimizer.h"
#include "hetermoe/nn/params.h"
#include "hetermoe/schedule/schedule.h"

// The part of the model that a device keeps from step to step. Units are the names, storages are the layout
// in memory. The units of one part of one layer share a shelf, on which states are contiguous. So ops work on
// whole states and slabs, and all other code (checkpoints, comparisons, freezing, moves) asks by unit.
namespace hetermoe {

/// One tensor under its Hugging Face name, with all that training keeps of it. All are views of storages.
struct LogicalTensor {
  std::string name;
  /// For gathered weights the part that is kept here; so are the others.
  at::Tensor value;
  std::vector<i64> shape = {};  ///< of the whole value
  bool buffer = false;          ///< no parameter: it has a value only (e_score_correction_bias)
  /// Undefined for a buffer, in a frozen unit, and where another place updates.
  at::Tensor grad = {}, exp_avg = {}, exp_avg_sq = {};
  at::Tensor master = {};     ///< fp32 copy of a bf16 or fp16 value that is trained, else undefined
  at::Tensor published = {};  ///< of a state that is updated a step late: the value that devices fetch
  at::Tensor lost = {};       ///< see StateTensors, whole
  /// In a sharded state the four above have one dimension and begin at this element of the whole value.
  i64 first = 0;
  bool sharded = false;
  bool gathered = false;     ///< the value does, too
  bool first_owner = false;  ///< this device is the home of the unit
  double lora_scale = 0;     ///< of an adapter: the factor on B A
};

/// Copies the part of a gradient, moment, master or value that a device keeps of a sharded tensor to its
/// place in the whole.
void place_part(const LogicalTensor& tensor, const at::Tensor& part, const at::Tensor& whole);
/// The part of a tensor's whole gradient, moment or master that a device keeps: a view, perhaps of all.
at::Tensor kept_of(const LogicalTensor& tensor, const at::Tensor& whole);
/// Likewise of its value.
at::Tensor kept_value_of(const LogicalTensor& tensor, const at::Tensor& whole);
/// The whole, on the CPU, of which `pieces` of one tensor keep parts as `kept`; undefined when some are
/// missing.
at::Tensor joined(const std::vector<LogicalTensor>& pieces, at::Tensor LogicalTensor::*kept);

/// A unit as one device holds it.
struct UnitTensors {
  Unit unit = {};
  bool trainable = true;
  DeviceId home = 0;  ///< the place that speaks for all copies of what is here: the first of them
  std::vector<DeviceId> copies = {};  ///< devices that hold the unit, ascending
  i64 updates = 0;                    ///< optimizer updates done
  std::vector<LogicalTensor> tensors = {};
};

/// The tensors of one state on one device.
struct StateTensors {
  State state = {};
  std::vector<at::Tensor> values = {}, grads = {};  ///< views of the shelf's storages; no grads when frozen
  std::vector<at::Tensor> kept = {};                ///< of gathered weights: this device's part of each value
  /// On a host that updates a step late: the values that devices fetch, and the summed gradients from the end
  /// of a step to its update. For gathered weights on a device: the sums of its parts. Else empty.
  std::vector<at::Tensor> published = {}, taken = {};
  /// For a state whose adapters stay here (State::adapters_stay): the tensors that visit in place of
  /// `values`.
  std::vector<at::Tensor> matrices = {};
  AdamwState moments = {};          ///< of own_values(); empty when frozen, and where another place updates
  std::size_t part = 0, parts = 1;  ///< of a sharded state: which one is own
  /// What the gradients that this place sent lost on their way so far, which is added before they are sent
  /// again (keeps_lost). Else empty.
  std::vector<at::Tensor> lost = {};

  /// The gradients of the whole step, where norm and update find them.
  const std::vector<at::Tensor>& summed() const { return taken.empty() ? grads : taken; }
  /// The tensors of a visiting state that come from the host.
  std::vector<at::Tensor>& visitors() { return matrices.empty() ? values : matrices; }
  const std::vector<at::Tensor>& visitors() const { return matrices.empty() ? values : matrices; }
  void publish();
  /// Leaves zeros in `grads`.
  void take_grads();

  /// The values that this device updates: views of its part of each, or of all.
  std::vector<at::Tensor> own_values() const { return kept.empty() ? own(values) : kept; }
  /// Likewise of the gradients of the whole step.
  std::vector<at::Tensor> own_grads() const { return kept.empty() ? own(summed()) : taken; }

 private:
  std::vector<at::Tensor> own(const std::vector<at::Tensor>& tensors) const {
    return parts == 1 ? tensors : parts_of(tensors, part, parts);
  }
};

/// Not to be used by several threads while it is rebuilt; else as its tensors are.
class ParameterStore {
 public:
  /// Storages, all zero, for all that `states` place on the device, or on the host with this number.
  /// options.trainable is of no account: the states say it. Keeps a reference to the model.
  ParameterStore(DeviceId device, const ModelConfig& model, const StorageOptions& options,
                 std::span<const State> states);
  /// Room for what a host needs that updates a step late (StateTensors::published, taken).
  void let_updates_lag();
  /// Room for what is lost of gradients, zeros at first, and again where a state gets other holders. The
  /// states are those of the schedule.
  void keep_lost(const Plan& plan, std::span<const State> states);

  // ---- By unit ----
  /// The units that are here, state by state.
  std::vector<Unit> units() const;
  bool holds(const Unit& unit) const { return find(shelves_, unit).second != nullptr; }
  UnitTensors tensors(const Unit& unit) const;
  /// The tensors of all units, in the order of units().
  std::vector<LogicalTensor> tensors() const;
  /// Bytes of all storages.
  i64 bytes() const;
  /// On a host: the tensors that are copied to devices and from them.
  std::vector<at::Tensor> copied_with_devices() const;

  // ---- As ops use them ----
  bool holds(i32 state) const { return by_state_.count(state) > 0; }
  StateTensors& of_state(i32 state) { return *by_state_.at(state); }
  /// The state group of the embedding (layer -1), an attention part, or the head (layer num_layers).
  StateGroup& group(UnitPart part, i32 layer) { return *shelves_.at({layer, part}).group; }
  ExpertSlab& slab(i32 layer) { return *shelves_.at({layer, UnitPart::kExperts}).slab; }
  bool has(UnitPart part, i32 layer) const { return shelves_.count({layer, part}) > 0; }
  void zero_grads();

  // ---- Visits (State::transient, on a device): of weights from a host no unit is here but for its adapters,
  // of gathered weights a part of each. In the order of the schedule; different states at the same time. ----
  /// Copies the values of a state, and its buffer after them, to where ops find them.
  void admit(i32 state, const std::vector<at::Tensor>& values);
  /// Makes room there, of any contents.
  void make_room(i32 state);
  /// Drops the values of a state after their last use. The result holds their memory.
  std::vector<at::Tensor> dismiss(i32 state);
  /// Makes zeros to add to, unless they are here already; does nothing for states that do not visit. The
  /// layer is that of Unit.
  void open_grads(UnitPart part, i32 layer);
  /// As dismiss(), of the gradients.
  std::vector<at::Tensor> take_grads(i32 state);
  bool has_visitors() const;
  /// That of the state's unit, undefined where it has none.
  at::Tensor buffer_of(i32 state);

  // ---- Values ----
  void initialize(u64 seed);
  /// Optimizer updates done so far; the same for all states that are trained.
  i64 updates() const;
  void set_updates(i64 count);

  // ---- Moves between steps ----
  // For one part of one layer after another: prepare(), fill the new units, adopt(). When all are done,
  // bind(). The layer is that of Unit: -1 the embedding, num_layers the head.
  /// Makes storages for the units that the new `states` place here, beside those in use, unless they lie so
  /// already. The units that are here are copied over; those in new_units() are zero, for the caller to fill.
  void prepare(std::span<const State> states, UnitPart part, i32 layer);
  /// Units for which prepare() made room and that are not here yet, over all that is prepared.
  std::vector<Unit> new_units() const;
  /// As tensors(), of what prepare() made or left as it is.
  UnitTensors prepared(const Unit& unit) const;
  /// The storages of prepare() replace those in use, which are dropped.
  void adopt(UnitPart part, i32 layer);
  /// Numbers the states as the new schedule does. The units that they place here must be here, and no others.
  void bind(std::span<const State> states);

 private:
  /// Storages of one part of one layer.
  struct Shelf {
    std::optional<StateGroup> group;  // embedding, attention part, head
    std::optional<ExpertSlab> slab;   // experts
    std::vector<StateTensors> states;
    bool visits = false;    // weights and gradients come and go
    bool gathered = false;  // of these a part stays

    /// All of them, a part of each, or their adapters.
    bool keeps_units() const { return keeps_weights() || adapted(); }
    bool keeps_weights() const { return !visits || gathered; }
    /// Their values are those of states, in place of the matrices.
    const std::vector<Adapter>& adapters() const { return group ? group->adapters : slab->adapters; }
    bool adapted() const { return (group || slab) && !adapters().empty(); }
    std::vector<at::Tensor> matrices() const {
      return group ? group->values : std::vector<at::Tensor>{slab->gate_up, slab->down};
    }
  };
  using Key = std::pair<i32, UnitPart>;  // layer as in Unit
  using Shelves = std::map<Key, Shelf>;

  Key key_of(const State& state) const;
  static std::pair<i64, i64> slots_of(const Shelf& shelf, const StateTensors& state);
  bool visits_here(const State& state) const;
  bool updates_here(const State& state) const;
  bool lies_as(Key key, const std::vector<State>& states) const;
  Shelf make_shelf(const std::vector<State>& states) const;
  AdamwState moments_of(const StateTensors& state) const;
  std::vector<at::Tensor> zeros_like_parts(const StateTensors& state,
                                           const std::vector<at::Tensor>& tensors) const;
  void add_group(Shelf& shelf, const State& state) const;
  void add_slab(Shelf& shelf, const std::vector<State>& states) const;
  std::vector<Unit> units_of(const StateTensors& state) const;
  static std::pair<const Shelf*, const StateTensors*> find(const Shelves& shelves, const Unit& unit);
  std::vector<NamedTensor> named(const Shelf& shelf, const State& state,
                                 const std::vector<at::Tensor>& storages, const Unit& unit) const;
  UnitTensors tensors_in(const Shelves& shelves, const Unit& unit) const;
  void add_matrices(const Shelf& shelf, UnitTensors& out) const;
  void make_room_for(std::vector<Adapter>& adapters) const;
  DeviceId speaker_of(const State& state) const;

  DeviceId device_;
  const ModelConfig& model_;
  StorageOptions options_;
  Shelves shelves_, prepared_;             // an empty shelf is prepared where everything leaves
  std::map<i32, StateTensors*> by_state_;  // by index of Schedule::states
};

/// A copy in memory of the CPU.
at::Tensor host_copy(const at::Tensor& tensor);

}  // namespace hetermoe
