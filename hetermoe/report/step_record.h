#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/types.h"
#include "hetermoe/routing/layer_loads.h"
#include "hetermoe/routing/plan_figures.h"

namespace hetermoe {

/// Loss of the validation text, in nats per token.
struct Validation {
  struct OfSource {
    std::string name;
    double loss = 0;
  };
  i64 step = 0;
  double loss = 0;                ///< of all sources by their shares
  std::vector<OfSource> sources;  ///< where there are several
};

/// Figures of a step. metrics.h says which of them are written where.
struct StepRecord {
  i64 step = 0;  ///< 1 = the first
  double loss = 0, aux_loss = 0, grad_norm = 0, learning_rate = 0;
  double tokens_per_s = 0;                 ///< in the clock's seconds
  double expert_max_over_mean = 0;         ///< worst layer
  std::vector<LayerLoad> loads;            ///< of layers with experts
  i64 top_k = 0;                           ///< experts that a token sees, 0 = there are none
  StepRouting routing;                     ///< under the plan in force, means over layers
  u64 tokens_hash = 0;                     ///< of tokens and targets of the whole step
  std::optional<double> replayed_choices;  ///< share of the choices that came from routing.replay
  double attention_wait = 0,
         expert_wait = 0;  ///< share of the step in which a role's compute lanes do nothing
  Seconds step_s = 0;      ///< in the clock's seconds
  Seconds wall_s = 0;
  Bytes sent = 0, sent_between_nodes = 0;      ///< of tensors, between places of the plan
  double rows_error = 0, gradients_error = 0;  ///< see StepResult; the largest of all processes
  Bytes peak_memory = 0;                       ///< resident so far, of the largest process
  Bytes gpu_peak = 0;                          ///< most bytes of tensors so far on the fullest GPU, 0 on CPUs
  bool overflowed = false;                     ///< skipped for fp16 gradients, and the loss scale was lowered
  bool updated = true;                ///< false: loss or gradients were not finite, the step was skipped
  std::vector<std::string> warnings;  ///< what the run noticed of its own health in this step
  std::map<std::string, double> mfu;  ///< model FLOPs utilisation by type of device; empty = not known
  /// By name of device: the most bytes of tensors of the step, on a GPU of the run so far. Only where they
  /// are counted: on GPUs, and on CPUs in `train` under the virtual clock.
  std::map<std::string, Bytes> memory;
  bool owners_held = false;              ///< what the balancer chose before this step was not taken
  std::vector<std::string> marks;        ///< what changed before this step: another plan, more experts
  std::optional<Validation> validation;  ///< after this step
};

}  // namespace hetermoe
