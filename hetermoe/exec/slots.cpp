#include "hetermoe/exec/slots.h"

namespace hetermoe {

Slots::Slots(i32 num_layers, i32 num_microbatches, i32 num_chunks)
    : num_layers_(num_layers),
      num_microbatches_(num_microbatches),
      layers_(static_cast<std::size_t>((num_layers + 2) * num_microbatches)),
      microbatches_(static_cast<std::size_t>(num_microbatches)) {
  for (LayerSlot& slot : layers_) slot.chunks.resize(static_cast<std::size_t>(num_chunks));
}

void Slots::free(Buffer buffer, i32 layer_index, i32 m, i32 c) {
  if (buffer == Buffer::kGrad || buffer == Buffer::kNorm || outlives_step(buffer))
    return;                             // live as long as the device
  if (buffer == Buffer::kLoad) return;  // small, and read after the step
  if (buffer == Buffer::kCounts) {
    microbatch(m).counts.reset();
    return;
  }
  if (buffer == Buffer::kBalance) {
    microbatch(m).balance.reset();
    return;
  }
  LayerSlot& l = layer(layer_index, m);
  ChunkSlot& k = l.chunks[static_cast<std::size_t>(c)];
  switch (buffer) {
    case Buffer::kHidden:
      l.hidden.reset();
      break;
    case Buffer::kResidual:
      l.residual.reset();
      break;
    case Buffer::kSend:
      l.send.reset();
      break;
    case Buffer::kRouting:
      l.topk.reset();
      l.weights.reset();
      for (ChunkSlot& chunk : l.chunks) chunk.send.clear();
      break;
    case Buffer::kSavedAttention:
      l.graph.reset();
      break;
    case Buffer::kRows:
      k.rows.reset();
      k.weights.reset();
      k.groups = {};
      break;
    case Buffer::kSavedExperts:
      k.saved.reset();
      break;
    case Buffer::kOut:
      k.out.reset();
      break;
    case Buffer::kReturned:
      k.returned.clear();
      break;
    case Buffer::kMoveOut:
      l.move_out.reset();
      break;
    case Buffer::kDHidden:
      l.d_hidden.reset();
      break;
    case Buffer::kDOut:
      k.d_out.reset();
      break;
    case Buffer::kDRows:
      k.d_rows.reset();
      k.d_weights.reset();
      break;
    case Buffer::kDSend:
      k.d_send.clear();
      k.d_send_weights.clear();
      break;
    case Buffer::kDMove:
      l.d_move.reset();
      break;
    default:
      break;
  }
}

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
    check(l.residual.defined(), "residual");
    check(l.send.defined(), "send");
    check(l.topk.defined() || l.weights.defined(), "routing");
    check(l.graph != nullptr, "saved_attention");
    check(l.move_out.defined(), "move_out");
    check(l.d_hidden.defined(), "d_hidden");
    check(l.d_move.defined(), "d_move");
    for (const ChunkSlot& k : l.chunks) {
      check(!k.send.empty(), "send index");
      check(k.rows.defined(), "rows");
      check(k.saved != nullptr, "saved_experts");
      check(k.out.defined(), "out");
      check(!k.returned.empty(), "returned");
      check(k.d_out.defined(), "d_out");
      check(k.d_rows.defined(), "d_rows");
      check(!k.d_send.empty(), "d_send");
    }
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
}

}  // namespace hetermoe
