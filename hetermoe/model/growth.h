#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/enum_count.h"
#include "hetermoe/model/model_config.h"

// Growth of experts: a model goes on with copies of its experts beside them. Which experts are copied, what
// their numbers are and what becomes of the config; the tensors follow in weights/upcycle.h.
namespace hetermoe {

/// How the router chooses from E' = m E experts, after it chose K of E.
enum class GrowthMode {
  kFixedK,   ///< it chooses K: the same work for a token; the loss jumps
  kWideK,    ///< it chooses m K: the same function, m times the work
  kDormant,  ///< it chooses K; copies get no token until balancing by the router's bias wakes them
  kRandom,   ///< it chooses K; new experts and their router rows are drawn and no copies: the control
};
template <>
struct EnumNames<GrowthMode> {
  static const std::vector<std::string>& names() {
    static const std::vector<std::string> all =
        names_of_all<GrowthMode>({"fixed-k", "wide-k", "dormant", "random"});
    return all;
  }
};

/// How the optimizer's moments grow.
enum class GrownMoments {
  kReset,  ///< of every parameter: zero, and the count of updates begins anew
  kCopy,   ///< instances of an expert have its moments
  kSplit,  ///< the same for gradients that are divided among n instances: exp_avg / n, exp_avg_sq / n^2
  kZero,   ///< originals keep theirs, copies begin with zeros
};
template <>
struct EnumNames<GrownMoments> {
  static const std::vector<std::string>& names() {
    static const std::vector<std::string> all =
        names_of_all<GrownMoments>({"reset", "copy", "split", "zero"});
    return all;
  }
};

/// By what experts are chosen for copies.
enum class GrowthScore {
  kUniform,   ///< every expert gets as many
  kWeight,    ///< squared norm of the weights
  kRandom,    ///< a draw: the control
  kLoad,      ///< tokens that the expert got
  kGradient,  ///< squared norm of the mean gradient
  kSaliency,  ///< norm of the weights times norm of that gradient
  kFisher,    ///< its squared norm over the mean second moment of the optimizer
};
template <>
struct EnumNames<GrowthScore> {
  static const std::vector<std::string>& names() {
    static const std::vector<std::string> all =
        names_of_all<GrowthScore>({"uniform", "weight", "random", "load", "gradient", "saliency", "fisher"});
    return all;
  }
};

/// [num_layers][experts], empty for dense layers.
using ExpertScores = std::vector<std::vector<double>>;

struct GrowthOptions {
  i64 factor = 2;  ///< E' / E
  GrowthMode mode = GrowthMode::kFixedK;
  ExpertScores scores = {};  ///< the best experts get the copies; empty = every expert gets as many
  i64 cap = 3;               ///< copies of one expert before the next one is looked at
  double noise = 1e-3;       ///< half-width of what is added to the logits of copies; 0 = twins stay alike
  u64 seed = 1;              ///< of the noise
  std::optional<GrownMoments> moments = {};  ///< none = what fits the mode
  std::string keys = "--";                   ///< begins the names of options in errors: "grow." in a job
};

/// A growth that is possible: all that its tensors follow from.
struct Growth {
  GrowthMode mode = GrowthMode::kFixedK;
  GrownMoments moments = GrownMoments::kReset;
  i64 factor = 2;
  double noise = 0;
  u64 seed = 1;
  ModelConfig before, after;
  std::vector<std::vector<ExpertId>> source_of;  ///< [num_layers][new expert]; empty for dense layers
  std::vector<std::vector<bool>> is_copy;        ///< the same
  /// Experts that have the tensors of this one.
  i64 instances(i64 layer, ExpertId source) const;
};

/// To whom `slots` new slots go, one after another: always the best expert that has fewer than `cap` copies
/// (of equals the lower); when all have so many, these counts begin anew. Scores count to 12 digits.
std::vector<ExpertId> hand_out(const std::vector<double>& scores, i64 slots, i64 cap);

/// Throws ConfigError when the model cannot grow so.
Growth plan_growth(const ModelConfig& model, const GrowthOptions& options);

/// The model that computes on the tensors of the source what the grown one computes right after growth, where
/// there is one: in fixed-k only the best max(1, K/m) experts of a token are seen. There is none where an
/// expert fills a part of its instances, or counts of instances differ: see loss_of_instances().
std::optional<ModelConfig> model_right_after(const Growth& growth);

/// The step from one top-k to a lower one, of a model that grew by `growth` (wide-k) and has `from` now:
/// every expert stays the one that it is. The sum of routing weights and of the load-balancing loss follow
/// top-k, so that with the source's top-k they are those of fixed-k. Throws ConfigError.
Growth plan_narrowing(const Growth& growth, const ModelConfig& from, i64 top_k);

/// The growth that makes `model` of one with 1/factor of its experts, every expert with as many copies: what
/// shrinking undoes. Throws ConfigError when there is none.
Growth plan_shrink(const ModelConfig& model, const GrowthOptions& options);

/// The parameter of the source that a parameter of the grown model is made of.
std::string source_name(const Growth& growth, const ParamInfo& parameter);
/// The other way: what is made of a parameter of the source, of originals and copies. Those that are of no
/// expert have one name.
std::vector<std::string> instance_names(const Growth& growth, const ParamInfo& source);

/// Half-width of the noise on an element of a copy's router row, or on its choice bias where there is one.
double noise_width(const Growth& growth);

/// The model with E experts in the place of each dense MLP, of which a token sees top_k: llama and mistral
/// become mixtral, qwen3 becomes qwen3_moe. Throws ConfigError.
ModelConfig sparse_model(const ModelConfig& dense, i64 num_experts, i64 top_k);

/// Seconds of a run of `steps` steps that grows after `grow_at`, against one that has all experts from the
/// start: 1 - that / this.
double growth_saving(Seconds step_before, Seconds step_after, double grow_at, double steps);

}  // namespace hetermoe
