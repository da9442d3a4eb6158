#pragma once
#include <ATen/ATen.h>

#include "hetermoe/model/model_config.h"

// Settings of training for routers, beside the load-balancing loss. All of them depend on tokens and
// sequences and never on the plan, so every plan and any number of processes compute the same.
namespace hetermoe {

struct RouterTraining {
  double z_loss = 0;           ///< coefficient of the z-loss, 0 = none
  double jitter = 0;           ///< inputs of routers are multiplied by 1 - jitter to 1 + jitter, 0 = none
  double capacity_factor = 0;  ///< an expert takes so many times its even share of each sequence, 0 = all
  // The jitter (router_jitter.h) is drawn from these, the layer, and the sequence's index in the data:
  u64 seed = 0;
  i64 step = 0;
  i64 first_sequence = 0;  ///< index in the data of the step's first sequence
};

/// Tokens of a sequence that an expert takes: factor * tokens * top_k / experts, rounded up.
i64 expert_capacity(const ModelConfig& model, double factor, i64 seq_len);

/// The choices [T, K] of whole sequences, -1 in place of those that find their expert full: of each sequence
/// the first `capacity` tokens are taken.
at::Tensor within_capacity(const at::Tensor& topk_TK, i64 seq_len, i64 capacity);

}  // namespace hetermoe
