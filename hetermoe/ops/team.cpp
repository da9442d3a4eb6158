#include <map>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/ops/buffer_sizes.h"
#include "hetermoe/ops/layer_op.h"

// A team computes the attention part of sequences that it shares: queries, keys and values by tokens; the
// attention kernel by heads, over whole sequences; all that follows by tokens again, in op attention. Between
// them rows go from tokens to heads and back.
namespace hetermoe {
namespace {

bool in_team(const Op& op, const Placement& placement) { return placement.has_teams(op.group, op.layer); }

/// Of a buffer that all parts of the heads fill, in the order of backward.
Mode made_backward(const AccessList& list) {
  return list.op.chunk + 1 == list.p.plan().head_parts ? Mode::kWrite : Mode::kAdd;
}

/// Ops of their own make again what the attention kernel's backward needs.
bool occurs_in(const Op& op, const Placement& placement) {
  return in_team(op, placement) &&
         (op.phase != Phase::kRecompute || !keeps_activations(placement.recompute(op.group, op.layer)));
}

// --- project ---

void project_accesses(AccessList& list) {
  list.add_saved();
  list.read_params();
  switch (list.op.phase) {
    case Phase::kForward:
      list.read_input(list.op.layer);
      list.write(Buffer::kQkv);
      if (list.saves_activations()) list.write(Buffer::kSavedProjection);
      return;
    case Phase::kRecompute:
      list.read(Buffer::kHidden);
      list.write(Buffer::kQkv);
      return list.write(Buffer::kSavedProjection);
    case Phase::kBackward:
      list.read(Buffer::kSavedProjection);
      list.read(Buffer::kDQkv);
      list.read(Buffer::kDInput);
      list.write_input_gradient(list.op.layer);
      return list.add_grad(UnitPart::kAttention, list.op.layer);
    case Phase::kWeights:
      return;
  }
}

/// Gradients of its weights come with those of its input, whatever the plan's weight_gradients say.
std::optional<UsedPart> project_grades(const Op& op, const Placement&) {
  return op.phase == Phase::kBackward ? std::optional(UsedPart{UnitPart::kAttention, op.layer})
                                      : std::nullopt;
}

void project_work(const WorkModel& model, const ExchangeLoad*, ComputeWork& work) {
  const Op& op = work.op;
  work.of_team = true;
  work.latents = model.placement().team_of(op, work.device).latents;
  work.frozen = model.frozen_part(work.device, {UnitPart::kAttention, op.layer});
  const bool merges = looks_back(op) && model.placement().merges_at(op.group, op.layer, op.microbatch);
  model.add_tokens(work, merges ? std::optional(op.layer) : std::nullopt);
}

/// Backward adds what both ways give of the input's gradient.
Bytes project_workspace(BufferSizes& s, const Op& op, DeviceId device) {
  const double tokens = s.tokens(op.layer, op.microbatch, device);
  const bool keeps = s.keeps(op.layer, device) || op.phase == Phase::kRecompute;
  const Bytes kept = s.projection_kept(op.layer, s.placement().team_of(op, device), device);
  if (op.phase == Phase::kBackward) return tokens * (2 * s.row(device) + kept);
  return keeps ? 0 : tokens * kept;
}

// --- scores ---

/// Attention sinks are weights, and so is what makes keys and values of latents. A device uses the rows of
/// its heads alone, but the state is that of the attention part.
std::optional<UsedPart> scores_uses(const Op& op, const Placement& placement) {
  return placement.scores_have_weights(op.group, op.layer)
             ? std::optional(UsedPart{UnitPart::kAttention, op.layer})
             : std::nullopt;
}

std::optional<UsedPart> scores_grades(const Op& op, const Placement& placement) {
  return op.phase == Phase::kBackward ? scores_uses(op, placement) : std::nullopt;
}

/// Keys and values of all parts of the heads come with part 0, and the sums of their gradients go with it:
/// backward takes the parts from the last to the first.
void scores_accesses(AccessList& list) {
  const Op& op = list.op;
  const auto of_first = [&](Buffer buffer) {
    return BufferKey::of_chunk(buffer, op.layer, op.microbatch, 0);
  };
  list.read_params();
  if (op.phase == Phase::kBackward) {
    list.read(Buffer::kSavedScores);
    list.read(Buffer::kDContext);
    if (const auto part = scores_grades(op, list.p)) list.add_grad(part->part, part->layer);
    if (op.chunk > 0) list.write(Buffer::kDHeads);
    return list.add(of_first(Buffer::kDHeads), made_backward(list));
  }
  list.read(Buffer::kHeads);
  if (op.chunk > 0) list.add(of_first(Buffer::kHeads), Mode::kRead);
  if (op.phase == Phase::kForward) list.write(Buffer::kContext);
  if (op.phase == Phase::kRecompute || list.saves_activations()) list.write(Buffer::kSavedScores);
}

void scores_work(const WorkModel& model, const ExchangeLoad*, ComputeWork& work) {
  const Team team = model.placement().part_of_team(work.op, work.device);
  work.of_team = true;
  work.latents = team.latents;
  work.frozen = model.frozen_part(work.device, {UnitPart::kAttention, work.op.layer});
  work.tokens = real(team.tokens);
  work.heads = real(team.of(work.device).heads.count) / real(model.model().num_heads);
}

/// Probabilities, where the kernel keeps them and the op does not; keys and values made of latents; and the
/// gradients of these.
Bytes scores_workspace(BufferSizes& s, const Op& op, DeviceId device) {
  const ModelConfig& m = s.model();
  const Team team = s.placement().part_of_team(op, device);
  const TeamMember& own = team.of(device);
  const HeadRange heads = own.heads;
  if (op.phase == Phase::kBackward && team.latents)
    return real(team.tokens * heads.count * (m.head_dim + m.value_dim())) * s.element(device);
  if (s.keeps(op.layer, device) || op.phase != Phase::kForward) return 0;
  const Bytes held = real(width_to_heads(m, team, own) + width_to_tokens(m, heads)) * s.element(device);
  return real(team.tokens) * std::max(0.0, s.scores_kept(op.layer, team, device) - held);
}

// --- to_heads, to_tokens ---

/// Every device of a team has tokens and heads, perhaps none.
void to_heads_accesses(AccessList& list) {
  if (list.op.phase == Phase::kBackward) {
    list.read(Buffer::kDHeads);
    return list.add(Buffer::kDQkv, made_backward(list));
  }
  list.read(Buffer::kQkv);
  list.write(Buffer::kHeads);
}

void to_tokens_accesses(AccessList& list) {
  if (list.op.phase == Phase::kBackward) {
    list.read(Buffer::kDAttended);
    return list.write(Buffer::kDContext);
  }
  list.read(Buffer::kContext);
  list.add(Buffer::kAttended, list.op.chunk == 0 ? Mode::kWrite : Mode::kAdd);
}

using WidthOf = i64 (*)(const ModelConfig&, const Team&, const TeamMember&);

i64 context_width(const ModelConfig& model, const Team&, const TeamMember& member) {
  return width_to_tokens(model, member.heads);
}

Bytes wire_element(const Plan& plan, const Op& op) { return row_bytes(wire_of(op, plan), 1); }

/// Tokens of the members of a team, and numbers that a token sends for the heads of these.
struct Sums {
  i64 tokens = 0, width = 0;
};

/// The tokens of one device and the heads of another meet in both directions. Sums per node replace the
/// pairs, so that a team of a hundred devices costs a hundred steps.
template <WidthOf kWidth, bool kToHeads>
std::vector<PortBytes> bytes_of_op(const WorkModel& model, const Op& op,
                                   std::span<const PlaceId> participants, const ExchangeLoad*) {
  const Bytes element = wire_element(model.placement().plan(), op);
  const Team team = model.placement().part_of_team(op);
  Sums all;
  std::map<std::size_t, Sums> of_node;
  const auto sums_of = [&](const TeamMember& member) {
    return Sums{member.tokens, kWidth(model.model(), team, member)};
  };
  for (const TeamMember& member : team.members) {
    const Sums own = sums_of(member);
    for (Sums* sums : {&all, &of_node[model.node_of(member.device)]})
      sums->tokens += own.tokens, sums->width += own.width;
  }
  std::vector<PortBytes> bytes(participants.size());
  for (const TeamMember& member : team.members) {
    const Sums own = sums_of(member), near = of_node[model.node_of(member.device)];
    PortBytes& mine = bytes[position(participants, member.device)];
    mine.local_out = real(own.tokens * (near.width - own.width)) * element;
    mine.local_in = real((near.tokens - own.tokens) * own.width) * element;
    mine.net_out = real(own.tokens * (all.width - near.width)) * element;
    mine.net_in = real((all.tokens - near.tokens) * own.width) * element;
  }
  const bool from_tokens = kToHeads != (op.phase == Phase::kBackward);
  return from_tokens ? bytes : reversed(std::move(bytes));
}

/// What is sent and what came, where it is not the buffer itself.
template <WidthOf kWidth>
Bytes transfer_workspace(BufferSizes& s, const Op& op, DeviceId device) {
  const Team team = s.placement().part_of_team(op);
  const TeamMember& own = team.of(device);
  i64 all = 0;
  for (const TeamMember& member : team.members) all += kWidth(s.model(), team, member);
  const double numbers = real(own.tokens * all + team.tokens * kWidth(s.model(), team, own));
  return numbers * wire_element(s.placement().plan(), op);
}

}  // namespace

const OpRow op_rows::project = {
    .phases = Phases::kForwardBackwardRecompute,
    .queue = QueueRule::always(Queue::kCompute),
    .participants = Participants::kOneDevice,
    .stage = Stage::kLayer,
    .occurs = Occurs::kInMicrobatch,
    .has_layer = true,
    .has_microbatch = true,
    .pricing = Pricing::kProjection,
    .saved = SavedPart::kInputs,
    .saved_in_backward = false,
    .looks_back = true,
    .looks_back_in = Phase::kForward,
    .accesses = project_accesses,
    .occurs_in = occurs_in,
    .uses = uses_in_layer<UnitPart::kAttention>,
    .grades = project_grades,
    .work = project_work,
    .workspace = project_workspace,
};

const OpRow op_rows::scores = {
    .phases = Phases::kForwardBackwardRecompute,
    .queue = QueueRule::always(Queue::kCompute),
    .participants = Participants::kOneDevice,
    .stage = Stage::kLayer,
    .occurs = Occurs::kInMicrobatch,
    .has_layer = true,
    .has_microbatch = true,
    .has_part = true,
    .pricing = Pricing::kScores,
    .accesses = scores_accesses,
    .occurs_in = occurs_in,
    .uses = scores_uses,
    .grades = scores_grades,
    .work = scores_work,
    .workspace = scores_workspace,
};

const OpRow op_rows::to_heads = {
    .phases = Phases::kForwardBackwardRecompute,
    .queue = QueueRule::always(Queue::kSequence),
    .participants = Participants::kTeam,
    .occurs = Occurs::kInMicrobatch,
    .has_layer = true,
    .has_microbatch = true,
    .has_part = true,
    .accesses = to_heads_accesses,
    .occurs_in = occurs_in,
    .bytes = bytes_of_op<width_to_heads, true>,
    .workspace = transfer_workspace<width_to_heads>,
};

const OpRow op_rows::to_tokens = {
    .phases = Phases::kForwardBackward,
    .queue = QueueRule::always(Queue::kSequence),
    .participants = Participants::kTeam,
    .occurs = Occurs::kInMicrobatch,
    .has_layer = true,
    .has_microbatch = true,
    .has_part = true,
    .accesses = to_tokens_accesses,
    .occurs_in = in_team,
    .bytes = bytes_of_op<context_width, false>,
    .workspace = transfer_workspace<context_width>,
};

}  // namespace hetermoe
