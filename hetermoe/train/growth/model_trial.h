#pragma once
#include <memory>

#include "hetermoe/data/sampler.h"
#include "hetermoe/model/growth.h"
#include "hetermoe/train/job/job.h"
#include "hetermoe/train/session/session.h"
#include "hetermoe/weights/hf_weights.h"

namespace hetermoe {

/// Evaluates a model with given weights on batches of a job's data, by the job's plan in this process. Trains
/// nothing.
class ModelTrial {
 public:
  /// model: what computes; it may be another one than that of the weights where all tensors have the same
  /// shapes. Throws ConfigError.
  ModelTrial(const Job& job, const ModelConfig& model, const HfWeights& weights, const Dataset& data);
  ~ModelTrial();

  /// Cross entropy over `batches` batches, the first of which begins with sequence `first`: the mean over
  /// counted targets.
  double loss(i64 first, i64 batches);
  /// The gradient of the loss (load-balancing loss included) by every parameter, mean over the batches, in
  /// fp64 and on the CPU.
  TensorsByName mean_gradients(i64 first, i64 batches);

 private:
  StepInput input_of(i64 batch, i64 first) const;

  const Job& job_;
  const ModelConfig model_;
  Sampler sampler_;
  std::unique_ptr<Session> session_;
};

/// Which experts would gain most from copies.
enum class Utility {
  kGradient,  ///< squared norm of the mean gradient of all tensors of the expert
  kSaliency,  ///< norm of the weights times norm of that gradient
};

ExpertScores utility_scores(Utility utility, const HfWeights& weights, const ModelConfig& model,
                            const TensorsByName& gradients);

}  // namespace hetermoe
