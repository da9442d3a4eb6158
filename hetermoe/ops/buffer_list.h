#pragma once

// Every buffer, in one list for each shape of its key. A line has:
//   the enumerator of Buffer; the name in texts, which hashes are made of, so the order may change;
//   what it holds in its slot (Holds): for kTensor and kTensors the slot has a member of that name;
//   its lifetime; as what memory it counts; its size on a device, a function of buffers.cpp or nullptr, which
//   means a few numbers, a right to a place, or part of a state; what it is.

#define HM_BUFFERS_OF_STEP(X)                                                     \
  X(kNorm, norm, kNothing, kStep, kInFlight, nullptr, "the global gradient norm") \
  X(kFigures, figures, kNothing, kStep, kInFlight, nullptr, "losses that a device tells in norm")

#define HM_BUFFERS_OF_MICROBATCH(X)                                                           \
  X(kCounts, counts, kTensor, kStep, kInFlight, counts,                                       \
    "copies of each expert: int64 [sequences of the microbatch, parts of the loss, experts]") \
  X(kBalance, balance, kTensor, kStep, kInFlight, balance,                                    \
    "gradient of the load-balancing loss: [sequences of the microbatch, parts of the loss, experts]")

// Layer -1 is the embedding, num_layers the head.
#define HM_BUFFERS_OF_LAYER(X)                                                                         \
  X(kHidden, hidden, kTensor, kStep, kSaved, rows_of_tokens,                                           \
    "input of a layer or of the head; the saved input that backward starts from")                      \
  X(kQkv, qkv, kOther, kStep, kInFlight, qkv,                                                          \
    "in a team: queries, keys and values of own tokens, all heads")                                    \
  X(kSavedProjection, saved_projection, kOther, kStep, kSaved, saved_projection,                       \
    "in a team: activations up to these")                                                              \
  X(kAttended, attended, kTensor, kStep, kSaved, attended,                                             \
    "in a team: the same by tokens; backward starts from it, too: [own tokens, all heads * width]")    \
  X(kDAttended, d_attended, kTensor, kStep, kInFlight, attended, "its gradient")                       \
  X(kDQkv, d_qkv, kOther, kStep, kInFlight, qkv, "in a team: gradients of these, of own tokens")       \
  X(kDInput, d_input, kTensor, kStep, kInFlight, rows_of_tokens,                                       \
    "in a team: gradient of the layer's input, of all that comes after the attention kernel")          \
  X(kResidual, residual, kTensor, kStep, kInFlight, residual,                                          \
    "residual stream after the attention part, until the expert rows are added")                       \
  X(kSend, send, kTensor, kStep, kInFlight, send, "normed rows that dispatch sends")                   \
  X(kRouting, routing, kOther, kStep, kSaved, routing,                                                 \
    "top-k choice and weights, kept until attention.B; tables of what a source sends")                 \
  X(kSavedAttention, saved_attention, kOther, kStep, kSaved, saved_attention,                          \
    "activations of the attention part (recompute off, or made by attention.R)")                       \
  X(kLeftAttention, left_attention, kOther, kStep, kSaved, left_attention,                             \
    "what attention.B leaves for attention.W: inputs of products, gradients of results")               \
  X(kMoveOut, move_out, kTensor, kStep, kInFlight, move_out, "merged rows before a move")              \
  X(kDHidden, d_hidden, kTensor, kStep, kInFlight, rows_of_tokens,                                     \
    "gradient of a layer's output, or of the embedding's, on the attention devices")                   \
  X(kDMove, d_move, kTensor, kStep, kInFlight, rows_of_tokens, "gradient rows before a backward move") \
  X(kTally, tally, kOther, kStep, kInFlight, nullptr,                                                  \
    "who computes how many copies of an exchange, on its sources, and on its owners where they lend "  \
    "experts")                                                                                         \
  X(kGuest, guest, kOther, kStep, kWeights, guest,                                                     \
    "weights of experts that are lent to an owner for an exchange")                                    \
  X(kGuestGrad, guest_grad, kOther, kStep, kGradients, guest_gradients, "gradients of these experts")

// Of a chunk of rows or, in a team, of a part of the heads (Plan::head_parts).
#define HM_BUFFERS_OF_CHUNK(X)                                                                  \
  X(kHeads, heads, kOther, kStep, kInFlight, heads,                                             \
    "in a team: queries, keys and values of own heads, of all tokens of the team")              \
  X(kSavedScores, saved_scores, kOther, kStep, kSaved, saved_scores,                            \
    "in a team: these, and what the attention kernel made of them")                             \
  X(kContext, context, kTensor, kStep, kInFlight, context,                                      \
    "in a team: output of the attention kernel: [tokens of the team, own heads * width]")       \
  X(kDContext, d_context, kTensor, kStep, kInFlight, context, "its gradient")                   \
  X(kDHeads, d_heads, kOther, kStep, kInFlight, heads,                                          \
    "gradients of queries, keys and values, by own heads")                                      \
  X(kLoad, load, kOther, kStep, kInFlight, load,                                                \
    "counts of an exchange: dispatch.F tells all participants, the other transfers reuse them") \
  X(kRows, rows, kOther, kStep, kSaved, received,                                               \
    "received rows and routing weights on an expert owner; the saved input of experts.B")       \
  X(kSavedExperts, saved_experts, kOther, kStep, kSaved, saved_experts,                         \
    "activations of the experts (recompute off, or made by experts.R)")                         \
  X(kLeftExperts, left_experts, kOther, kStep, kSaved, left_experts,                            \
    "what experts.B leaves for experts.W: gradients of gate and up, inner activations")         \
  X(kOut, out, kTensor, kStep, kInFlight, owner_rows, "weighted rows an owner returns")         \
  X(kReturned, returned, kTensors, kStep, kInFlight, returned,                                  \
    "rows that came back to the attention device, as RoutedCopies::tokens_back()")              \
  X(kDOut, d_out, kTensor, kStep, kInFlight, owner_rows, "gradient rows on an owner")           \
  X(kDRows, d_rows, kOther, kStep, kInFlight, owner_gradients,                                  \
    "gradients of rows and routing weights that an owner returns")                              \
  X(kDSend, d_send, kOther, kStep, kInFlight, source_gradients,                                 \
    "those gradients back on the attention device")

#define HM_BUFFERS_OF_PIECE(X) \
  X(kHostHidden, host_hidden, kOther, kStep, kSaved, on_host, "hidden or rows of a device on its host")

// Their tensors are in the store of the place.
#define HM_BUFFERS_OF_STATE(X)                                                            \
  X(kGrad, grad, kNothing, kSteps, kGradients, visiting_gradients, "gradient of a state") \
  X(kParams, params, kNothing, kAlways, kInFlight, nullptr, "parameters of a state")      \
  X(kPublished, published, kNothing, kAlways, kInFlight, nullptr,                         \
    "of a state that is updated a step late: the parameters that devices fetch")          \
  X(kTaken, taken, kNothing, kSteps, kInFlight, nullptr,                                  \
    "of such a state, and of gathered ones: summed gradients, until the update")          \
  X(kWeights, weights, kNothing, kSteps, kWeights, visiting_weights,                      \
    "parameters of a state that visit the device, or are gathered there")

#define HM_BUFFERS_OF_SLOT(X) X(kSlot, slot, kNothing, kSteps, kInFlight, nullptr, "the place of a visit")

#define HM_BUFFERS_OF_TURN(X) \
  X(kGuestTurn, guest_turn, kNothing, kStep, kInFlight, nullptr, "the right to have guests")

#define HM_BUFFERS(X)         \
  HM_BUFFERS_OF_STEP(X)       \
  HM_BUFFERS_OF_MICROBATCH(X) \
  HM_BUFFERS_OF_LAYER(X)      \
  HM_BUFFERS_OF_CHUNK(X)      \
  HM_BUFFERS_OF_PIECE(X)      \
  HM_BUFFERS_OF_STATE(X)      \
  HM_BUFFERS_OF_SLOT(X)       \
  HM_BUFFERS_OF_TURN(X)
