#include "hetermoe/schedule/placement.h"

#include <algorithm>
#include <map>
#include <set>

namespace hetermoe {
namespace {

/// States come in ascending rank: embed, then attention and experts of each layer, then head.
i32 rank(State::Part part, i32 layer, i32 num_layers) {
  switch (part) {
    case State::Part::kEmbed:
      return 0;
    case State::Part::kAttention:
      return 1 + 2 * layer;
    case State::Part::kExperts:
      return 2 + 2 * layer;
    default:
      return 1 + 2 * num_layers;
  }
}

const Shares& shares_of_stage(const Group& group, i32 layer) {
  if (layer < 0) return group.embed;
  const auto l = static_cast<std::size_t>(layer);
  return l < group.layers.size() ? group.layers[l].attention : group.head;
}

}  // namespace

Placement::Placement(const Plan& plan, const ModelConfig& model, const StepOptions& options)
    : plan_(plan),
      options_(options),
      num_layers_(static_cast<i32>(model.num_layers)),
      num_devices_(plan.dtype.size()),
      may_move_(static_cast<std::size_t>(model.num_layers) + 1, false),
      states_(make_states(plan, model)) {
  for (i64 l = 0; l < model.num_layers; ++l) moe_.push_back(model.is_moe(l));
  options_.balance = options.balance && last_moe_layer() >= 0;
  for (const Group& group : plan.groups) {
    add_owners(group);
    add_stages(group);
    balance_set_of_.emplace_back(group.microbatches.size(), -1);
  }
  if (options_.balance) add_balance_sets(options.aux_group > 0 ? options.aux_group : total_sequences(plan));
  index_states();
}

void Placement::add_owners(const Group& group) {
  owners_.emplace_back();
  owner_bits_.emplace_back();
  for (const LayerPlacement& layer : group.layers) {
    std::vector<bool> bits(num_devices_, false);
    for (const std::vector<ExpertOwner>& of_expert : layer.experts) {
      for (const ExpertOwner& owner : of_expert) bits[static_cast<std::size_t>(owner.device)] = true;
    }
    std::vector<DeviceId> owners;
    for (std::size_t d = 0; d < bits.size(); ++d) {
      if (bits[d]) owners.push_back(static_cast<DeviceId>(d));
    }
    owners_.back().push_back(std::move(owners));
    owner_bits_.back().push_back(std::move(bits));
  }
}

void Placement::add_stages(const Group& group) {
  const i32 g = static_cast<i32>(stages_.size());
  stages_.emplace_back();
  for (i32 layer = -1; layer <= num_layers_; ++layer) {
    const Shares& shares = shares_of_stage(group, layer);
    const Shares* before = layer < 0 ? nullptr : &shares_of_stage(group, layer - 1);
    const bool one_row = shares.size() == 1 && (!before || before->size() == 1);
    std::vector<Stage> rows;
    for (std::size_t m = 0; m < (one_row ? 1 : group.microbatches.size()); ++m) {
      rows.push_back(make_stage(g, before, shares, layer, static_cast<i32>(m)));
      if (rows.back().moves) may_move_[static_cast<std::size_t>(layer)] = true;
    }
    stages_.back().push_back(std::move(rows));
  }
}

Placement::Stage Placement::make_stage(i32 group, const Shares* before, const Shares& shares, i32 layer,
                                       i32 microbatch) const {
  Stage stage;
  const ShareRow& row = share_row(shares, microbatch);
  stage.listed.assign(num_devices_, false);
  for (const Share& share : row) stage.listed[static_cast<std::size_t>(share.device)] = true;
  stage.moves = before && row != share_row(*before, microbatch);
  if (layer < 0 || layer >= num_layers_ || !is_moe(layer)) return stage;
  const std::vector<bool>& owns =
      owner_bits_[static_cast<std::size_t>(group)][static_cast<std::size_t>(layer)];
  for (std::size_t d = 0; d < num_devices_; ++d) {
    stage.local_experts = stage.local_experts || (stage.listed[d] && owns[d]);
    if (stage.listed[d] || owns[d]) stage.in_exchange.push_back(static_cast<DeviceId>(d));
  }
  return stage;
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

std::span<const MicrobatchRef> Placement::balance_set(i32 set) const {
  const auto s = static_cast<std::size_t>(set);
  return {balance_members_.data() + balance_begin_[s], balance_members_.data() + balance_begin_[s + 1]};
}

void Placement::index_states() {
  device_state_begin_.assign(num_devices_ + 1, 0);
  for (const State& state : states_) {
    for (const DeviceId device : state.devices) ++device_state_begin_[static_cast<std::size_t>(device) + 1];
  }
  for (std::size_t d = 0; d < num_devices_; ++d) device_state_begin_[d + 1] += device_state_begin_[d];
  device_states_.resize(static_cast<std::size_t>(device_state_begin_.back()));
  std::vector<i32> next(device_state_begin_.begin(), device_state_begin_.end() - 1);
  for (std::size_t s = 0; s < states_.size(); ++s) {
    for (const DeviceId device : states_[s].devices) {
      device_states_[static_cast<std::size_t>(next[static_cast<std::size_t>(device)]++)] =
          static_cast<i32>(s);
    }
  }
}

i32 Placement::last_moe_layer() const {
  i32 last = num_layers_ - 1;
  while (last >= 0 && !is_moe(last)) --last;
  return last;
}

const ShareRow& Placement::shares(i32 group, i32 layer, i32 microbatch) const {
  return share_row(shares_of_stage(plan_.groups[static_cast<std::size_t>(group)], layer), microbatch);
}

std::pair<i32, i32> Placement::states_of(State::Part part, i32 layer) const {
  const auto by_rank = [&](const State& state, i32 wanted) {
    return rank(state.part, state.layer, num_layers_) < wanted;
  };
  const i32 wanted = rank(part, layer, num_layers_);
  const auto first = std::lower_bound(states_.begin(), states_.end(), wanted, by_rank);
  const auto last = std::lower_bound(first, states_.end(), wanted + 1, by_rank);
  return {static_cast<i32>(first - states_.begin()), static_cast<i32>(last - states_.begin())};
}

std::span<const i32> Placement::states_on(DeviceId device) const {
  const auto d = static_cast<std::size_t>(device);
  return {device_states_.data() + device_state_begin_[d], device_states_.data() + device_state_begin_[d + 1]};
}

std::span<const i32> Placement::states_on(DeviceId device, State::Part part, i32 layer) const {
  const std::span<const i32> all = states_on(device);
  const auto by_rank = [&](i32 index, i32 wanted) {
    const State& state = states_[static_cast<std::size_t>(index)];
    return rank(state.part, state.layer, num_layers_) < wanted;
  };
  const i32 wanted = rank(part, layer, num_layers_);
  const auto first = std::lower_bound(all.begin(), all.end(), wanted, by_rank);
  const auto last = std::lower_bound(first, all.end(), wanted + 1, by_rank);
  return {first, last};
}

std::vector<DeviceId> Placement::participants(const Op& op) const {
  if (op.kind == OpKind::kDispatch || op.kind == OpKind::kCombine) {
    return stage(op.group, op.layer, op.microbatch).in_exchange;
  }
  if (op.kind == OpKind::kReduce) return states_[static_cast<std::size_t>(op.state)].devices;
  std::set<DeviceId> all;
  const auto add_shares = [&](i32 group, i32 layer, i32 microbatch) {
    for (const Share& share : shares(group, layer, microbatch)) all.insert(share.device);
  };
  if (op.kind == OpKind::kMove) {
    add_shares(op.group, op.layer - 1, op.microbatch);
    add_shares(op.group, op.layer, op.microbatch);
  } else if (op.kind == OpKind::kBalance) {
    for (const MicrobatchRef& member : balance_set(balance_set_of(op.group, op.microbatch))) {
      for (i32 l = 0; l < num_layers_; ++l) {
        if (is_moe(l)) add_shares(member.group, l, member.microbatch);
      }
    }
  } else {  // norm: everybody that holds a state
    for (DeviceId device = 0; device < num_devices(); ++device) {
      if (!states_on(device).empty()) all.insert(device);
    }
  }
  return {all.begin(), all.end()};
}

std::vector<State> make_states(const Plan& plan, const ModelConfig& model) {
  std::vector<State> states;
  const auto add_shares = [](std::set<DeviceId>& devices, const Shares& shares) {
    for (const ShareRow& row : shares) {
      for (const Share& share : row) devices.insert(share.device);
    }
  };
  const auto add_state = [&](State::Part part, i32 layer, const std::set<DeviceId>& devices) {
    states.push_back({part, layer, {}, {devices.begin(), devices.end()}});
  };
  std::set<DeviceId> embed, head;
  for (const Group& group : plan.groups) {
    add_shares(embed, group.embed);
    add_shares(head, group.head);
  }
  if (model.tie_embeddings) embed.insert(head.begin(), head.end());
  add_state(State::Part::kEmbed, -1, embed);
  for (i32 l = 0; l < static_cast<i32>(model.num_layers); ++l) {
    std::set<DeviceId> attention;
    std::map<std::vector<DeviceId>, std::vector<ExpertId>> by_owners;
    for (const Group& group : plan.groups)
      add_shares(attention, group.layers[static_cast<std::size_t>(l)].attention);
    add_state(State::Part::kAttention, l, attention);
    if (!model.is_moe(l)) continue;
    for (ExpertId e = 0; e < static_cast<ExpertId>(model.num_experts); ++e) {
      std::set<DeviceId> owners;
      for (const Group& group : plan.groups) {
        for (const ExpertOwner& owner :
             group.layers[static_cast<std::size_t>(l)].experts[static_cast<std::size_t>(e)]) {
          owners.insert(owner.device);
        }
      }
      by_owners[{owners.begin(), owners.end()}].push_back(e);
    }
    for (auto& [devices, experts] : by_owners) states.push_back({State::Part::kExperts, l, experts, devices});
  }
  if (!model.tie_embeddings) add_state(State::Part::kHead, -1, head);
  return states;
}

}  // namespace hetermoe
