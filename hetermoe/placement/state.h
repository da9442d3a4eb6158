#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "hetermoe/model/lora.h"
#include "hetermoe/model/unit.h"
#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// Units that live together: replicated on `devices`, reduced and updated as one, or frozen as one.
struct State {
  using Part = UnitPart;
  UnitPart part = UnitPart::kEmbed;
  i32 layer = -1;                      ///< -1 also for the head
  std::vector<ExpertId> experts = {};  ///< of part kExperts
  std::vector<DeviceId> devices = {};  ///< ascending
  bool trainable = true;               ///< false: no gradient, no reduce, no update
  /// On the host weights visit the devices, which keep nothing of the state; a host has one copy for all its
  /// devices. Sharded weights are here in parts, and the devices gather them for visits of all at once.
  Residence weights = Residence::kDevice, optimizer = Residence::kDevice;
  /// Hosts that have the weights or the optimizer, ascending; empty = the devices have both.
  std::vector<PlaceId> homes = {};
  /// Each device keeps master and moments of its part of every tensor (part_range), sums and updates that.
  bool sharded = false;
  /// For gathered weights: states of a part with the same devices have one set of gatherers. That set has
  /// slots of its own, from this one on.
  i32 gatherers = -1, first_slot = 0;

  bool visits() const { return weights == Residence::kHost; }
  /// Matrices that are only read visit. Their adapters, with gradients and optimizer, stay on the devices.
  bool adapters_stay() const { return visits() && optimizer == Residence::kDevice; }
  bool gathered() const { return weights == Residence::kSharded; }
  /// The whole weights are on a device for visits alone.
  bool transient() const { return visits() || gathered(); }
  /// The parts of the updated weights are told at the end of the step.
  bool gathered_after_update() const { return sharded && !gathered(); }
  bool has_home(PlaceId place) const { return std::binary_search(homes.begin(), homes.end(), place); }
  /// Gradients of the state are on this place, perhaps for visits alone; the place has the state.
  bool graded_on(PlaceId place) const { return trainable && !(adapters_stay() && has_home(place)); }
  /// Gradients go to the hosts after each visit.
  bool summed_on_hosts() const { return visits() && !adapters_stay(); }
  /// The places that sum the gradients of the state's copies.
  const std::vector<PlaceId>& reducers() const { return summed_on_hosts() ? homes : devices; }
  const std::vector<PlaceId>& updaters() const { return homes.empty() || adapters_stay() ? devices : homes; }
  bool updated_on(PlaceId place) const {
    return trainable && std::binary_search(updaters().begin(), updaters().end(), place);
  }
  bool reduced() const { return trainable && reducers().size() > 1; }
  bool operator==(const State&) const = default;
};

/// True if the place keeps what its gradients of a state lose on their way (Plan::error_feedback).
inline bool keeps_lost(const State& state, const Plan& plan, PlaceId place) {
  const std::vector<PlaceId>& reducers = state.reducers();
  return plan.error_feedback && state.reduced() &&
         std::binary_search(reducers.begin(), reducers.end(), place);
}

/// Properties of a step beyond the plan: fields of the job that add or drop ops.
struct StepOptions {
  bool balance = false;           ///< the load-balancing loss is on
  i64 aux_group = 0;              ///< sequences over which it is computed, 0 = the whole step
  bool backward = true;           ///< false: forward only (validation); the head computes the loss alone
  std::vector<Unit> frozen = {};  ///< units that are not trained, ascending
  /// 1: a step computes with weights that lack the update of the step before, which runs meanwhile. All
  /// trained states must live on hosts.
  i64 staleness = 0;
  /// If set, only the adapters of the trained units are trained. Null = there are no adapters.
  std::shared_ptr<const Lora> lora = nullptr;
  bool aux_per_layer = false;  ///< the load-balancing loss of each MoE layer, not of all of them together
};

}  // namespace hetermoe
