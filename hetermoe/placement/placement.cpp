#include "hetermoe/placement/placement.h"

#include <algorithm>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/backward_shares.h"

namespace hetermoe {
namespace {

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
      num_heads_(model.num_heads),
      num_kv_heads_(model.num_kv_heads),
      latents_for_(most_for_latents(model)),
      may_move_(static_cast<std::size_t>(model.num_layers) + 1, false),
      states_(plan, model, options) {
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
  }
  if (options_.balance)
    balance_sets_ = BalanceSets(plan, options.aux_group > 0 ? options.aux_group : total_sequences(plan));
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

i64 Placement::balance_part(i32 layer) const {
  if (!options_.aux_per_layer) return 0;
  i64 part = 0;
  for (i32 l = 0; l < layer; ++l) part += is_moe(l) ? 1 : 0;
  return part;
}

i64 Placement::balance_parts() const { return options_.aux_per_layer ? balance_part(num_layers()) : 1; }

std::pair<DeviceId, i32> Placement::of_saved_piece(PlaceId host, i32 piece) const {
  const auto first = std::find(plan_.hosts.begin(), plan_.hosts.end(), host - num_devices());
  return {static_cast<DeviceId>(first - plan_.hosts.begin()) + piece / (plan_.chunks + 1),
          piece % (plan_.chunks + 1)};
}

bool Placement::leaves_weights(UnitPart part, i32 layer) const {
  return plan_.weight_gradients == WeightGradients::kAfter && options_.backward &&
         states_.trains_some(part, layer);
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

}  // namespace hetermoe
