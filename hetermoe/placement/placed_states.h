#pragma once
#include <span>
#include <utility>
#include <vector>

#include "hetermoe/base/index.h"
#include "hetermoe/placement/op.h"
#include "hetermoe/placement/state.h"

namespace hetermoe {

/// The states of a plan, in the order of make_states(), and which of them are on which place.
class PlacedStates {
 public:
  PlacedStates(const Plan& plan, const ModelConfig& model, const StepOptions& options);

  const std::vector<State>& all() const { return states_; }
  std::size_t size() const { return states_.size(); }
  const State& operator[](std::size_t state) const { return states_[state]; }
  auto begin() const { return states_.begin(); }
  auto end() const { return states_.end(); }

  /// States of `part` in `layer` (kEmbed, kHead: -1), as indices [first, second).
  std::pair<i32, i32> of(UnitPart part, i32 layer) const;
  /// Indices of the states of which a device has the part, or that a host updates, ascending.
  std::span<const i32> on(PlaceId place) const;
  /// Those of `part` in `layer`.
  std::span<const i32> on(PlaceId place, UnitPart part, i32 layer) const;
  bool trains(i32 state) const { return states_[idx(state)].trainable; }
  bool trains(i32 layer, ExpertId expert) const;
  bool trains_some(UnitPart part, i32 layer) const;
  /// Its update runs while the next step computes (StepOptions::staleness).
  bool lags(i32 state) const { return lag_ && trains(state); }
  /// The summed gradients of a state are Buffer::kTaken: kGrad is on a device for backward visits alone.
  bool sums_apart(i32 state) const { return lags(state) || states_[idx(state)].gathered(); }
  /// The head's tensors are the embedding's.
  bool tied() const { return states_.back().part != UnitPart::kHead; }
  /// Some op wants the gradient of the input of `layer`.
  bool needs_input_gradient(i32 layer) const { return layer > 0 || states_.front().trainable; }
  /// The summed gradients of a state are on this place when norm runs, and it tells their squares.
  bool tells_squares(i32 state, PlaceId place) const;

 private:
  void index_places(i32 num_places);
  i32 num_ranks() const { return 2 * num_layers_ + 2; }

  i32 num_layers_, num_devices_;
  bool lag_;  // updates of all trained states
  std::vector<State> states_;
  std::vector<i32> place_begin_;  // [place, part of a layer] into of_places_, and the end
  std::vector<i32> of_places_;    // indices of states
};

/// Visits of a part that fit on a device at once. An embedding and a head are one layer each: more would
/// never be used.
i32 num_slots(const Plan& plan, UnitPart part);

/// Every state of the plan, in the order embed, layers (attention, experts), head. Experts with the same
/// owners in all groups form one state, or two when some of them are frozen. With tied embeddings the head's
/// tensors belong to the state of the embedding. frozen: ascending. adapts: of the others adapters alone are
/// trained.
std::vector<State> make_states(const Plan& plan, const ModelConfig& model, std::span<const Unit> frozen = {},
                               bool adapts = false);

}  // namespace hetermoe
