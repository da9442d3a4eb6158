#pragma once
#include "hetermoe/kernels/language.h"

namespace hetermoe::kernels {

/// Settings of the routers of all families.
struct RouterShape {
  i64 experts, top_k;
  i64 groups, kept_groups;  ///< kept_groups = 0: no groups
  i32 sigmoid;              ///< else softmax
  i32 two_best;             ///< a group counts by the sum of its two best, else by its best
  i32 normalizes;
  double floor, scale;  ///< of the weights: score / (sum + floor) * scale
};

/// Scores, choice, weights and counts of each token; a warp has a token. Among equals the lower expert is
/// taken. With `counts` null the choice is given.
struct Route {
  RouterShape shape;
  const void* logits;  ///< [tokens, experts]
  const void* bias;    ///< [experts] or null; for the choice alone
  void* scores;        ///< [tokens, experts]
  i64* topk;           ///< [tokens, top_k]
  void* weights;       ///< [tokens, top_k]
  i64* counts;         ///< [sequences, experts], zero before
  i64 tokens, length;  ///< of a sequence
  i64 team_bytes;      ///< of shared memory for each token under way
};

/// Gradient of the logits.
struct RouteBackward {
  RouterShape shape;
  const void* scores;
  const i64* topk;
  const void* dscores;   ///< or null
  const void* dweights;  ///< or null
  void* dlogits;
  i64 tokens;
};

}  // namespace hetermoe::kernels
