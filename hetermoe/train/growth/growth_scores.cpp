#include "hetermoe/train/growth/growth_scores.h"

#include <fmt/ranges.h>

#include "hetermoe/base/index.h"
#include "hetermoe/nn/decoder.h"
#include "hetermoe/routing/trace.h"
#include "hetermoe/train/checkpoint/checkpoint_archive.h"
#include "hetermoe/train/job/job_data.h"
#include "hetermoe/weights/upcycle.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

/// Copies that each expert got in all steps of a routing trace.
ExpertScores load_scores(const std::string& file, const ModelConfig& model) {
  if (file.empty()) fail<ConfigError>("--counts", "is missing: --score load asks for a routing trace");
  const RoutingTrace trace(file);
  const TraceHeader& header = trace.header();
  ExpertScores out(idx(model.num_layers));
  std::vector<i64> layers;
  for (i64 l = 0; l < model.num_layers; ++l) {
    if (!model.is_moe(l)) continue;
    layers.push_back(l);
    out[idx(l)].assign(idx(model.num_experts), 0);
  }
  if (header.layers != layers || header.num_experts != model.num_experts) {
    fail<ConfigError>(
        "--counts",
        "{} is of another model than {}: it has {} experts in layers {}, expected {} in layers {}", file,
        model.name, header.num_experts, fmt::join(header.layers, ", "), model.num_experts,
        fmt::join(layers, ", "));
  }
  for (const i64 step : trace.steps()) {
    const TraceStep read = trace.read(step);
    for (std::size_t l = 0; l < layers.size(); ++l) {
      for (std::size_t i = 0; i < read.counts[l].size(); ++i)
        out[idx(layers[l])][i % idx(model.num_experts)] += read.counts[l][i];
    }
  }
  return out;
}

/// Squared norms of gradients over the mean second moment of each expert.
ExpertScores fisher_scores(const GrowthSource& source,
                           const std::function<ExpertScores()>& gradient_squares) {
  if (!source.checkpoint)
    fail<ConfigError>("--score",
                      "fisher needs second moments of an optimizer, which {} has not: expected a "
                      "checkpoint of a run, or another score",
                      source.weights.string());
  const Archive archive(source.checkpoint->path, source.checkpoint->files);
  ExpertScores squares = gradient_squares();
  ExpertScores sum = squares, count = squares;
  for (auto* scores : {&sum, &count}) {
    for (std::vector<double>& layer : *scores) std::fill(layer.begin(), layer.end(), 0.0);
  }
  for (const ParamInfo& parameter : parameters(source.model)) {
    const std::string name = parameter.name + ".exp_avg_sq";
    if (parameter.expert < 0 || !archive.has(name)) continue;
    sum[idx(parameter.layer)][idx(parameter.expert)] +=
        archive.read(name, parameter.shape).to(at::kDouble).sum().item<double>();
    count[idx(parameter.layer)][idx(parameter.expert)] += real(parameter.numel());
  }
  for (std::size_t l = 0; l < squares.size(); ++l) {
    for (std::size_t e = 0; e < squares[l].size(); ++e) {
      // An expert that never had a gradient has none now.
      squares[l][e] = sum[l][e] > 0 ? squares[l][e] * count[l][e] / sum[l][e] : 0;
    }
  }
  return squares;
}

}  // namespace

GrowthData::GrowthData(Job job, const ModelConfig& model, i64 first, i64 batches)
    : job_(std::move(job)), data_(load_job_data(job_, model)), first_(first), batches_(batches) {}

std::unique_ptr<ModelTrial> GrowthData::trial(const ModelConfig& model, const fs::path& weights,
                                              const ModelConfig& stored) const {
  return std::make_unique<ModelTrial>(job_, model, HfWeights(weights, stored), data_);
}

double GrowthData::loss(const ModelConfig& model, const fs::path& weights, const ModelConfig& stored) const {
  return trial(model, weights, stored)->loss(first_, batches_);
}

TensorsByName GrowthData::mean_gradients(const GrowthSource& source) const {
  return trial(source.model, source.weights, source.model)->mean_gradients(first_, batches_);
}

namespace {

/// The source with routers that choose among instances; the slab of a layer has every expert once.
ModelState state_of_instances(Growth growth, const HfWeights& weights, at::ScalarType type) {
  growth.noise = 0;
  ModelState out = make_model_state(growth.before, at::TensorOptions().dtype(type));
  StorageOptions storage(type);
  storage.trainable = false;
  for (i64 l = 0; l < growth.before.num_layers; ++l) {
    if (!growth.before.is_moe(l)) continue;
    out.attention[idx(l)] = make_attention_state(growth.after, l, storage);
    ExpertSlab& slab = out.experts[idx(l)];
    std::vector<i64> slots;
    for (const ExpertId source : growth.source_of[idx(l)]) slots.push_back(slab.slot_of[idx(source)]);
    slab.slot_of = slots;
  }
  std::map<std::string, ParamInfo> grown;
  for (const ParamInfo& parameter : parameters(growth.after)) grown[parameter.name] = parameter;
  for (NamedView& view : out.views(growth.before))
    view.value.copy_(grown_tensor(growth, grown.at(view.name), weights.read(view.name)));
  return out;
}

/// Sum over the counted targets of tokens that see each other alone.
double loss_sum(const ModelConfig& model, const ModelState& state, i64 capacity, const at::Tensor& tokens,
                const at::Tensor& targets) {
  Decoder decoder(model, state, capacity);
  return at::cross_entropy_loss(decoder.read(tokens), targets, {}, at::Reduction::Sum).item<double>();
}

}  // namespace

double GrowthData::loss_of_instances(const GrowthSource& source, const Growth& growth) const {
  const bool wide = job_.plan.attention_dtype == Dtype::kFp64;
  const ModelState state =
      state_of_instances(growth, HfWeights(source.weights, source.model), wide ? at::kDouble : at::kFloat);
  const i64 seq_len = job_.train.seq_len, count = job_.train.sequences;
  const Sampler sampler(data_, {seq_len, job_.train.seed});
  double sum = 0, counted = 0;
  for (i64 b = 0; b < batches_; ++b) {
    const Batch batch = sampler.batch(first_ + b * count, count, source.model.vocab);
    const at::Tensor tokens = at::tensor(batch.tokens, at::kLong),
                     targets = at::tensor(batch.targets, at::kLong);
    for (i64 begin = 0, end = 0; begin < tokens.numel(); begin = end) {
      const auto begins = [&](i64 i) {
        return i % seq_len == 0 || (!batch.starts.empty() && batch.starts[idx(i)] == 1);
      };
      for (end = begin + 1; end < tokens.numel() && !begins(end);) ++end;
      sum +=
          loss_sum(growth.after, state, seq_len, tokens.slice(0, begin, end), targets.slice(0, begin, end));
    }
    counted += real(batch.target_count);
  }
  return sum / counted;
}

ExpertScores growth_scores(const ScoreChoice& choice, const GrowthSource& source,
                           const MakeGrowthData& data) {
  const auto utility = [&](Utility kind) {
    const TensorsByName gradients = data().mean_gradients(source);
    return utility_scores(kind, HfWeights(source.weights, source.model), source.model, gradients);
  };
  switch (choice.score) {
    case GrowthScore::kUniform:
      return {};
    case GrowthScore::kWeight:
      return weight_scores(HfWeights(source.weights, source.model), source.model);
    case GrowthScore::kRandom:
      return random_scores(source.model, choice.seed);
    case GrowthScore::kLoad:
      return load_scores(choice.counts, source.model);
    case GrowthScore::kGradient:
      return utility(Utility::kGradient);
    case GrowthScore::kSaliency:
      return utility(Utility::kSaliency);
    case GrowthScore::kFisher:
      return fisher_scores(source, [&] { return utility(Utility::kGradient); });
  }
  HM_CHECK(false, "score of no kind");
}

GrowthLoss measure_growth(const GrowthData& data, const GrowthSource& source, const Growth& growth,
                          const fs::path& grown) {
  GrowthLoss out;
  out.before = data.loss(source.model, source.weights, source.model);
  const std::optional<ModelConfig> seen = model_right_after(growth);
  if (!seen && growth.mode != GrowthMode::kRandom) out.predicted = data.loss_of_instances(source, growth);
  if (seen)
    out.predicted = *seen == source.model ? out.before : data.loss(*seen, source.weights, source.model);
  out.after = data.loss(growth.after, grown, growth.after);
  return out;
}

}  // namespace hetermoe
