#pragma once
#include <ATen/ATen.h>

#include <mutex>
#include <vector>

#include "hetermoe/cost/cost_model.h"
#include "hetermoe/nn/optimizer.h"
#include "hetermoe/nn/router_training.h"

namespace hetermoe {

/// Hears what the routers of a step choose. Called on lane threads, several at the same time.
class RouteSink {
 public:
  virtual ~RouteSink() = default;
  /// Takes the choices of tokens first, first + 1, ... of the step: whole sequences, in a team any tokens.
  /// topk_TK: int64 expert ids; weights_TK: their routing weights. Both are on the device that computed them
  /// and stay as they are; on a GPU they may not be computed yet.
  virtual void take(i32 layer, i64 first, const at::Tensor& topk_TK, const at::Tensor& weights_TK) = 0;
};

/// The input of one optimizer step.
struct StepInput {
  i64 step = 0;          ///< optimizer step, for messages and the learning rate
  at::Tensor tokens;     ///< int64 [sequences of the step, seq_len]
  at::Tensor targets;    ///< int64, same shape; -100 = not counted
  i64 target_count = 0;  ///< counted targets of the whole step
  double learning_rate = 0;
  double max_grad_norm = 0;  ///< 0 = no clipping
  double loss_scale = 1;     ///< factor on all gradients of the backward pass, taken out in the update
  AdamwOptions adamw;
  RouteSink* routes = nullptr;  ///< null = none
  /// Routing replay: [num_layers] integers [sequences of the step, seq_len, K] on the CPU, the experts that
  /// are taken in place of the routers' choices; a token whose ids are -1 chooses itself. Weights and
  /// gradients are those of the current scores. Empty = routers choose; undefined in dense layers.
  std::vector<at::Tensor> choices = {};
  /// Masked documents: int64 [sequences of the step, seq_len] on the CPU, 1 where a document begins; its
  /// tokens attend to nothing from before it. Undefined = sequences are not divided.
  at::Tensor starts = {};
  RouterTraining router = {};
};

/// The results of a step that every device has.
struct StepResult {
  double loss = 0;       ///< cross entropy, mean over counted targets (a sum over targets when forward only)
  double aux_loss = 0;   ///< load-balancing loss and z-loss, coefficients included
  double grad_norm = 0;  ///< before clipping
  bool updated = true;   ///< false: loss or gradients were NaN or infinite, and nothing was changed
  at::Tensor counts_LE;  ///< int64 copies that were chosen per layer and expert; zero rows for dense layers
  at::Tensor dropped_L;  ///< int64 those of them for which their experts had no room; undefined forward only
  /// Relative rms error of what travels in fewer bits, of the first tensor that a device sends so; the
  /// largest of this process's devices. 0 = nothing travels so.
  double rows_error = 0, gradients_error = 0;
  Seconds step = 0;        ///< end of the last span, in the clock's seconds
  double cpu_seconds = 0;  ///< processor time of all lane threads
};

}  // namespace hetermoe
