#include "hetermoe/ops/buffers.h"

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/ops/buffer_index.h"
#include "hetermoe/ops/buffer_sizes.h"

namespace hetermoe {
namespace {

constexpr Bytes kIdBytes = 8, kWeightBytes = 4;  // of an index and of a routing weight or its gradient

using Key = BufferKey;

/// A device to which results of the layer go has those of the next layer.
double tokens_of(const BufferSizes& s, const Key& k, PlaceId place) {
  const bool next = s.receives_next(k.layer(), k.microbatch(), place);
  return s.tokens(k.layer() + (next ? 1 : 0), k.microbatch(), place);
}

Bytes rows_of_tokens(BufferSizes& s, const Key& k, PlaceId place) {
  return tokens_of(s, k, place) * s.row(place);
}
Bytes residual(BufferSizes& s, const Key& k, PlaceId place) {
  const bool next = s.receives_next(k.layer(), k.microbatch(), place);
  return s.saves_residual(k.layer(), place) && !next ? 0 : rows_of_tokens(s, k, place);
}
Bytes send(BufferSizes& s, const Key& k, PlaceId place) {
  return s.saves_send(k.layer(), place) ? 0 : rows_of_tokens(s, k, place);
}
/// Of own tokens, for all heads.
Bytes qkv(BufferSizes& s, const Key& k, PlaceId place) {
  const HeadRange all{0, s.model().num_heads};
  return tokens_of(s, k, place) * s.element(place) *
         real(width_to_heads(s.model(), s.team_of(k, place), all));
}
Bytes attended(BufferSizes& s, const Key& k, PlaceId place) {
  return tokens_of(s, k, place) * s.element(place) * real(s.model().output_width());
}
Bytes saved_projection(BufferSizes& s, const Key& k, PlaceId place) {
  return tokens_of(s, k, place) * s.projection_kept(k.layer(), s.team_of(k, place), place);
}
/// Of all tokens of the device's team, by its heads.
Bytes heads(BufferSizes& s, const Key& k, PlaceId place) {
  const Team team = s.team_of(k, place);
  return real(team.tokens * width_to_heads(s.model(), team, team.of(place))) * s.element(place);
}
Bytes context(BufferSizes& s, const Key& k, PlaceId place) {
  const Team team = s.team_of(k, place);
  return real(team.tokens * width_to_tokens(s.model(), team.of(place).heads)) * s.element(place);
}
Bytes saved_scores(BufferSizes& s, const Key& k, PlaceId place) {
  const Team team = s.team_of(k, place);
  return real(team.tokens) * s.scores_kept(k.layer(), team, place);
}
/// Of the layer before: that of a move has the shares of both.
Bytes move_out(BufferSizes& s, const Key& k, PlaceId place) {
  return s.tokens(k.layer() - 1, k.microbatch(), place) * s.row(place);
}
/// Where results go to the next layer: owners of choices, and the tokens of the rows that come.
Bytes next_routing(BufferSizes& s, const Key& k, PlaceId place) {
  Bytes indices = 0;
  for (i32 chunk = 0; s.placement().is_moe(k.layer()) && chunk < s.placement().plan().chunks; ++chunk)
    indices += s.traffic(s.combine_of(k.layer(), k.microbatch(), chunk, place), place).rows_as_source;
  return tokens_of(s, k, place) * owners_bytes(s.model()) + indices * kIdBytes;
}
/// With the tables of what a source sends.
Bytes routing(BufferSizes& s, const Key& k, PlaceId place) {
  if (s.receives_next(k.layer(), k.microbatch(), place)) return next_routing(s, k, place);
  Bytes indices = 0;
  if (s.placement().joins_at(s.group_of(place), k.layer() + 1, k.microbatch()))
    indices = tokens_of(s, k, place) * owners_bytes(s.model());
  for (i32 chunk = 0; s.placement().is_moe(k.layer()) && chunk < s.placement().plan().chunks; ++chunk) {
    const BufferSizes::Traffic t = s.traffic(k.layer(), k.microbatch(), chunk, place);
    indices += send_index_bytes(t.rows_as_source, t.copies_as_source);
  }
  return tokens_of(s, k, place) * routing_bytes(s.model(), k.layer()) + indices;
}
Bytes saved_attention(BufferSizes& s, const Key& k, PlaceId place) {
  return tokens_of(s, k, place) * s.attention_saved(k.layer(), place);
}
Bytes left_attention(BufferSizes& s, const Key& k, PlaceId place) {
  return tokens_of(s, k, place) *
         attention_left_bytes(s.model(), k.layer(), s.element(place), s.of_team(k.layer(), place));
}
/// Rows and copies between each two devices.
Bytes load(BufferSizes& s, const Key& k, PlaceId place) {
  const ExchangeLoad& load = s.loads().of(s.group_of(place), k.layer(), k.microbatch(), k.chunk());
  return static_cast<double>((2 * load.num_sources() + load.next_tokens.size()) * load.num_owners()) *
         kIdBytes;
}
Bytes received(BufferSizes& s, const Key& k, PlaceId place) {
  const BufferSizes::Traffic t = s.traffic(k, place);
  return received_rows_bytes(s.model(), t.rows_as_owner, t.copies_as_owner, s.element(place));
}
Bytes saved_experts(BufferSizes& s, const Key& k, PlaceId place) {
  return s.traffic(k, place).copies_as_owner * expert_kept_bytes(s.model(), s.element(place));
}
Bytes left_experts(BufferSizes& s, const Key& k, PlaceId place) {
  return s.traffic(k, place).copies_as_owner * expert_left_bytes(s.model(), s.element(place));
}
Bytes owner_rows(BufferSizes& s, const Key& k, PlaceId place) {
  return s.traffic(k, place).rows_as_owner * s.row(place);
}
Bytes owner_gradients(BufferSizes& s, const Key& k, PlaceId place) {
  return owner_rows(s, k, place) + s.traffic(k, place).copies_as_owner * kWeightBytes;
}
Bytes returned(BufferSizes& s, const Key& k, PlaceId place) {
  const Op combine = s.combine_of(k.layer(), k.microbatch(), k.chunk(), place);
  return s.rows_back(combine, place) * s.row(place);
}
Bytes source_gradients(BufferSizes& s, const Key& k, PlaceId place) {
  const BufferSizes::Traffic t = s.traffic(k, place);
  const Op combine = s.combine_of(k.layer(), k.microbatch(), k.chunk(), place);
  return s.rows_back(combine, place) * s.row(place) + t.copies_as_source * kWeightBytes;
}
/// One for each sequence, part of the load-balancing loss, and expert.
double counts_of_sequences(const BufferSizes& s, const Key& k, PlaceId place) {
  const Group& group = s.placement().plan().groups[idx(s.group_of(place))];
  return real(group.microbatches[idx(k.microbatch())] * s.placement().balance_parts() *
              s.model().num_experts);
}
Bytes counts(BufferSizes& s, const Key& k, PlaceId place) {
  return counts_of_sequences(s, k, place) * kIdBytes;
}
Bytes balance(BufferSizes& s, const Key& k, PlaceId place) {
  return counts_of_sequences(s, k, place) * kWeightBytes;
}
/// Weights that visit a device, or are gathered there, and the gradient that they leave.
double visiting_params(const BufferSizes& s, const Key& k, PlaceId place) {
  const bool visits =
      s.placement().states()[idx(k.state())].transient() && place < s.placement().num_devices();
  return visits ? s.work().state_params(k.state()) : 0;
}
Bytes visiting_weights(BufferSizes& s, const Key& k, PlaceId place) {
  return visiting_params(s, k, place) * s.element(place);
}
Bytes visiting_gradients(BufferSizes& s, const Key& k, PlaceId place) {
  if (s.placement().states()[idx(k.state())].adapters_stay()) return 0;  // those of adapters are there always
  return visiting_params(s, k, place) * s.gradient(place);
}
/// What the device that it came from sent.
Bytes on_host(BufferSizes& s, const Key& k, PlaceId place) {
  const auto [device, chunk] = s.placement().of_saved_piece(place, k.piece());
  const Op copy{.kind = OpKind::kStore,
                .chunk = static_cast<std::int16_t>(chunk),
                .group = static_cast<std::int16_t>(s.group_of(device)),
                .layer = k.layer(),
                .microbatch = k.microbatch(),
                .device = device};
  return s.work().host_copy_bytes(copy, s.loads().of(copy));
}
Bytes guest(BufferSizes& s, const Key& k, PlaceId place) {
  return s.guests(k.layer(), k.microbatch(), place, s.element(place));
}
Bytes guest_gradients(BufferSizes& s, const Key& k, PlaceId place) {
  return s.guests(k.layer(), k.microbatch(), place, s.gradient(place));
}

}  // namespace

constexpr std::array<BufferRow, kNumBuffers> kBufferRows = {{
#define HM_ROW(buffer, name, holds, lifetime, counts_as, size, what) \
  {Buffer::buffer, #name, Holds::holds, CountsAs::counts_as, size, what},
    HM_BUFFERS(HM_ROW)
#undef HM_ROW
}};

const std::vector<std::string>& EnumNames<Buffer>::names() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names;
    for (const BufferRow& row : kBufferRows) names.emplace_back(row.name);
    return names;
  }();
  return all;
}

void BufferKey::has_another_key(Buffer buffer) {
  check_failed(__FILE__, __LINE__, "shape_of(buffer) == shape",
               fmt::format("{} has another key", row_of(buffer).name));
}

std::string to_string(const BufferKey& key) {
  const char* name = row_of(key.buffer()).name;
  switch (key.shape()) {
    case KeyShape::kOfStep:
      return name;
    case KeyShape::kOfMicrobatch:
      return fmt::format("{} (microbatch {})", name, key.microbatch());
    case KeyShape::kOfLayer:
      return fmt::format("{} (layer {}, microbatch {})", name, key.layer(), key.microbatch());
    case KeyShape::kOfChunk:
      return fmt::format("{} (layer {}, microbatch {}, chunk {})", name, key.layer(), key.microbatch(),
                         key.chunk());
    case KeyShape::kOfPiece:
      return fmt::format("{} (layer {}, microbatch {}, piece {})", name, key.layer(), key.microbatch(),
                         key.piece());
    case KeyShape::kOfState:
      return fmt::format("{} (state {})", name, key.state());
    case KeyShape::kOfSlot:
      return fmt::format("{} {} of {}", name, key.slot(), name_of(key.part()));
    case KeyShape::kOfTurn:
      return fmt::format("{} {}", name, key.turn());
  }
  return name;
}

const std::vector<std::string>& EnumNames<SlotPart>::names() {
  static const std::vector<std::string> all =
      names_of_all<SlotPart>({"embed", "attention", "experts", "head", "saved inputs", "saved rows"});
  return all;
}

BufferIndex::BufferIndex(const Placement& placement) {
  const Plan& plan = placement.plan();
  const i64 layers = placement.num_layers() + 2, chunks = num_chunk_slots(plan);
  i64 slots = std::max({1, plan.slots.attention, plan.slots.experts, plan.slots.saved}), microbatches = 1;
  for (const State& state : placement.states())
    slots = std::max(slots, i64{state.first_slot + num_slots(plan, state.part)});
  for (i32 g = 0; g < placement.num_groups(); ++g)
    microbatches = std::max(microbatches, i64{placement.num_microbatches(g)});
  const auto by_layer = [&](i64 parts) {
    return Numbers{.first = microbatches * parts,  // there is a layer -1
                   .layer = microbatches * parts,
                   .microbatch = parts,
                   .size = layers * microbatches * parts};
  };
  for (const BufferRow& row : kBufferRows) {
    Numbers& numbers = of_[idx(row.buffer)];
    switch (shape_of(row.buffer)) {
      case KeyShape::kOfStep:
        break;
      case KeyShape::kOfMicrobatch:
        numbers = {.microbatch = 1, .size = microbatches};
        break;
      case KeyShape::kOfLayer:
        numbers = by_layer(1);
        break;
      case KeyShape::kOfChunk:
        numbers = by_layer(chunks);
        break;
      case KeyShape::kOfPiece:
        numbers = by_layer(std::max(1, placement.num_saved_pieces()));
        break;
      case KeyShape::kOfState:
        numbers = {.layer = 1, .size = static_cast<i64>(placement.states().size())};
        break;
      case KeyShape::kOfSlot:
        numbers = {.layer = slots, .size = slots * kNumSlotParts};
        break;
      case KeyShape::kOfTurn:
        numbers = {.size = plan.guest_depth};
        break;
    }
  }
}

}  // namespace hetermoe
