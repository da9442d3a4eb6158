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

/// Buffers of one chunk of one layer and microbatch on one device. Vectors over owners or sources follow the
/// order of the owners (ascending) and of the shares row.
struct ChunkSlot {
  RoutedCopies routed;           // kRouting
  ExchangeLoad load;             // counts of this exchange, known everywhere after dispatch.F
  std::vector<i64> offsets;      // of an owner: [slots + 1] copies of each slot, known then
  at::Tensor rows, weights;      // kRows: received rows; routing weights in grouped order
  CopyGroups away_groups;        // while kRows are on the host: numbers, and shapes (meta tensors)
  std::vector<at::Tensor> away;  // likewise of all that went there
  CopyGroups groups;             // kRows
  std::unique_ptr<ExpertsSaved> saved, guests_saved;  // kSavedExperts
  std::unique_ptr<ExpertsLeft> left, guests_left;     // kLeftExperts
  at::Tensor out;                                     // kOut
  std::vector<at::Tensor> returned;                   // kReturned, as RoutedCopies::tokens_back()
  at::Tensor d_out;                                   // kDOut
  at::Tensor d_rows, d_weights;                       // kDRows
  std::vector<at::Tensor> d_send;                     // kDSend, as RoutedCopies::tokens_back()
  std::vector<at::Tensor> d_send_weights;             // kDSend, by owner
  // Where rows go by nodes, by source. Inside an op what came straight or is to be passed on: of dispatch and
  // combine, to owners and back, which may be at work at the same time. From dispatch on which of the rows
  // that were passed on each owner of the node has got (kLoad).
  std::array<std::vector<std::vector<at::Tensor>>, 4> passing;
  std::vector<std::vector<at::Tensor>> picks;
};

/// Tensors that the devices of a team hold between the ops of an attention part.
struct TeamSlot {
  TokenHeads qkv;                         // kQkv: [own tokens, all heads, *]
  std::shared_ptr<PartGraph> projection;  // kSavedProjection
  TokenHeads heads;                       // kHeads: [tokens of the team, own heads, *]
  std::shared_ptr<PartGraph> scores;      // kSavedScores
  at::Tensor context;                     // kContext: [tokens of the team, own heads * width]
  at::Tensor d_context;                   // kDContext
  TokenHeads d_heads;                     // kDHeads
  TokenHeads d_qkv;                       // kDQkv
};

/// Buffers of one layer (-1 the embedding, num_layers the head) and microbatch on one device.
struct LayerSlot {
  at::Tensor hidden;  // kHidden
  at::Tensor away;    // its shape (a meta tensor) while it is on the host
  TeamSlot team;
  at::Tensor attended, d_attended;  // kAttended, kDAttended: [own tokens, all heads * width]
  at::Tensor d_input;               // kDInput
  at::Tensor residual;              // kResidual
  at::Tensor send;                  // kSend
  at::Tensor topk, weights;         // kRouting
  // kRouting where results go to the next layer (ops/next_routing.h): owner of each choice, -1 = none; at a
  // source also the rows of its segments, int32 [chunks * segments * owners].
  at::Tensor owner_TK, next_CSO;
  std::shared_ptr<AttentionGraph> graph;  // kSavedAttention
  std::shared_ptr<AttentionLeft> left;    // kLeftAttention
  std::unique_ptr<DecidedSplit> tally;    // kTally
  ExpertSlab guests;                      // kGuest: experts that are lent to this device, without gradients
  std::vector<at::Tensor> guest_grads;    // kGuestGrad: of gate_up and down
  at::Tensor move_out;                    // kMoveOut
  at::Tensor d_hidden;                    // kDHidden
  at::Tensor d_move;                      // kDMove
  std::vector<ChunkSlot> chunks;
};

/// Activations of a device that wait on its host (kHostHidden).
struct SavedSlot {
  std::vector<at::Tensor> tensors;
  ExchangeLoad load;  // of rows: the counts of their exchange
};

/// Buffers of one microbatch on one device.
struct MicrobatchSlot {
  at::Tensor counts;   // kCounts: int64 [sequences of the microbatch, parts of the loss, experts]
  at::Tensor balance;  // kBalance: [sequences of the microbatch, parts of the loss, experts]
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
  MicrobatchSlot& microbatch(i32 m) { return microbatches_[static_cast<std::size_t>(m)]; }

  /// Takes one buffer of the access table out of its place. The result holds its memory.
  Released take(const BufferKey& key);
  /// Names of the buffers that still hold tensors; empty after a clean step.
  std::vector<std::string> held() const;
  /// Drops everything (after an error).
  void clear();

 private:
  i32 num_layers_, num_microbatches_, num_saved_;
  std::vector<LayerSlot> layers_;
  std::vector<MicrobatchSlot> microbatches_;
  std::vector<SavedSlot> saved_;
};

}  // namespace hetermoe
