#pragma once
#include <ATen/ATen.h>

#include <array>
#include <memory>
#include <vector>

#include "hetermoe/device/stream.h"
#include "hetermoe/exec/decided_split.h"
#include "hetermoe/nn/attention_part.h"
#include "hetermoe/nn/experts.h"
#include "hetermoe/nn/routing.h"
#include "hetermoe/nn/team_attention.h"
#include "hetermoe/ops/buffers.h"
#include "hetermoe/placement/routing_load.h"

namespace hetermoe {

// The members of a slot that follow from a list of ops/buffer_list.h, and what visit() says of them.
#define HM_MEMBER_kNothing(name)
#define HM_MEMBER_kTensor(name) at::Tensor name;
#define HM_MEMBER_kTensors(name) std::vector<at::Tensor> name;
#define HM_MEMBER_kOther(name)
#define HM_MEMBER(buffer, name, holds, ...) HM_MEMBER_##holds(name)
#define HM_VISIT_kNothing(buffer, name)
#define HM_VISIT_kTensor(buffer, name) visitor(Buffer::buffer, name);
#define HM_VISIT_kTensors(buffer, name) visitor(Buffer::buffer, name);
#define HM_VISIT_kOther(buffer, name)
#define HM_VISIT(buffer, name, holds, ...) HM_VISIT_##holds(buffer, name)

// visit() of a slot calls visitor(buffer, members...) for each buffer whose row says that it holds something.
// What holds more than one member of tensors is named there. visit() itself reads no member: other lanes use
// other members at the same time.

/// Buffers of a step on one device.
struct StepSlot {
  HM_BUFFERS_OF_STEP(HM_MEMBER)

  template <class Visitor>
  void visit([[maybe_unused]] Visitor&& visitor) {
    HM_BUFFERS_OF_STEP(HM_VISIT)
  }
};

/// Buffers of one microbatch on one device.
struct MicrobatchSlot {
  HM_BUFFERS_OF_MICROBATCH(HM_MEMBER)

  template <class Visitor>
  void visit(Visitor&& visitor) {
    HM_BUFFERS_OF_MICROBATCH(HM_VISIT)
  }
};

/// Buffers of one chunk of rows, or part of a team's heads, of one layer and microbatch on one device.
/// Vectors over owners or sources follow the order of the owners (ascending) and of the shares row.
struct ChunkSlot {
  HM_BUFFERS_OF_CHUNK(HM_MEMBER)
  TokenHeads heads, d_heads;          // kHeads, kDHeads: [tokens of the team, own heads of the part, *]
  std::shared_ptr<PartGraph> scores;  // kSavedScores
  RoutedCopies routed;                // kRouting
  ExchangeLoad load;                  // counts of this exchange, known everywhere after dispatch.F
  std::vector<i64> offsets;           // of an owner: [slots + 1] copies of each slot, known then
  at::Tensor rows, weights;           // kRows: received rows; routing weights in grouped order
  CopyGroups away_groups;             // while kRows are on the host: numbers, and shapes (meta tensors)
  std::vector<at::Tensor> away;       // likewise of all that went there
  CopyGroups groups;                  // kRows
  std::unique_ptr<ExpertsSaved> saved, guests_saved;  // kSavedExperts
  std::unique_ptr<ExpertsLeft> left, guests_left;     // kLeftExperts
  at::Tensor d_rows, d_weights;                       // kDRows
  std::vector<at::Tensor> d_send;                     // kDSend, as RoutedCopies::tokens_back()
  std::vector<at::Tensor> d_send_weights;             // kDSend, by owner
  // Where rows go by nodes, by source. Inside an op what came straight or is to be passed on: of dispatch and
  // combine, to owners and back, which may be at work at the same time. From dispatch on which of the rows
  // that were passed on each owner of the node has got (kLoad).
  std::array<std::vector<std::vector<at::Tensor>>, 4> passing;
  std::vector<std::vector<at::Tensor>> picks;

  template <class Visitor>
  void visit(Visitor&& visitor) {
    HM_BUFFERS_OF_CHUNK(HM_VISIT)
    visitor(Buffer::kHeads, heads);
    visitor(Buffer::kSavedScores, scores);
    visitor(Buffer::kDHeads, d_heads);
    visitor(Buffer::kLoad, picks);  // the counts are small, and read after the step
    visitor(Buffer::kRows, rows, weights, groups);
    visitor(Buffer::kSavedExperts, saved, guests_saved);
    visitor(Buffer::kLeftExperts, left, guests_left);
    visitor(Buffer::kDRows, d_rows, d_weights);
    visitor(Buffer::kDSend, d_send, d_send_weights);
  }
};

/// Tensors that the devices of a team hold between the ops of an attention part.
struct TeamSlot {
  TokenHeads qkv;                         // kQkv: [own tokens, all heads, *]
  std::shared_ptr<PartGraph> projection;  // kSavedProjection
  TokenHeads d_qkv;                       // kDQkv
};

/// Buffers of one layer (-1 the embedding, num_layers the head) and microbatch on one device.
struct LayerSlot {
  HM_BUFFERS_OF_LAYER(HM_MEMBER)
  at::Tensor away;  // shape of kHidden (a meta tensor) while it is on the host
  TeamSlot team;
  at::Tensor topk, weights;  // kRouting
  // kRouting where results go to the next layer (ops/next_routing.h): owner of each choice, -1 = none; at a
  // source also the rows of its segments, int32 [chunks * segments * owners].
  at::Tensor owner_TK, next_CSO;
  std::shared_ptr<AttentionGraph> graph;  // kSavedAttention
  std::shared_ptr<AttentionLeft> left;    // kLeftAttention
  std::unique_ptr<DecidedSplit> tally;    // kTally
  ExpertSlab guests;                      // kGuest: experts that are lent to this device, without gradients
  std::vector<at::Tensor> guest_grads;    // kGuestGrad: of gate_up and down
  std::vector<ChunkSlot> chunks;

  /// Without what the chunks name themselves.
  template <class Visitor>
  void visit(Visitor&& visitor) {
    HM_BUFFERS_OF_LAYER(HM_VISIT)
    visitor(Buffer::kQkv, team.qkv);
    visitor(Buffer::kSavedProjection, team.projection);
    visitor(Buffer::kDQkv, team.d_qkv);
    visitor(Buffer::kRouting, topk, weights, owner_TK, next_CSO);
    for (ChunkSlot& chunk : chunks) visitor(Buffer::kRouting, chunk.routed);
    visitor(Buffer::kSavedAttention, graph);
    visitor(Buffer::kLeftAttention, left);
    visitor(Buffer::kTally, tally);
    visitor(Buffer::kGuest, guests);
    visitor(Buffer::kGuestGrad, guest_grads);
  }
};

/// Activations of a device that wait on its host (kHostHidden).
struct SavedSlot {
  HM_BUFFERS_OF_PIECE(HM_MEMBER)
  std::vector<at::Tensor> tensors;
  ExchangeLoad load;  // of rows: the counts of their exchange

  template <class Visitor>
  void visit(Visitor&& visitor) {
    HM_BUFFERS_OF_PIECE(HM_VISIT)
    visitor(Buffer::kHostHidden, tensors);
  }
};

/// All buffers of a step on one device, preallocated as empty slots: lanes touch different slots and need no
/// lock.
class Slots {
 public:
  /// num_saved: of a host, Placement::num_saved_pieces().
  Slots(i32 num_layers, i32 num_microbatches, i32 num_chunks, i32 num_saved = 0);

  LayerSlot& layer(i32 layer, i32 microbatch) {
    return layers_[static_cast<std::size_t>((layer + 1) * num_microbatches_ + microbatch)];
  }
  ChunkSlot& chunk(i32 l, i32 microbatch, i32 chunk) {
    return layer(l, microbatch).chunks[static_cast<std::size_t>(chunk)];
  }
  SavedSlot& saved(i32 l, i32 microbatch, i32 piece) {
    return saved_[static_cast<std::size_t>((l * num_microbatches_ + microbatch) * num_saved_ + piece)];
  }
  StepSlot& step() { return step_; }
  MicrobatchSlot& microbatch(i32 m) { return microbatches_[static_cast<std::size_t>(m)]; }

  /// Takes one buffer of the access table out of its place. The result holds its memory.
  Released take(const BufferKey& key);
  /// Names of the buffers that still hold tensors; empty after a clean step.
  std::vector<std::string> held();
  /// Drops everything (after an error).
  void clear();

 private:
  i32 num_layers_, num_microbatches_, num_saved_;
  StepSlot step_;
  std::vector<LayerSlot> layers_;
  std::vector<MicrobatchSlot> microbatches_;
  std::vector<SavedSlot> saved_;
};

#undef HM_MEMBER
#undef HM_MEMBER_kNothing
#undef HM_MEMBER_kTensor
#undef HM_MEMBER_kTensors
#undef HM_MEMBER_kOther
#undef HM_VISIT
#undef HM_VISIT_kNothing
#undef HM_VISIT_kTensor
#undef HM_VISIT_kTensors
#undef HM_VISIT_kOther

}  // namespace hetermoe
