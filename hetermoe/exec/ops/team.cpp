#include <algorithm>

#include "hetermoe/comm/codec.h"
#include "hetermoe/exec/ops/op_functions.h"
#include "hetermoe/ops/work.h"

// The attention part of a team: queries, keys and values by tokens, the attention kernel by heads, and what
// travels between these.
namespace hetermoe {
namespace {

Team team_here(const OpContext& d, const Op& op) { return d.p.team_of(op, d.device()); }
/// With the heads of the op's part.
Team part_here(const OpContext& d, const Op& op) { return d.p.part_of_team(op, d.device()); }
ChunkSlot& slot_of_part(OpContext& d, const Op& op) {
  return d.slots.chunk(op.layer, op.microbatch, op.chunk);
}

KeyForm form_of(const Team& team) { return team.latents ? KeyForm::kLatents : KeyForm::kHeads; }

void run_project(OpContext& d, const Op& op) {
  LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  StateGroup& state = d.state.attention(op.layer);
  if (op.phase == Phase::kBackward) {
    const at::Tensor gradient = projection_backward(state, *slot.team.projection, slot.team.d_qkv);
    return give_input_gradient(d, op, slot.d_input + gradient);
  }
  const bool forward = op.phase == Phase::kForward;
  const at::Tensor y = forward ? d.take_input(op, op.layer) : slot.hidden;
  const bool keep = !forward || d.keeps_activations(op);
  ProjectionOutput out = projection_forward(d.model, op.layer, state, y, sequences_of(d, op, {}),
                                            form_of(team_here(d, op)), keep);
  slot.team.qkv = out.heads;
  slot.team.projection = std::move(out.graph);
}

/// Of a device's keys and values, those that some of its query heads need.
at::Tensor keys_for(const OpContext& d, const Op& op, const at::Tensor& all, const HeadRange& heads) {
  const Team team = team_here(d, op);
  const HeadRange own = key_values(d.model, team, team.of(d.device()).heads).heads,
                  some = key_values(d.model, team, heads).heads;
  return all.narrow(1, some.count > 0 ? some.begin - own.begin : 0, some.count);
}

/// Gradients of keys and values are sums over the parts, which travel with part 0.
void leave_gradients(OpContext& d, const Op& op, const TokenHeads& gradients) {
  TokenHeads& first = d.slots.chunk(op.layer, op.microbatch, 0).d_heads;
  if (d.p.plan().head_parts == 1) {
    first = gradients;
    return;
  }
  const HeadRange heads = part_here(d, op).of(d.device()).heads;
  if (op.chunk + 1 == d.p.plan().head_parts) {
    const Team team = team_here(d, op);
    const KeyValues own = key_values(d.model, team, team.of(d.device()).heads);
    first.k = at::zeros({team.tokens, own.heads.count, own.key}, gradients.k.options());
    first.v = at::zeros({team.tokens, own.heads.count, own.value}, gradients.v.options());
  }
  keys_for(d, op, first.k, heads).add_(gradients.k);
  keys_for(d, op, first.v, heads).add_(gradients.v);
  slot_of_part(d, op).d_heads.q = gradients.q;
  if (op.chunk == 0) return;
  slot_of_part(d, op).d_heads.k = first.k.narrow(1, 0, 0);
  slot_of_part(d, op).d_heads.v = first.v.narrow(1, 0, 0);
}

void run_scores(OpContext& d, const Op& op) {
  ChunkSlot& slot = slot_of_part(d, op);
  StateGroup* weights = d.p.scores_have_weights(op.group, op.layer) ? &d.state.attention(op.layer) : nullptr;
  if (op.phase == Phase::kBackward)
    return leave_gradients(d, op, scores_backward(weights, *slot.scores, slot.d_context));
  const bool forward = op.phase == Phase::kForward;
  const Team team = part_here(d, op);
  const HeadRange heads = team.of(d.device()).heads;
  const TokenHeads& first = d.slots.chunk(op.layer, op.microbatch, 0).heads;
  const std::vector<i64> documents = document_lengths(d, op.microbatch, team.begin, team.tokens);
  ScoresOutput out =
      scores_forward(d.model, op.layer, {heads.begin, form_of(team), weights},
                     {slot.heads.q, keys_for(d, op, first.k, heads), keys_for(d, op, first.v, heads)},
                     {d.p.plan().seq_len, documents}, !forward || d.keeps_activations(op));
  slot.scores = std::move(out.graph);
  if (forward) slot.context = out.context_TA;
}

// --- transfers: the tokens of one device and the heads of another meet ---

at::ScalarType wire_type(const OpContext& d, const Op& op) { return scalar_type(wire_of(op, d.p.plan())); }

/// Of queries, keys and values those that a member gets.
TokenHeads heads_for(const OpContext& d, const Team& team, const TokenHeads& all, const TeamMember& member) {
  const HeadRange shared = key_values(d.model, team, member.keys_for).heads;
  return {all.q.narrow(1, member.heads.begin, member.heads.count),
          all.k.narrow(1, shared.begin, shared.count), all.v.narrow(1, shared.begin, shared.count)};
}

TokenHeads tokens_for(const TokenHeads& all, const TeamMember& member) {
  const auto of = [&](const at::Tensor& x) { return x.narrow(0, member.begin, member.tokens); };
  return {of(all.q), of(all.k), of(all.v)};
}

std::vector<at::Tensor> message_of(const TokenHeads& heads, at::ScalarType type) {
  return {heads.q.to(type).contiguous(), heads.k.to(type).contiguous(), heads.v.to(type).contiguous()};
}

void pack_to_heads(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  const bool back = op.phase == Phase::kBackward;
  const Team team = part_here(d, op);
  for (const TeamMember& peer : team.members) {
    const TokenHeads part = back ? tokens_for(slot_of_part(d, op).d_heads, peer)
                                 : heads_for(d, team, d.slots.layer(op.layer, op.microbatch).team.qkv, peer);
    out[position(participants, peer.device)].tensors = message_of(part, wire_type(d, op));
  }
}

/// In the order of the team's tokens.
TokenHeads joined_tokens(OpContext& d, const Team& team, Devices participants, std::vector<Message>& in) {
  std::array<std::vector<at::Tensor>, 3> parts;
  for (const TeamMember& peer : team.members) {
    const std::vector<at::Tensor>& tensors = in[position(participants, peer.device)].tensors;
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].push_back(tensors[i].to(d.state.dtype()));
  }
  return {at::cat(parts[0]), at::cat(parts[1]), at::cat(parts[2])};
}

/// Of all heads, before any came: those of keys, values and latents are sums.
TokenHeads no_gradients(OpContext& d, const Team& team) {
  const i64 tokens = team.of(d.device()).tokens;
  const at::TensorOptions options = d.state.options();
  const KeyValues all = key_values(d.model, team, {0, d.model.num_heads});
  return {at::empty({tokens, d.model.num_heads, d.model.head_dim}, options),
          at::zeros({tokens, all.heads.count, all.key}, options),
          at::zeros({tokens, all.heads.count, all.value}, options)};
}

/// In the order of the team's heads: keys, values and latents that several devices used get sums in that
/// order.
void add_heads(OpContext& d, const Team& team, Devices participants, std::vector<Message>& in,
               const TokenHeads& out) {
  for (const TeamMember& peer : team.members) {
    const std::vector<at::Tensor>& tensors = in[position(participants, peer.device)].tensors;
    const auto received = [&](std::size_t i) { return tensors[i].to(d.state.dtype()); };
    TokenHeads own = heads_for(d, team, out, peer);
    own.q.copy_(received(0));
    own.k.add_(received(1));
    own.v.add_(received(2));
  }
}

void unpack_to_heads(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  const Team team = part_here(d, op);
  if (op.phase != Phase::kBackward) {
    slot_of_part(d, op).heads = joined_tokens(d, team, participants, in);
    return;
  }
  TokenHeads& gradients = d.slots.layer(op.layer, op.microbatch).team.d_qkv;
  if (op.chunk + 1 == d.p.plan().head_parts) gradients = no_gradients(d, team);
  add_heads(d, team, participants, in, gradients);
}

/// Tokens of the device that has them by tokens, heads of the other.
MessageShape expected_to_heads(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  const Team team = part_here(d, op);
  const bool back = op.phase == Phase::kBackward;
  const TeamMember& by_tokens = team.of(back ? d.device() : peer);
  const TeamMember& by_heads = team.of(back ? peer : d.device());
  const KeyValues shared = key_values(d.model, team, by_heads.keys_for);
  const at::ScalarType type = wire_type(d, op);
  MessageShape shape;
  shape.tensors.push_back({type, {by_tokens.tokens, by_heads.heads.count, d.model.head_dim}});
  shape.tensors.push_back({type, {by_tokens.tokens, shared.heads.count, shared.key}});
  shape.tensors.push_back({type, {by_tokens.tokens, shared.heads.count, shared.value}});
  return shape;
}

/// Columns of the attention kernel's output that belong to some heads.
at::Tensor columns_for(const OpContext& d, const at::Tensor& all, const HeadRange& heads) {
  return all.narrow(1, heads.begin * d.model.value_dim(), heads.count * d.model.value_dim());
}

void pack_to_tokens(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  for (const TeamMember& peer : part_here(d, op).members) {
    const at::Tensor part =
        op.phase == Phase::kBackward
            ? columns_for(d, d.slots.layer(op.layer, op.microbatch).d_attended, peer.heads)
            : slot_of_part(d, op).context.narrow(0, peer.begin, peer.tokens);
    out[position(participants, peer.device)].tensors = {part.to(wire_type(d, op)).contiguous()};
  }
}

void unpack_to_tokens(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  const Team team = part_here(d, op);
  const auto received = [&](const TeamMember& peer) {
    return in[position(participants, peer.device)].tensors[0];
  };
  if (op.phase == Phase::kBackward) {
    std::vector<at::Tensor> parts;
    for (const TeamMember& peer : team.members) parts.push_back(received(peer).to(d.state.dtype()));
    slot_of_part(d, op).d_context = at::cat(parts);
    return;
  }
  at::Tensor& attended = d.slots.layer(op.layer, op.microbatch).attended;
  if (op.chunk == 0)
    attended = at::empty({team.of(d.device()).tokens, d.model.output_width()}, d.state.options());
  for (const TeamMember& peer : team.members) columns_for(d, attended, peer.heads).copy_(received(peer));
}

MessageShape expected_to_tokens(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  const Team team = part_here(d, op);
  const bool back = op.phase == Phase::kBackward;
  const i64 tokens = team.of(back ? peer : d.device()).tokens;
  const HeadRange heads = team.of(back ? d.device() : peer).heads;
  MessageShape shape;
  shape.tensors.push_back({wire_type(d, op), {tokens, heads.count * d.model.value_dim()}});
  return shape;
}

}  // namespace

ExecOp exec_ops::project() { return run_project; }
ExecOp exec_ops::scores() { return run_scores; }

ExecOp exec_ops::to_heads() {
  return TransferOp{.pack = pack_to_heads, .expected = expected_to_heads, .unpack = unpack_to_heads};
}

ExecOp exec_ops::to_tokens() {
  return TransferOp{.pack = pack_to_tokens, .expected = expected_to_tokens, .unpack = unpack_to_tokens};
}

}  // namespace hetermoe
