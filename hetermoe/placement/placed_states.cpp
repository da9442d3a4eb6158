#include "hetermoe/placement/placed_states.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "hetermoe/plan/backward_shares.h"

namespace hetermoe {
namespace {

/// States come in ascending rank: embed, then attention and experts of each layer, then head.
i32 rank(UnitPart part, i32 layer, i32 num_layers) {
  switch (part) {
    case UnitPart::kEmbed:
      return 0;
    case UnitPart::kAttention:
      return 1 + 2 * layer;
    case UnitPart::kExperts:
      return 2 + 2 * layer;
    case UnitPart::kHead:
      return 1 + 2 * num_layers;
  }
  HM_CHECK(false, "state of no part");
}

}  // namespace

PlacedStates::PlacedStates(const Plan& plan, const ModelConfig& model, const StepOptions& options)
    : num_layers_(static_cast<i32>(model.num_layers)),
      num_devices_(static_cast<i32>(plan.dtype.size())),
      lag_(options.staleness > 0 && options.backward),
      states_(make_states(plan, model, options.frozen, options.lora != nullptr)) {
  const i32 num_hosts = plan.hosts.empty() ? 0 : 1 + *std::max_element(plan.hosts.begin(), plan.hosts.end());
  index_places(num_devices_ + num_hosts);
}

/// States of each place, cut by rank: those of one part of one layer lie together.
void PlacedStates::index_places(i32 num_places) {
  place_begin_.assign(idx(num_places) * idx(num_ranks()) + 1, 0);
  const auto slot = [&](PlaceId place, const State& state) {
    return idx(place) * idx(num_ranks()) + idx(rank(state.part, state.layer, num_layers_));
  };
  const auto for_each_place = [](const State& state, const auto& f) {
    for (const PlaceId place : state.devices) f(place);
    for (const PlaceId place : state.homes) f(place);
  };
  for (const State& state : states_) {
    for_each_place(state, [&](PlaceId place) { ++place_begin_[slot(place, state) + 1]; });
  }
  std::partial_sum(place_begin_.begin(), place_begin_.end(), place_begin_.begin());
  of_places_.resize(idx(place_begin_.back()));
  std::vector<i32> next(place_begin_.begin(), place_begin_.end() - 1);
  for (std::size_t s = 0; s < states_.size(); ++s) {
    for_each_place(states_[s], [&](PlaceId place) {
      of_places_[idx(next[slot(place, states_[s])]++)] = static_cast<i32>(s);
    });
  }
}

bool PlacedStates::tells_squares(i32 state, PlaceId place) const {
  const bool is_host = place >= num_devices_;
  return trains(state) && states_[idx(state)].summed_on_hosts() == is_host;
}

bool PlacedStates::trains(i32 layer, ExpertId expert) const {
  const auto [begin, end] = of(UnitPart::kExperts, layer);
  for (i32 state = begin; state < end; ++state) {
    const std::vector<ExpertId>& experts = states_[idx(state)].experts;
    if (std::find(experts.begin(), experts.end(), expert) != experts.end()) return trains(state);
  }
  return false;
}

bool PlacedStates::trains_some(UnitPart part, i32 layer) const {
  const auto [first, last] = of(part, layer);
  return std::any_of(states_.begin() + first, states_.begin() + last,
                     [](const State& state) { return state.trainable; });
}

std::pair<i32, i32> PlacedStates::of(UnitPart part, i32 layer) const {
  const auto by_rank = [&](const State& state, i32 wanted) {
    return rank(state.part, state.layer, num_layers_) < wanted;
  };
  const i32 wanted = rank(part, layer, num_layers_);
  const auto first = std::lower_bound(states_.begin(), states_.end(), wanted, by_rank);
  const auto last = std::lower_bound(first, states_.end(), wanted + 1, by_rank);
  return {static_cast<i32>(first - states_.begin()), static_cast<i32>(last - states_.begin())};
}

std::span<const i32> PlacedStates::on(PlaceId place) const {
  const i32* begin = place_begin_.data() + idx(place) * idx(num_ranks());
  return {of_places_.data() + begin[0], of_places_.data() + begin[num_ranks()]};
}

std::span<const i32> PlacedStates::on(PlaceId place, UnitPart part, i32 layer) const {
  const i32* begin = place_begin_.data() + idx(place) * idx(num_ranks()) + rank(part, layer, num_layers_);
  return {of_places_.data() + begin[0], of_places_.data() + begin[1]};
}

namespace {

/// Collects devices, each once.
class DeviceSet {
 public:
  explicit DeviceSet(std::size_t num_devices) : has_(num_devices, false) {}

  void add(DeviceId device) {
    if (has_[static_cast<std::size_t>(device)]) return;
    has_[static_cast<std::size_t>(device)] = true;
    devices_.push_back(device);
  }
  void add(const Shares& shares) {
    for (const ShareRow& row : shares) {
      for (const Share& share : row) add(share.device);
    }
  }
  /// Ascending; the set is empty then.
  std::vector<DeviceId> take() {
    std::sort(devices_.begin(), devices_.end());
    for (const DeviceId device : devices_) has_[static_cast<std::size_t>(device)] = false;
    return std::exchange(devices_, {});
  }

 private:
  std::vector<bool> has_;
  std::vector<DeviceId> devices_;
};

/// Homes of a state are those of its part, alike in all groups.
void settle_home(const Plan& plan, bool adapts, State& state) {
  const Home home = home_of(plan.groups[0], state.part, state.layer);
  const std::vector<DeviceId>& listed = home.devices;
  const bool holds =
      listed.empty() || std::find(listed.begin(), listed.end(), state.devices[0]) != listed.end();
  if (holds && home.optimizer == Residence::kHost) {
    const bool adapters_stay = adapts && state.trainable && home.weights == Residence::kHost;
    state.weights = home.weights;
    state.optimizer = adapters_stay ? Residence::kDevice : home.optimizer;
    std::set<PlaceId> homes;
    for (const DeviceId device : state.devices)
      homes.insert(static_cast<PlaceId>(plan.dtype.size()) + plan.hosts[idx(device)]);
    state.homes.assign(homes.begin(), homes.end());
  }
  if (holds && home.weights == Residence::kSharded && state.devices.size() > 1) state.weights = home.weights;
  const bool asks = plan.shard_optimizer || (holds && home.optimizer == Residence::kSharded);
  state.sharded = asks && (state.homes.empty() || state.adapters_stay()) && state.reduced();
}

/// A device in several sets of gatherers has slots for each.
void form_gatherers(const Plan& plan, std::vector<State>& states) {
  std::map<std::pair<UnitPart, std::vector<DeviceId>>, std::pair<i32, i32>> sets;  // number, first slot
  std::map<std::pair<UnitPart, DeviceId>, i32> taken;                              // slots of a device
  for (State& state : states) {
    if (!state.gathered()) continue;
    const auto number = static_cast<i32>(sets.size());
    const auto [set, fresh] = sets.try_emplace({state.part, state.devices}, number, 0);
    if (fresh) {
      i32& first = set->second.second;
      for (const DeviceId device : state.devices) first = std::max(first, taken[{state.part, device}]);
      for (const DeviceId device : state.devices)
        taken[{state.part, device}] = first + num_slots(plan, state.part);
    }
    std::tie(state.gatherers, state.first_slot) = set->second;
  }
}

bool is_frozen(std::span<const Unit> frozen, const Unit& unit) {
  return std::binary_search(frozen.begin(), frozen.end(), unit);
}

/// States of the experts of layer `l`: those with the same owners in all groups are one, unless some of them
/// are frozen, which follow the others.
void add_expert_states(const Plan& plan, i32 l, i64 num_experts, std::span<const Unit> frozen, DeviceSet& set,
                       std::vector<State>& states) {
  const auto together = [](const State& a, const State& b) {
    return a.devices == b.devices && a.trainable == b.trainable;
  };
  std::vector<State> found;
  for (ExpertId e = 0; e < static_cast<ExpertId>(num_experts); ++e) {
    for (const Group& group : plan.groups) {
      const LayerPlacement& layer = group.layers[static_cast<std::size_t>(l)];
      for (const ExpertOwner& owner : layer.experts[static_cast<std::size_t>(e)]) set.add(owner.device);
    }
    State state{.part = UnitPart::kExperts, .layer = l, .devices = set.take()};
    state.trainable = !is_frozen(frozen, {.layer = l, .part = UnitPart::kExperts, .expert = e});
    if (found.empty() || !together(found.back(), state)) found.push_back(std::move(state));
    found.back().experts.push_back(e);
  }
  std::stable_sort(found.begin(), found.end(), [](const State& a, const State& b) {
    return std::tie(a.devices, b.trainable) < std::tie(b.devices, a.trainable);
  });
  for (State& state : found) {
    State& last = states.back();
    if (last.part == UnitPart::kExperts && last.layer == l && together(last, state)) {
      last.experts.insert(last.experts.end(), state.experts.begin(), state.experts.end());
    } else {
      states.push_back(std::move(state));
    }
  }
}

}  // namespace

i32 num_slots(const Plan& plan, UnitPart part) {
  switch (part) {
    case UnitPart::kAttention:
      return plan.slots.attention;
    case UnitPart::kExperts:
      return plan.slots.experts;
    case UnitPart::kEmbed:
    case UnitPart::kHead:
      break;
  }
  return 1;
}

std::vector<State> make_states(const Plan& plan, const ModelConfig& model, std::span<const Unit> frozen,
                               bool adapts) {
  std::vector<State> states;
  DeviceSet set(plan.dtype.size());
  const auto add = [&](UnitPart part, i32 layer, const Unit& unit) {
    states.push_back(
        {.part = part, .layer = layer, .devices = set.take(), .trainable = !is_frozen(frozen, unit)});
  };
  for (const Group& group : plan.groups) {
    set.add(group.embed);
    set.add(backward_embed_shares(group));
    if (model.tie_embeddings) set.add(group.head);
  }
  add(UnitPart::kEmbed, -1, {});
  const auto num_layers = static_cast<i32>(model.num_layers);
  for (i32 l = 0; l < num_layers; ++l) {
    for (const Group& group : plan.groups) {
      set.add(group.layers[idx(l)].attention);
      set.add(group.layers[idx(l)].attention_backward);
    }
    add(UnitPart::kAttention, l, {.layer = l, .part = UnitPart::kAttention});
    if (model.is_moe(l)) add_expert_states(plan, l, model.num_experts, frozen, set, states);
  }
  if (!model.tie_embeddings) {
    for (const Group& group : plan.groups) set.add(group.head);
    add(UnitPart::kHead, -1, {.layer = num_layers, .part = UnitPart::kHead});
  }
  for (State& state : states) settle_home(plan, adapts, state);
  form_gatherers(plan, states);
  return states;
}

}  // namespace hetermoe
