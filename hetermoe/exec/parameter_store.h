#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hetermoe/model/unit.h"
#include "hetermoe/nn/optimizer.h"
#include "hetermoe/nn/params.h"
#include "hetermoe/schedule/schedule.h"

// What a device keeps of the model from step to step. Units are the names, storages are how they lie in
// memory: the units of one part of one layer share a shelf, on which states are contiguous, so that ops work
// on whole states and slabs while everything else (checkpoints, comparisons, freezing, moves) asks by unit.
namespace hetermoe {

/// One tensor under its Hugging Face name, with all that training keeps of it. All are views of storages.
struct LogicalTensor {
  std::string name;
  at::Tensor value;
  bool buffer = false;  ///< no parameter: it has a value only (e_score_correction_bias)
  // Undefined for a buffer and in a frozen unit:
  at::Tensor grad;
  at::Tensor exp_avg, exp_avg_sq;
  at::Tensor master;         ///< fp32 copy of a bf16 or fp16 value, else undefined
  bool first_owner = false;  ///< this device is the home of the unit
};

/// A unit as one device holds it.
struct UnitTensors {
  Unit unit;
  bool trainable = true;
  DeviceId home = 0;             ///< the device that speaks for all copies: the first of them
  std::vector<DeviceId> copies;  ///< devices that hold the unit, ascending
  i64 updates = 0;               ///< optimizer updates done
  std::vector<LogicalTensor> tensors;
};

/// The tensors of one Schedule::states entry on one device.
struct StateTensors {
  State state;
  std::vector<at::Tensor> values, grads;  ///< views of the shelf's storages; no grads when frozen
  AdamwState moments;                     ///< empty when frozen
};

/// dtype and place of the tensors of a device.
struct StoreOptions {
  at::TensorOptions values;
  std::optional<at::ScalarType> grad;  ///< none = that of the values
};

class ParameterStore {
 public:
  /// Empty.
  ParameterStore(DeviceId device, const ModelConfig& model, const StoreOptions& options);
  /// With storages, all zero, for all that `states` place on this device.
  ParameterStore(DeviceId device, const ModelConfig& model, const StoreOptions& options,
                 std::span<const State> states);

  // ---- By unit ----
  /// What is here, state by state.
  std::vector<Unit> units() const;
  bool holds(const Unit& unit) const;
  /// Throws when the unit is not here.
  UnitTensors tensors(const Unit& unit) const;
  /// The tensors of all units, in the order of units().
  std::vector<LogicalTensor> tensors() const;
  /// Bytes of all storages.
  i64 bytes() const;

  // ---- As ops use them ----
  bool holds(i32 state) const { return by_state_.count(state) > 0; }
  StateTensors& of_state(i32 state) { return *by_state_.at(state); }
  StateGroup& group(UnitPart part, i32 layer) { return *shelves_.at({layer, part}).group; }
  ExpertSlab& slab(i32 layer) { return *shelves_.at({layer, UnitPart::kExperts}).slab; }
  bool has_shelf(UnitPart part, i32 layer) const { return shelves_.count({layer, part}) > 0; }
  void zero_grads();

  // ---- Values ----
  void initialize(u64 seed);
  /// Optimizer updates done so far; the same for all states.
  void set_updates(i64 count);

  // ---- Moves between steps, one part of one layer after another: prepare, fill, adopt; bind when all are
  // done. Nothing else may use the store meanwhile. ----
  /// Makes storages for what the new `states` place here of `part` of `layer`, beside those in use. What is
  /// here already is copied over (value, master, moments); the rest is zero, for the caller to fill.
  void prepare(std::span<const State> states, UnitPart part, i32 layer);
  /// As tensors(), of what prepare() made.
  UnitTensors prepared(const Unit& unit) const;
  /// What prepare() made takes the place of what is in use, which is dropped.
  void adopt(UnitPart part, i32 layer);
  /// Numbers the states as the new schedule does. Every state that it places here must be on a shelf, and no
  /// other.
  void bind(std::span<const State> states);

 private:
  /// Storages of one part of one layer.
  struct Shelf {
    std::optional<StateGroup> group;  // embedding, attention part, head
    std::optional<ExpertSlab> slab;   // experts
    std::vector<StateTensors> states;
  };
  using ShelfKey = std::pair<i32, UnitPart>;  // layer as in Unit, part: the order of the states

  std::optional<Shelf> make_shelf(std::span<const State> states, UnitPart part, i32 layer) const;
  void add_group(Shelf& shelf, const State& state) const;
  void add_slab(Shelf& shelf, std::span<const State> states) const;
  UnitTensors tensors_of(const Shelf& shelf, const StateTensors& state, const Unit& unit) const;
  std::vector<NamedTensor> named(const Shelf& shelf, const StateTensors& state,
                                 const std::vector<at::Tensor>& storages, const Unit& unit) const;

  DeviceId device_;
  const ModelConfig& model_;
  StoreOptions options_;
  std::map<ShelfKey, Shelf> shelves_, prepared_;
  std::map<i32, StateTensors*> by_state_;  // by index of Schedule::states
};

}  // namespace hetermoe
