#include "hetermoe/exec/slots.h"

#include <tuple>
#include <utility>

#include "hetermoe/base/index.h"

namespace hetermoe {

Slots::Slots(i32 num_layers, i32 num_microbatches, i32 num_chunks, i32 num_saved)
    : num_layers_(num_layers),
      num_microbatches_(num_microbatches),
      num_saved_(num_saved),
      layers_(idx((num_layers + 2) * num_microbatches)),
      microbatches_(idx(num_microbatches)),
      saved_(idx(num_layers * num_microbatches * num_saved)) {
  for (LayerSlot& slot : layers_) slot.chunks.resize(idx(num_chunks));
}

namespace {

template <class... Held>
Released take_all(Held&... held) {
  return std::make_shared<std::tuple<Held...>>(std::exchange(held, Held{})...);
}

Released take_routing(LayerSlot& slot) {
  std::vector<Released> of_chunks;
  for (ChunkSlot& chunk : slot.chunks) of_chunks.push_back(take_all(chunk.routed));
  return take_all(slot.topk, slot.weights, slot.owner_TK, slot.next_CSO, of_chunks);
}

/// Those that take() hands over.
Released take_of_chunk(Buffer buffer, ChunkSlot& k) {
  if (buffer == Buffer::kSavedExperts) return take_all(k.saved, k.guests_saved);
  if (buffer == Buffer::kLeftExperts) return take_all(k.left, k.guests_left);
  if (buffer == Buffer::kRows) return take_all(k.rows, k.weights, k.groups);
  if (buffer == Buffer::kOut) return take_all(k.out);
  if (buffer == Buffer::kReturned) return take_all(k.returned);
  if (buffer == Buffer::kDOut) return take_all(k.d_out);
  if (buffer == Buffer::kDRows) return take_all(k.d_rows, k.d_weights);
  HM_CHECK(buffer == Buffer::kDSend, "{} is not of a chunk", name_of(buffer));
  return take_all(k.d_send, k.d_send_weights);
}

Released take_of_team(Buffer buffer, LayerSlot& l) {
  if (buffer == Buffer::kQkv) return take_all(l.team.qkv);
  if (buffer == Buffer::kSavedProjection) return take_all(l.team.projection);
  if (buffer == Buffer::kHeads) return take_all(l.team.heads);
  if (buffer == Buffer::kSavedScores) return take_all(l.team.scores);
  if (buffer == Buffer::kContext) return take_all(l.team.context);
  if (buffer == Buffer::kAttended) return take_all(l.attended);
  if (buffer == Buffer::kDAttended) return take_all(l.d_attended);
  if (buffer == Buffer::kDContext) return take_all(l.team.d_context);
  if (buffer == Buffer::kDHeads) return take_all(l.team.d_heads);
  if (buffer == Buffer::kDQkv) return take_all(l.team.d_qkv);
  HM_CHECK(buffer == Buffer::kDInput, "{} is not of a team", name_of(buffer));
  return take_all(l.d_input);
}

Released take_of_layer(Buffer buffer, LayerSlot& l) {
  if (buffer == Buffer::kHidden) return take_all(l.hidden);
  if (buffer == Buffer::kResidual) return take_all(l.residual);
  if (buffer == Buffer::kSend) return take_all(l.send);
  if (buffer == Buffer::kSavedAttention) return take_all(l.graph);
  if (buffer == Buffer::kLeftAttention) return take_all(l.left);
  if (buffer == Buffer::kMoveOut) return take_all(l.move_out);
  if (buffer == Buffer::kDHidden) return take_all(l.d_hidden);
  if (buffer == Buffer::kDMove) return take_all(l.d_move);
  if (buffer == Buffer::kTally) return take_all(l.tally);
  if (buffer == Buffer::kGuest) return take_all(l.guests);
  if (buffer == Buffer::kGuestGrad) return take_all(l.guest_grads);
  if (buffer == Buffer::kRouting) return take_routing(l);
  return take_of_team(buffer, l);
}

}  // namespace

Released Slots::take(const BufferKey& key) {
  const i32 m = key.microbatch();
  switch (key.buffer()) {
    case Buffer::kHidden:
    case Buffer::kResidual:
    case Buffer::kSend:
    case Buffer::kSavedAttention:
    case Buffer::kLeftAttention:
    case Buffer::kMoveOut:
    case Buffer::kDHidden:
    case Buffer::kDMove:
    case Buffer::kTally:
    case Buffer::kGuest:
    case Buffer::kGuestGrad:
    case Buffer::kRouting:
    case Buffer::kQkv:
    case Buffer::kSavedProjection:
    case Buffer::kHeads:
    case Buffer::kSavedScores:
    case Buffer::kContext:
    case Buffer::kAttended:
    case Buffer::kDAttended:
    case Buffer::kDContext:
    case Buffer::kDHeads:
    case Buffer::kDQkv:
    case Buffer::kDInput:
      return take_of_layer(key.buffer(), layer(key.layer(), m));
    case Buffer::kSavedExperts:
    case Buffer::kLeftExperts:
    case Buffer::kRows:
    case Buffer::kOut:
    case Buffer::kReturned:
    case Buffer::kDOut:
    case Buffer::kDRows:
    case Buffer::kDSend:
      return take_of_chunk(key.buffer(), chunk(key.layer(), m, key.chunk()));
    case Buffer::kCounts:
      return take_all(microbatch(m).counts);
    case Buffer::kBalance:
      return take_all(microbatch(m).balance);
    case Buffer::kHostHidden:
      return take_all(saved(key.layer(), m, key.piece()).tensors);
    case Buffer::kLoad:  // the counts are small, and read after the step
      return take_all(chunk(key.layer(), m, key.chunk()).picks);
    case Buffer::kGuestTurn:
    case Buffer::kGrad:  // these four live as long as the device, unless they visit it
    case Buffer::kNorm:
    case Buffer::kFigures:
    case Buffer::kParams:
    case Buffer::kPublished:
    case Buffer::kTaken:
    case Buffer::kWeights:  // in the store
    case Buffer::kSlot:
      break;
  }
  return nullptr;
}

namespace {

template <class Check>
void check_team(const LayerSlot& l, const Check& check) {
  check(l.team.qkv.q.defined(), "qkv");
  check(l.team.projection != nullptr, "saved_projection");
  check(l.team.heads.q.defined(), "heads");
  check(l.team.scores != nullptr, "saved_scores");
  check(l.team.context.defined(), "context");
  check(l.attended.defined(), "attended");
  check(l.d_attended.defined(), "d_attended");
  check(l.team.d_context.defined(), "d_context");
  check(l.team.d_heads.q.defined(), "d_heads");
  check(l.team.d_qkv.q.defined(), "d_qkv");
  check(l.d_input.defined(), "d_input");
}

}  // namespace

std::vector<std::string> Slots::held() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const LayerSlot& l = layers_[i];
    const std::string at =
        fmt::format(" of layer {} microbatch {}", static_cast<i32>(i) / num_microbatches_ - 1,
                    static_cast<i32>(i) % num_microbatches_);
    const auto check = [&](bool holds, const char* name) {
      if (holds) names.push_back(name + at);
    };
    check(l.hidden.defined(), "hidden");
    check_team(l, check);
    check(l.residual.defined(), "residual");
    check(l.send.defined(), "send");
    check(l.topk.defined() || l.weights.defined() || l.owner_TK.defined(), "routing");
    check(l.tally != nullptr, "tally");
    check(l.guests.down.defined(), "guest");
    check(!l.guest_grads.empty(), "guest_grad");
    check(l.graph != nullptr, "saved_attention");
    check(l.left != nullptr, "left_attention");
    check(l.move_out.defined(), "move_out");
    check(l.d_hidden.defined(), "d_hidden");
    check(l.d_move.defined(), "d_move");
    for (const ChunkSlot& k : l.chunks) {
      check(k.routed.begins.defined() || !k.routed.send.empty(), "send index");
      check(k.rows.defined(), "rows");
      check(k.saved != nullptr || k.guests_saved != nullptr, "saved_experts");
      check(k.left != nullptr || k.guests_left != nullptr, "left_experts");
      check(k.out.defined(), "out");
      check(!k.returned.empty(), "returned");
      check(k.d_out.defined(), "d_out");
      check(k.d_rows.defined(), "d_rows");
      check(!k.d_send.empty(), "d_send");
    }
  }
  for (const SavedSlot& saved : saved_) {
    if (!saved.tensors.empty()) names.emplace_back("host_hidden of a device");
  }
  for (std::size_t m = 0; m < microbatches_.size(); ++m) {
    if (microbatches_[m].counts.defined()) names.push_back(fmt::format("counts of microbatch {}", m));
    if (microbatches_[m].balance.defined()) names.push_back(fmt::format("balance of microbatch {}", m));
  }
  return names;
}

void Slots::clear() {
  for (LayerSlot& slot : layers_) {
    const std::size_t chunks = slot.chunks.size();
    slot = {};
    slot.chunks.resize(chunks);
  }
  for (MicrobatchSlot& slot : microbatches_) slot = {};
  for (SavedSlot& slot : saved_) slot = {};
}

}  // namespace hetermoe
