#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "hetermoe/model/growth.h"
#include "hetermoe/train/checkpoint/checkpoint.h"
#include "hetermoe/train/growth/model_trial.h"
#include "hetermoe/train/job/job.h"

// Scores of experts before growth, and losses of the model, from data and weights.
namespace hetermoe {

/// The model that grows, its weights, and the run that it comes from, if it does.
struct GrowthSource {
  ModelConfig model;
  std::filesystem::path weights;
  std::optional<FoundCheckpoint> checkpoint;
};

/// Batches of a job's data, by which models are looked at.
class GrowthData {
 public:
  /// The first batch begins with sequence `first`. Throws ConfigError when the data do not fit the model.
  GrowthData(Job job, const ModelConfig& model, i64 first, i64 batches);
  /// Loss of a model that computes on the weights in a folder, which are those of `stored`.
  double loss(const ModelConfig& model, const std::filesystem::path& weights,
              const ModelConfig& stored) const;
  TensorsByName mean_gradients(const GrowthSource& source) const;
  /// Right after a growth without noise, on the weights of the source: its routers choose among instances,
  /// and each chosen instance counts as its expert. On one device, in fp64 where the job's plan is, else
  /// fp32.
  double loss_of_instances(const GrowthSource& source, const Growth& growth) const;

 private:
  std::unique_ptr<ModelTrial> trial(const ModelConfig& model, const std::filesystem::path& weights,
                                    const ModelConfig& stored) const;
  Job job_;
  Dataset data_;
  i64 first_, batches_;
};
using MakeGrowthData = std::function<GrowthData()>;

/// By what experts are chosen for copies.
struct ScoreChoice {
  GrowthScore score = GrowthScore::kUniform;
  std::string counts = {};  ///< a routing trace, of kLoad
  u64 seed = 1;             ///< of kRandom
};

/// Scores of all experts, empty for kUniform. Throws ConfigError, InputError or IoError.
ExpertScores growth_scores(const ScoreChoice& choice, const GrowthSource& source, const MakeGrowthData& data);

/// Losses around a growth.
struct GrowthLoss {
  double before = 0, after = 0;
  std::optional<double> predicted = {};  ///< on the weights of the source; none in mode random
};
/// grown: the folder with the grown weights.
GrowthLoss measure_growth(const GrowthData& data, const GrowthSource& source, const Growth& growth,
                          const std::filesystem::path& grown);

}  // namespace hetermoe
