#include "hetermoe/placement/placement.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "hetermoe/base/index.h"
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

const Shares& shares_of_stage(const Group& group, i32 layer, Phase phase) {
  const bool forward = phase == Phase::kForward;
  if (layer < 0) return forward ? group.embed : backward_embed_shares(group);
  const auto l = static_cast<std::size_t>(layer);
  if (l == group.layers.size()) return group.head;
  return forward ? group.layers[l].attention : backward_shares(group.layers[l]);
}

}  // namespace

Placement::Placement(const Plan& plan, const ModelConfig& model, const StepOptions& options)
    : plan_(plan),
      options_(options),
      num_layers_(static_cast<i32>(model.num_layers)),
      num_devices_(plan.dtype.size()),
      num_hosts_(plan.hosts.empty() ? 0 : 1 + *std::max_element(plan.hosts.begin(), plan.hosts.end())),
      latents_for_(most_for_latents(model)),
      may_move_(static_cast<std::size_t>(model.num_layers) + 1, false),
      states_(make_states(plan, model, options.frozen, options.lora != nullptr)) {
  for (i64 l = 0; l < model.num_layers; ++l) moe_.push_back(model.is_moe(l));
  for (NodeId node = 0; node < num_hosts_; ++node) user_of_host_.push_back(user_of_host(plan, node));
  for (DeviceId d = 0; d < static_cast<DeviceId>(plan.hosts.size()); ++d) {
    const bool first = d == 0 || plan.hosts[idx(d)] != plan.hosts[idx(d - 1)];
    number_on_host_.push_back(first ? 0 : number_on_host_.back() + 1);
    devices_of_host_ = std::max(devices_of_host_, number_on_host_.back() + 1);
  }
  options_.balance = options.balance && last_moe_layer() >= 0;
  for (const Group& group : plan.groups) {
    add_owners(group);
    add_scores_weights(group, model.attention_sinks);
    stages_.push_back(make_stages(group, Phase::kForward));
    backward_stages_.push_back(has_backward_shares(group) ? make_stages(group, Phase::kBackward) : Stages());
    balance_set_of_.emplace_back(group.microbatches.size(), -1);
  }
  if (options_.balance) add_balance_sets(options.aux_group > 0 ? options.aux_group : total_sequences(plan));
  index_states();
}

void Placement::add_scores_weights(const Group& group, bool sinks) {
  scores_have_weights_.emplace_back();
  for (const LayerPlacement& layer : group.layers) {
    const bool has = std::any_of(layer.attention.begin(), layer.attention.end(), [&](const ShareRow& row) {
      const std::vector<Team> teams = hetermoe::teams_of(row, plan_.seq_len, latents_for_);
      return std::any_of(teams.begin(), teams.end(), [&](const Team& team) { return sinks || team.latents; });
    });
    scores_have_weights_.back().push_back(has);
  }
}

void Placement::add_owners(const Group& group) {
  owners_.emplace_back();
  owner_bits_.emplace_back();
  for (const LayerPlacement& layer : group.layers) {
    std::vector<bool> bits(num_devices_, false);
    std::vector<DeviceId> owners;
    for (const ExpertOwners& of_expert : layer.experts) {
      for (const ExpertOwner& owner : of_expert) {
        if (bits[static_cast<std::size_t>(owner.device)]) continue;
        bits[static_cast<std::size_t>(owner.device)] = true;
        owners.push_back(owner.device);
      }
    }
    std::sort(owners.begin(), owners.end());
    owners_.back().push_back(std::move(owners));
    owner_bits_.back().push_back(std::move(bits));
  }
}

Placement::Stages Placement::make_stages(const Group& group, Phase phase) {
  const auto g = static_cast<i32>(&group - plan_.groups.data());
  Stages stages;
  for (i32 layer = -1; layer <= num_layers_; ++layer) {
    const Shares& shares = shares_of_stage(group, layer, phase);
    const Shares* before = layer < 0 ? nullptr : &shares_of_stage(group, layer - 1, phase);
    const bool one_row = shares.size() == 1 && (!before || before->size() == 1);
    std::vector<Stage> rows;
    for (std::size_t m = 0; m < (one_row ? 1 : group.microbatches.size()); ++m) {
      rows.push_back(make_stage(g, before, shares, layer, static_cast<i32>(m)));
      if (rows.back().moves) may_move_[static_cast<std::size_t>(layer)] = true;
    }
    stages.push_back(std::move(rows));
  }
  return stages;
}

Placement::Stage Placement::make_stage(i32 group, const Shares* before, const Shares& shares, i32 layer,
                                       i32 microbatch) const {
  Stage stage;
  const ShareRow& row = share_row(shares, microbatch);
  stage.listed.assign(num_devices_, false);
  for (const Share& share : row) stage.listed[static_cast<std::size_t>(share.device)] = true;
  stage.moves = before && row != share_row(*before, microbatch);
  if (stage.moves && plan_.combine_to == CombineTo::kNext && layer > 0 && is_moe(layer - 1))
    stage.in_exchange_before = with_owners(group, layer - 1, row);
  if (layer < 0 || layer >= num_layers_ || !is_moe(layer)) return stage;
  if (at_sources(group, layer)) {
    for (const Share& share : row) stage.in_exchange.push_back(share.device);
    stage.local_experts = true;
    return stage;
  }
  stage.in_exchange = with_owners(group, layer, row);
  stage.local_experts = stage.in_exchange.size() < owners(group, layer).size() + row.size();
  return stage;
}

/// The devices of a row and the owners of a layer, ascending.
std::vector<DeviceId> Placement::with_owners(i32 group, i32 layer, const ShareRow& row) const {
  std::vector<DeviceId> devices = owners(group, layer);
  for (const Share& share : row)
    if (!is_owner(group, layer, share.device)) devices.push_back(share.device);
  std::sort(devices.begin(), devices.end());
  return devices;
}

/// A set of microbatches closes where a load-balancing group ends exactly at the end of a microbatch.
void Placement::add_balance_sets(i64 aux_group) {
  i64 sequences = 0;
  for (i32 g = 0; g < num_groups(); ++g) {
    for (i32 m = 0; m < num_microbatches(g); ++m) {
      balance_members_.push_back({g, m});
      sequences += plan_.groups[static_cast<std::size_t>(g)].microbatches[static_cast<std::size_t>(m)];
      if (sequences % aux_group == 0) balance_begin_.push_back(static_cast<i64>(balance_members_.size()));
    }
  }
  for (i32 set = 0; set < num_balance_sets(); ++set) {
    for (const MicrobatchRef& member : balance_set(set)) {
      balance_set_of_[static_cast<std::size_t>(member.group)][static_cast<std::size_t>(member.microbatch)] =
          set;
    }
  }
}

i64 Placement::balance_part(i32 layer) const {
  if (!options_.aux_per_layer) return 0;
  i64 part = 0;
  for (i32 l = 0; l < layer; ++l) part += is_moe(l) ? 1 : 0;
  return part;
}

i64 Placement::balance_parts() const { return options_.aux_per_layer ? balance_part(num_layers()) : 1; }

std::span<const MicrobatchRef> Placement::balance_set(i32 set) const {
  const auto s = static_cast<std::size_t>(set);
  return {balance_members_.data() + balance_begin_[s], balance_members_.data() + balance_begin_[s + 1]};
}

/// States of each place, cut by rank: those of one part of one layer lie together.
void Placement::index_states() {
  device_state_begin_.assign(idx(num_places()) * idx(num_ranks()) + 1, 0);
  const auto slot = [&](PlaceId place, const State& state) {
    return idx(place) * idx(num_ranks()) + idx(rank(state.part, state.layer, num_layers_));
  };
  const auto for_each_place = [](const State& state, const auto& f) {
    for (const PlaceId place : state.devices) f(place);
    for (const PlaceId place : state.homes) f(place);
  };
  for (const State& state : states_) {
    for_each_place(state, [&](PlaceId place) { ++device_state_begin_[slot(place, state) + 1]; });
  }
  std::partial_sum(device_state_begin_.begin(), device_state_begin_.end(), device_state_begin_.begin());
  device_states_.resize(idx(device_state_begin_.back()));
  std::vector<i32> next(device_state_begin_.begin(), device_state_begin_.end() - 1);
  for (std::size_t s = 0; s < states_.size(); ++s) {
    for_each_place(states_[s], [&](PlaceId place) {
      device_states_[idx(next[slot(place, states_[s])]++)] = static_cast<i32>(s);
    });
  }
}

std::pair<DeviceId, i32> Placement::of_saved_piece(PlaceId host, i32 piece) const {
  const auto first = std::find(plan_.hosts.begin(), plan_.hosts.end(), host - num_devices());
  return {static_cast<DeviceId>(first - plan_.hosts.begin()) + piece / (plan_.chunks + 1),
          piece % (plan_.chunks + 1)};
}

bool Placement::tells_squares(i32 state, PlaceId place) const {
  const bool is_host = place >= num_devices();
  const State& of = states_[idx(state)];
  return trains(state) && of.summed_on_hosts() == is_host;
}

bool Placement::leaves_weights(UnitPart part, i32 layer) const {
  return plan_.weight_gradients == WeightGradients::kAfter && options_.backward && trains_some(part, layer);
}

bool Placement::trains(i32 layer, ExpertId expert) const {
  const auto [begin, end] = states_of(UnitPart::kExperts, layer);
  for (i32 state = begin; state < end; ++state) {
    const std::vector<ExpertId>& experts = states_[idx(state)].experts;
    if (std::find(experts.begin(), experts.end(), expert) != experts.end()) return trains(state);
  }
  return false;
}

bool Placement::trains_some(UnitPart part, i32 layer) const {
  const auto [first, last] = states_of(part, layer);
  return std::any_of(states_.begin() + first, states_.begin() + last,
                     [](const State& state) { return state.trainable; });
}

i32 Placement::last_moe_layer() const {
  i32 last = num_layers_ - 1;
  while (last >= 0 && !is_moe(last)) --last;
  return last;
}

DeviceId Placement::maker_of(i32 group, i32 layer, i32 microbatch, DeviceId device) const {
  if (!roams(group, layer, microbatch)) return device;
  const i64 own = ranges(group, layer, microbatch, Phase::kBackward).index_of(device);
  return ranges(group, layer, microbatch).device(idx(own));
}

TokenRanges Placement::ranges(i32 group, i32 layer, i32 microbatch, Phase phase) const {
  return {share_row(shares_of_stage(plan_.groups[static_cast<std::size_t>(group)], layer, phase), microbatch),
          plan_.seq_len};
}

TokenRanges Placement::ranges_with(i32 group, i32 layer, i32 microbatch, DeviceId device) const {
  const bool forward = has_range(group, layer, microbatch, device);
  return ranges(group, layer, microbatch, forward ? Phase::kForward : Phase::kBackward);
}

Placement::Move Placement::move_of(const Op& move) const {
  const auto at = [&](i32 layer, Phase phase) { return ranges(move.group, layer, move.microbatch, phase); };
  if (move.phase == Phase::kRecompute)
    return {at(move.layer, Phase::kForward), at(move.layer, Phase::kBackward)};
  const TokenRanges before = at(move.layer - 1, move.phase), after = at(move.layer, move.phase);
  return move.phase == Phase::kForward ? Move{before, after} : Move{after, before};
}

bool Placement::routes(const MicrobatchRef& member, DeviceId device, Phase phase) const {
  for (i32 l = 0; l < num_layers_; ++l) {
    if (is_moe(l) && has_range(member.group, l, member.microbatch, device, phase)) return true;
  }
  return false;
}

std::pair<i32, i32> Placement::states_of(UnitPart part, i32 layer) const {
  const auto by_rank = [&](const State& state, i32 wanted) {
    return rank(state.part, state.layer, num_layers_) < wanted;
  };
  const i32 wanted = rank(part, layer, num_layers_);
  const auto first = std::lower_bound(states_.begin(), states_.end(), wanted, by_rank);
  const auto last = std::lower_bound(first, states_.end(), wanted + 1, by_rank);
  return {static_cast<i32>(first - states_.begin()), static_cast<i32>(last - states_.begin())};
}

std::span<const i32> Placement::states_on(PlaceId place) const {
  const i32* begin = device_state_begin_.data() + idx(place) * idx(num_ranks());
  return {device_states_.data() + begin[0], device_states_.data() + begin[num_ranks()]};
}

std::span<const i32> Placement::states_on(PlaceId place, UnitPart part, i32 layer) const {
  const i32* begin =
      device_state_begin_.data() + idx(place) * idx(num_ranks()) + rank(part, layer, num_layers_);
  return {device_states_.data() + begin[0], device_states_.data() + begin[1]};
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
