#pragma once
#include <string>
#include <vector>

#include "hetermoe/data/sampler.h"
#include "hetermoe/train/job/job.h"
#include "hetermoe/train/session/session.h"

namespace hetermoe {

/// One tensor's distance from the reference.
struct GradientError {
  std::string name;
  double error = 0;  ///< max|a - b| / max(max|b|, 1e-6 * largest gradient)
};

struct VerifyResult {
  double loss = 0, reference_loss = 0;   ///< auxiliary loss included
  double loss_error = 0;                 ///< relative
  std::vector<GradientError> gradients;  ///< worst first
  std::vector<std::string> missing;      ///< gradients that only one side has
  double tolerance = 1e-10;
  bool passed() const;
};

/// Runs one step of the job's plan in fp64 and compares the loss and every gradient with the single-device
/// reference, which is computed on the CPU; the plan runs where run.device says. The job's batch is taken as
/// it is; reduce train.sequences and seq_len for big models. With routing.replay both take its choices.
VerifyResult verify_plan(const Job& job, const ModelConfig& model, const Cluster& cluster, Plan plan,
                         const Batch& batch);

/// A step of a run, computed again.
struct ReplayResult {
  i64 step = 0, from = 0;          ///< computed from the checkpoint after step `from`, 0 = from the start
  double loss = 0, grad_norm = 0;  ///< as computed now
  double recorded_loss = 0, recorded_grad_norm = 0;  ///< as metrics.jsonl of the run has them
  bool passed() const { return loss == recorded_loss && grad_norm == recorded_grad_norm; }
};

/// Repeats step `step` (1 = the first) of the run that is in the job's output folder, from its newest
/// checkpoint before that step. Throws IoError or InputError when the run did not leave what that needs.
ReplayResult replay_step(const Job& job, const ModelConfig& model, const Cluster& cluster, Plan plan,
                         const Dataset& data, i64 step);

/// Values by name as a model without adapters has them: W + scale B A in place of each matrix W with
/// adapters, and no adapters. lora: null = there are none.
TensorsByName with_merged(const TensorsByName& values, const Lora* lora);
/// Adds the gradients of adapters with these values, which follow from those of the merged matrices.
void add_adapter_gradients(TensorsByName& grads, const TensorsByName& values, const Lora& lora);

/// max|a - b| / max(max|b|, floor).
double relative_error(const at::Tensor& a, const at::Tensor& b, double floor);

}  // namespace hetermoe
