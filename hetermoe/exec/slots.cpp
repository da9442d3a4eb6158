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

/// Takes the members of one buffer out of a slot that it visits.
struct Taker {
  Buffer buffer;
  Released taken = nullptr;

  template <class... Held>
  void operator()(Buffer of, Held&... held) {
    if (of != buffer) return;
    auto all = std::make_tuple(std::exchange(taken, nullptr), std::exchange(held, Held{})...);
    taken = std::make_shared<decltype(all)>(std::move(all));
  }
};

template <class Slot>
Released take_of(Slot& slot, Buffer buffer) {
  Taker taker{buffer};
  slot.visit(taker);
  return taker.taken;
}

// Whether a member of a slot holds tensors.
bool holds(const at::Tensor& tensor) { return tensor.defined(); }
bool holds(const TokenHeads& heads) { return heads.q.defined(); }
bool holds(const ExpertSlab& slab) { return slab.down.defined(); }
bool holds(const RoutedCopies& routed) { return routed.begins.defined() || !routed.send.empty(); }
bool holds(const CopyGroups& groups) { return groups.row_C.defined(); }
template <class T>
bool holds(const std::vector<T>& all) {
  return !all.empty();
}
template <class T>
bool holds(const std::shared_ptr<T>& held) {
  return held != nullptr;
}
template <class T>
bool holds(const std::unique_ptr<T>& held) {
  return held != nullptr;
}

}  // namespace

Released Slots::take(const BufferKey& key) {
  switch (key.shape()) {
    case KeyShape::kOfStep:
      return take_of(step_, key.buffer());
    case KeyShape::kOfMicrobatch:
      return take_of(microbatch(key.microbatch()), key.buffer());
    case KeyShape::kOfLayer:
      return take_of(layer(key.layer(), key.microbatch()), key.buffer());
    case KeyShape::kOfChunk:
      return take_of(chunk(key.layer(), key.microbatch(), key.chunk()), key.buffer());
    case KeyShape::kOfPiece:
      return take_of(saved(key.layer(), key.microbatch(), key.piece()), key.buffer());
    case KeyShape::kOfState:  // in the store, if it holds something
    case KeyShape::kOfSlot:
    case KeyShape::kOfTurn:
      break;
  }
  return nullptr;
}

std::vector<std::string> Slots::held() {
  std::vector<std::string> names;
  std::string at;
  const auto check = [&](Buffer buffer, const auto&... members) {
    if ((holds(members) || ...)) names.push_back(name_of(buffer) + at);
  };
  step_.visit(check);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    at = fmt::format(" of layer {} microbatch {}", static_cast<i32>(i) / num_microbatches_ - 1,
                     static_cast<i32>(i) % num_microbatches_);
    layers_[i].visit(check);
    for (ChunkSlot& chunk : layers_[i].chunks) chunk.visit(check);
  }
  at = " of a device";
  for (SavedSlot& saved : saved_) saved.visit(check);
  for (std::size_t m = 0; m < microbatches_.size(); ++m) {
    at = fmt::format(" of microbatch {}", m);
    microbatches_[m].visit(check);
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
  step_ = {};
}

}  // namespace hetermoe
