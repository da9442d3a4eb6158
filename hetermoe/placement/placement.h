#pragma once
#include <span>
#include <vector>

#include "hetermoe/base/index.h"
#include "hetermoe/placement/balance_sets.h"
#include "hetermoe/placement/op.h"
#include "hetermoe/placement/placed_states.h"
#include "hetermoe/placement/team.h"
#include "hetermoe/placement/token_ranges.h"
#include "hetermoe/plan/recompute.h"

namespace hetermoe {

/// The plan as the schedule needs it: who takes part in which layer of which microbatch, and which states
/// there are. Made once per plan, which must outlive it.
class Placement {
 public:
  Placement(const Plan& plan, const ModelConfig& model, const StepOptions& options);

  const Plan& plan() const { return plan_; }
  const StepOptions& options() const { return options_; }
  i32 num_devices() const { return static_cast<i32>(num_devices_); }
  i32 num_hosts() const { return num_hosts_; }  ///< 0 when the plan uses none
  i32 num_places() const { return num_devices() + num_hosts_; }
  /// The place of the host that a device uses; the plan uses hosts.
  PlaceId host_of(DeviceId device) const {
    return num_devices() + plan_.hosts[static_cast<std::size_t>(device)];
  }
  i32 num_layers() const { return num_layers_; }
  i32 num_groups() const { return static_cast<i32>(plan_.groups.size()); }
  i32 num_microbatches(i32 group) const {
    return static_cast<i32>(plan_.groups[static_cast<std::size_t>(group)].microbatches.size());
  }
  /// The device itself; of a host the first at work that uses it: all of these have one dtype.
  DeviceId first_device(PlaceId place) const {
    return place < num_devices() ? place : user_of_host_[idx(place - num_devices())];
  }
  bool is_moe(i32 layer) const { return moe_[static_cast<std::size_t>(layer)]; }
  /// Op scores of a layer uses weights of the attention part: sinks (ModelConfig::attention_sinks), or what
  /// makes keys and values of latents.
  bool scores_have_weights(i32 group, i32 layer) const {
    return scores_have_weights_[idx(group)][idx(layer)];
  }
  Recompute recompute(i32 group, i32 layer) const { return recompute_of(plan_, group, layer); }
  /// Whether the tensors from which backward of a layer starts wait on the hosts: its inputs, and the rows of
  /// its experts where those are not sent again.
  bool saves_inputs(i32 group, i32 layer) const {
    return options_.backward && plan_.groups[idx(group)].layers[idx(layer)].saved == Residence::kHost;
  }
  bool saves_rows(i32 group, i32 layer) const {
    return saves_inputs(group, layer) && is_moe(layer) && !resends_rows(recompute(group, layer));
  }
  /// Pieces (is_saved_copy) of a layer and microbatch from all devices of a host; and that of a device with a
  /// chunk of its own numbers.
  i32 num_saved_pieces() const { return devices_of_host_ * (plan_.chunks + 1); }
  i32 saved_piece(DeviceId device, i32 chunk) const {
    return number_on_host_[idx(device)] * (plan_.chunks + 1) + chunk;
  }
  /// The device whose forward pass made what `device` starts backward from.
  DeviceId maker_of(i32 group, i32 layer, i32 microbatch, DeviceId device) const;
  /// The device of a piece, and its chunk there.
  std::pair<DeviceId, i32> of_saved_piece(PlaceId host, i32 piece) const;
  i32 last_moe_layer() const;  ///< -1 = the model has no experts
  /// The devices of the tokens of stage `layer`: -1 the embedding, num_layers the head. All phases but
  /// forward follow the backward shares.
  TokenRanges ranges(i32 group, i32 layer, i32 microbatch, Phase phase = Phase::kForward) const;
  /// Those of the layer of an op, in its phase.
  TokenRanges ranges(const Op& op) const { return ranges(op.group, op.layer, op.microbatch, op.phase); }
  /// Those of a stage of which a device has a part, in forward or backward: it has no more than one.
  TokenRanges ranges_with(i32 group, i32 layer, i32 microbatch, DeviceId device) const;
  /// Teams compute the attention part of the layer.
  bool has_teams(i32 group, i32 layer) const {
    return hetermoe::has_teams(share_row(plan_.groups[idx(group)].layers[idx(layer)].attention, 0));
  }
  /// How many for a microbatch.
  i32 num_teams(i32 group, i32 layer, i32 microbatch) const {
    return hetermoe::num_teams(share_row(plan_.groups[idx(group)].layers[idx(layer)].attention, microbatch));
  }
  /// That of an op inside a team; and that of a device in the op's layer.
  Team team_of(const Op& op) const { return team(op, op.team); }
  Team team_of(const Op& op, DeviceId device) const { return team(op, team_with(attention_row(op), device)); }
  /// Likewise, with the heads of the op's part (Plan::head_parts) alone.
  Team part_of_team(const Op& op) const { return part_of(op, team_of(op)); }
  Team part_of_team(const Op& op, DeviceId device) const { return part_of(op, team_of(op, device)); }
  /// All of them for a microbatch.
  std::vector<Team> teams_of(i32 group, i32 layer, i32 microbatch) const {
    return hetermoe::teams_of(share_row(plan_.groups[idx(group)].layers[idx(layer)].attention, microbatch),
                              plan_.seq_len, latents_for_);
  }
  /// The tokens of a move, as they are before it and after it.
  struct Move {
    TokenRanges from, to;
  };
  Move move_of(const Op& move) const;
  /// Devices that own experts of the layer, ascending.
  const std::vector<DeviceId>& owners(i32 group, i32 layer) const {
    return owners_[static_cast<std::size_t>(group)][static_cast<std::size_t>(layer)];
  }
  /// Those that compute the experts of a microbatch, ascending: with experts at their sources the source.
  const std::vector<DeviceId>& owners(i32 group, i32 layer, i32 microbatch, Phase phase) const {
    const Stage& of = stage(group, layer, microbatch, phase);
    return at_sources(group, layer) ? of.in_exchange : owners(group, layer);
  }
  const std::vector<DeviceId>& owners(const Op& op) const {
    return owners(op.group, op.layer, op.microbatch, op.phase);
  }
  /// The device computes experts of the op's exchange.
  bool is_owner(const Op& op, DeviceId device) const {
    if (at_sources(op.group, op.layer)) return is_source(op, device);
    return is_owner(op.group, op.layer, device);
  }
  /// The device has tokens of the op's exchange, perhaps none.
  bool is_source(const Op& op, DeviceId device) const {
    return has_range(op.group, op.layer, op.microbatch, device, op.phase);
  }
  bool at_sources(i32 group, i32 layer) const {
    return plan_.groups[static_cast<std::size_t>(group)].layers[static_cast<std::size_t>(layer)].experts_at ==
           ExpertsAt::kSources;
  }
  /// Sources tell each other their counts before they dispatch, and copies are divided by them.
  bool tallies(i32 group, i32 layer) const {
    return plan_.tally && is_moe(layer) && !at_sources(group, layer);
  }
  /// Copies of an exchange are divided by its counts, which are told by tally or foreseen.
  bool divides(i32 group, i32 layer) const {
    return divides_copies(plan_) && is_moe(layer) && !at_sources(group, layer);
  }
  /// Owners lend each other experts for single exchanges.
  bool lends(i32 group, i32 layer) const {
    return plan_.guest_slots > 0 && is_moe(layer) && !at_sources(group, layer) &&
           owners(group, layer).size() > 1;
  }
  /// Which of the turns of guests an exchange has: a turn is taken anew when its guests have gone.
  i32 guest_turn(const Op& op) const {
    return static_cast<i32>((op.layer + op.microbatch) % plan_.guest_depth);
  }
  /// How many compute experts of a microbatch.
  std::size_t num_owners(i32 group, i32 layer) const {
    return at_sources(group, layer) ? 1 : owners(group, layer).size();
  }
  /// The device has a range of tokens of stage `layer`, perhaps an empty one.
  bool has_range(i32 group, i32 layer, i32 microbatch, DeviceId device, Phase phase = Phase::kForward) const {
    return stage(group, layer, microbatch, phase).listed[static_cast<std::size_t>(device)];
  }
  /// Some device both computes the attention part of the layer and owns experts of it.
  bool has_local_experts(i32 group, i32 layer, i32 microbatch) const {
    return stage(group, layer, microbatch).local_experts;
  }
  /// The input of `layer` (0..num_layers) arrives by move.F, because the shares differ from those before; in
  /// backward its gradient leaves by move.B.
  bool moves_into(i32 group, i32 layer, i32 microbatch, Phase phase = Phase::kForward) const {
    return stage(group, layer, microbatch, phase).moves;
  }
  /// Results of the experts of the layer before go to the devices of `layer` (1..num_layers) directly:
  /// CombineTo::kNext where the layer's input moves. The move then carries the residual stream.
  bool joins_at(i32 group, i32 layer, i32 microbatch) const {
    return plan_.combine_to == CombineTo::kNext && layer > 0 && moves_into(group, layer, microbatch);
  }
  /// The first op of `layer` adds the results of the layer before to the residual stream: no move brings the
  /// sum.
  bool merges_at(i32 group, i32 layer, i32 microbatch) const {
    return layer > 0 && (!moves_into(group, layer, microbatch) || joins_at(group, layer, microbatch));
  }
  /// Backward of the layer is on other devices than forward.
  bool roams(i32 group, i32 layer, i32 microbatch) const {
    return options_.backward && layer < num_layers_ &&
           ranges(group, layer, microbatch) != ranges(group, layer, microbatch, Phase::kBackward);
  }
  /// Whether move.R brings input and routing of backward to its device. False where the host saves them,
  /// because they then go through the host.
  bool moves_saved(i32 group, i32 layer, i32 microbatch) const {
    return roams(group, layer, microbatch) && !saves_inputs(group, layer);
  }
  /// Sources and owners of a layer with experts, ascending: those with a lane in its exchanges.
  const std::vector<DeviceId>& in_exchange(const Op& op) const {
    return stage(op.group, op.layer, op.microbatch, op.phase).in_exchange;
  }
  /// Owners of a layer with experts and the devices that its results go to, where these are of the next
  /// layer.
  const std::vector<DeviceId>& in_next_exchange(const Op& op) const {
    return stage(op.group, op.layer + 1, op.microbatch, op.phase).in_exchange_before;
  }
  /// moves_into() for some microbatch of some group, in forward or backward.
  bool may_move_into(i32 layer) const { return may_move_[static_cast<std::size_t>(layer)]; }
  /// Backward of this part (attention, experts) leaves gradients of weights to ops of their own.
  bool leaves_weights(UnitPart part, i32 layer) const;
  bool balance_on() const { return options_.balance; }
  /// Parts of which the load-balancing loss is the mean: one, or one for each MoE layer.
  i64 balance_parts() const;
  /// The part that a MoE layer belongs to.
  i64 balance_part(i32 layer) const;
  /// The device computes the attention part of some layer with experts of the microbatch.
  bool routes(const MicrobatchRef& member, DeviceId device, Phase phase) const;
  const BalanceSets& balance_sets() const { return balance_sets_; }
  const PlacedStates& states() const { return states_; }

 private:
  struct Stage {
    std::vector<bool> listed;           // [num_devices]
    std::vector<DeviceId> in_exchange;  // sources and owners of the layer, ascending
    std::vector<DeviceId>
        in_exchange_before;  // where joins_at(): devices of this and owners of the layer before
    bool moves = false, local_experts = false;
  };
  using Stages = std::vector<std::vector<Stage>>;  // [layer + 1][row]
  const Stage& stage(i32 group, i32 layer, i32 microbatch, Phase phase = Phase::kForward) const {
    const Stages& backward = backward_stages_[static_cast<std::size_t>(group)];
    const bool forward = phase == Phase::kForward || backward.empty();
    const std::vector<Stage>& rows =
        (forward ? stages_[static_cast<std::size_t>(group)] : backward)[static_cast<std::size_t>(layer + 1)];
    return rows[rows.size() == 1 ? 0 : static_cast<std::size_t>(microbatch)];
  }
  const ShareRow& attention_row(const Op& op) const {
    return share_row(plan_.groups[idx(op.group)].layers[idx(op.layer)].attention, op.microbatch);
  }
  Team team(const Op& op, i32 number) const {
    return hetermoe::team_of(attention_row(op), number, plan_.seq_len, latents_for_);
  }
  Team part_of(const Op& op, const Team& team) const {
    return team.with_part(num_heads_, num_kv_heads_, op.chunk, plan_.head_parts);
  }
  bool is_owner(i32 group, i32 layer, DeviceId device) const {
    return owner_bits_[static_cast<std::size_t>(group)][static_cast<std::size_t>(layer)]
                      [static_cast<std::size_t>(device)];
  }
  void add_owners(const Group& group);
  void add_scores_weights(const Group& group, bool sinks);
  Stages make_stages(const Group& group, Phase phase);
  Stage make_stage(i32 group, const Shares* before, const Shares& shares, i32 layer, i32 microbatch) const;
  std::vector<DeviceId> with_owners(i32 group, i32 layer, const ShareRow& row) const;

  const Plan& plan_;
  StepOptions options_;
  i32 num_layers_;
  std::size_t num_devices_;
  i32 num_hosts_;
  i32 devices_of_host_ = 0;             // of the host with most
  std::vector<DeviceId> user_of_host_;  // [host]
  std::vector<i32> number_on_host_;     // [device] among those of its host, which follow one another
  std::vector<bool> moe_;
  i64 num_heads_, num_kv_heads_;
  i64 latents_for_;                                         // devices of a team
  std::vector<std::vector<bool>> scores_have_weights_;      // [group][layer]
  std::vector<Stages> stages_;                              // [group]
  std::vector<Stages> backward_stages_;                     // [group] empty = as forward
  std::vector<std::vector<std::vector<DeviceId>>> owners_;  // [group][layer]
  std::vector<std::vector<std::vector<bool>>> owner_bits_;  // [group][layer][device]
  std::vector<bool> may_move_;                              // [layer + 1]
  BalanceSets balance_sets_;
  PlacedStates states_;
};

}  // namespace hetermoe
