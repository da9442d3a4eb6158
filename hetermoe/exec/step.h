#pragma once
#include <ATen/ATen.h>

#include <mutex>
#include <vector>

#include "hetermoe/cost/cost_model.h"
#include "hetermoe/nn/optimizer.h"

namespace hetermoe {

/// What one optimizer step works on.
struct StepInput {
  i64 step = 0;          ///< optimizer step, for messages and the learning rate
  at::Tensor tokens;     ///< int64 [sequences of the step, seq_len]
  at::Tensor targets;    ///< int64, same shape; -100 = not counted
  i64 target_count = 0;  ///< counted targets of the whole step
  double learning_rate = 0;
  double max_grad_norm = 0;  ///< 0 = no clipping
  double loss_scale = 1;     ///< factor on all gradients of the backward pass, taken out in the update
  AdamwOptions adamw;
};

/// What every device knows after the step.
struct StepResult {
  double loss = 0;       ///< cross entropy, mean over counted targets (a sum over targets when forward only)
  double aux_loss = 0;   ///< load-balancing loss, coefficient included
  double grad_norm = 0;  ///< before clipping
  bool updated = true;   ///< false: loss or gradients were NaN or infinite, and nothing was changed
  at::Tensor counts_LE;  ///< int64 copies per layer and expert; zero rows for dense layers
  Seconds step = 0;      ///< end of the last span, in the clock's seconds
  double cpu_seconds = 0;  ///< processor time of all lane threads
};

}  // namespace hetermoe
