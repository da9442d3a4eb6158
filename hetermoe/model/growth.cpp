#include "hetermoe/model/growth.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/model/family.h"

namespace hetermoe {
namespace {

/// Scores that differ by rounding alone are equal, so that every plan hands out alike.
double rounded(double score) { return std::stod(fmt::format("{:.12g}", score)); }

/// Families whose config.json has a factor on routing weights.
bool has_routed_scale(const ModelConfig& model) { return !family_of(model).routed_scale_key.empty(); }

/// By which routing weights are multiplied where a token sees top_k of the instances.
double scale_of_instances(const ModelConfig& model, i64 factor, i64 top_k) {
  if (model.normalize_top_k) return 1;
  const bool sigmoid = model.router_score == RouterScore::kSigmoid;
  return (sigmoid ? 1 : real(factor)) / real(std::min(factor, top_k));
}

/// By which routing weights are multiplied, see docs/growth.md.
double scale_factor(const ModelConfig& model, GrowthMode mode, i64 factor) {
  if (model.normalize_top_k) return 1;
  const bool sigmoid = model.router_score == RouterScore::kSigmoid;
  const double m = real(factor);
  switch (mode) {
    case GrowthMode::kFixedK:
      return scale_of_instances(model, factor, model.top_k);
    case GrowthMode::kWideK:
      return sigmoid ? 1 / m : 1;
    case GrowthMode::kDormant:
      return sigmoid ? 1 : m;
    case GrowthMode::kRandom:
      return 1;
  }
  HM_CHECK(false, "growth of no mode");
}

void check_scores(const ModelConfig& model, const ExpertScores& scores) {
  HM_CHECK(std::ssize(scores) == model.num_layers, "scores of {} layers", scores.size());
  for (i64 l = 0; l < model.num_layers; ++l) {
    if (!model.is_moe(l)) continue;
    HM_CHECK(std::ssize(scores[idx(l)]) == model.num_experts, "{} scores in layer {}", scores[idx(l)].size(),
             l);
    for (const double score : scores[idx(l)]) {
      if (!std::isfinite(score))
        fail<ConfigError>("--score", "got {} in layer {}, expected finite scores of all experts", score, l);
    }
  }
}

void check_mode(const ModelConfig& model, const GrowthOptions& options) {
  if (model.expert_bias || model.router_linear_bias) {
    fail<ConfigError>(options.keys + "factor",
                      "{} ({}) cannot grow: its experts or its router have biases, which is not built; "
                      "expected a family without",
                      model.name, model.model_type);
  }
  if (model.router_bias && model.router_score == RouterScore::kSoftmax) {
    fail<ConfigError>(
        options.keys + "factor",
        "would make {} ({}) another function: its router adds a correction bias to softmax scores, "
        "and copies make the scores smaller but not the bias; expected a family with sigmoid scores",
        model.name, model.model_type);
  }
  const bool uneven = !options.scores.empty();
  if (options.mode == GrowthMode::kWideK && uneven) {
    fail<ConfigError>(
        options.keys + "mode",
        "wide-k needs as many copies of every expert, but scores hand them out unevenly: expected "
        "score uniform, or mode fixed-k or dormant");
  }
  if (options.mode == GrowthMode::kRandom && uneven)
    fail<ConfigError>(options.keys + "score",
                      "is given with mode random, expected uniform: nothing is copied");
  if (options.mode == GrowthMode::kRandom &&
      (options.moments == GrownMoments::kCopy || options.moments == GrownMoments::kSplit)) {
    fail<ConfigError>(options.keys + "moments",
                      "got {} with mode random, expected reset or zero: new experts are no copies",
                      name_of(*options.moments));
  }
  if (options.mode == GrowthMode::kWideK && model.group_score == GroupScore::kTopTwoSum) {
    fail<ConfigError>(
        options.keys + "mode",
        "wide-k would change which groups {} chooses, by the sum of their two best experts: twins "
        "count twice; expected dormant or fixed-k",
        model.name);
  }
  if (options.mode == GrowthMode::kDormant && !model.router_bias) {
    fail<ConfigError>(
        options.keys + "mode",
        "dormant copies sleep by a bias of the router's choice (e_score_correction_bias), which {} "
        "({}) does not have: expected wide-k or fixed-k",
        model.name, model.model_type);
  }
  const double scale = scale_factor(model, options.mode, options.factor);
  if (scale != 1 && !has_routed_scale(model)) {
    fail<ConfigError>(
        options.keys + "factor",
        "got {} with top-k {}: routing weights that are not normalised would need a factor {:.4g}, "
        "which {} has no key for; expected a factor of at most {}, or mode wide-k",
        options.factor, model.top_k, scale, model.model_type, model.top_k);
  }
}

/// The numbers of one layer: without groups originals, then copies as they were handed out; with groups (runs
/// of numbers) group by group, each its originals, then its copies.
void number_experts(Growth& growth, i64 layer, const std::vector<ExpertId>& copies) {
  const ModelConfig& model = growth.before;
  const i64 groups = model.has_expert_groups() ? model.num_expert_groups : 1,
            size = model.num_experts / groups;
  std::vector<ExpertId>& order = growth.source_of[idx(layer)];
  std::vector<bool>& is_copy = growth.is_copy[idx(layer)];
  for (i64 g = 0; g < groups; ++g) {
    for (i64 e = g * size; e < (g + 1) * size; ++e) order.push_back(static_cast<ExpertId>(e));
    for (const ExpertId copy : copies) {
      if (copy / size == g) order.push_back(copy);
    }
    is_copy.resize(is_copy.size() + idx(size), false);
    const i64 gained = std::ssize(order) - std::ssize(is_copy), expected = std::ssize(copies) / groups;
    if (gained != expected) {
      fail<ConfigError>("--score",
                        "breaks the groups of layer {}, from which {} chooses: group {} of {} would gain {}, "
                        "expected {} like every group; use --score uniform",
                        layer, model.name, g, groups, counted(gained, "copy"), expected);
    }
    is_copy.resize(order.size(), true);
  }
}

std::vector<ExpertId> copies_of(const ModelConfig& model, const GrowthOptions& options, i64 layer) {
  const i64 slots = (options.factor - 1) * model.num_experts;
  if (!options.scores.empty()) return hand_out(options.scores[idx(layer)], slots, options.cap);
  std::vector<ExpertId> copies;
  for (i64 i = 0; i < slots; ++i) copies.push_back(static_cast<ExpertId>(i % model.num_experts));
  return copies;
}

GrownMoments moments_of(GrowthMode mode) {
  switch (mode) {
    case GrowthMode::kFixedK:
      return GrownMoments::kReset;
    case GrowthMode::kWideK:
      return GrownMoments::kSplit;
    case GrowthMode::kDormant:
      return GrownMoments::kZero;
    case GrowthMode::kRandom:
      return GrownMoments::kReset;
  }
  HM_CHECK(false, "growth of no mode");
}

ModelConfig grown_model(const ModelConfig& model, const GrowthOptions& options) {
  ModelConfig out = model;
  out.name = fmt::format("{}-x{}", model.name, options.factor);
  out.num_experts *= options.factor;
  out.routed_scale *= scale_factor(model, options.mode, options.factor);
  if (options.mode != GrowthMode::kWideK) return out;
  out.top_k *= options.factor;
  // Each of m twins has the share of tokens and 1/m of the probability: the loss would be m times as large.
  out.aux_loss_coef /= real(options.factor);
  return out;
}

/// The model that a config.json can say, or the error of reading it.
void check_config(const ModelConfig& model, const std::string& where) {
  ModelConfig read = model_from_hf(to_hf(model), where);
  read.name = model.name;
  HM_CHECK(read == model, "{}: config.json does not say this model", where);
}

}  // namespace

i64 Growth::instances(i64 layer, ExpertId source) const {
  const std::vector<ExpertId>& all = source_of[idx(layer)];
  return std::count(all.begin(), all.end(), source);
}

std::vector<ExpertId> hand_out(const std::vector<double>& scores, i64 slots, i64 cap) {
  HM_CHECK(cap > 0 && !scores.empty(), "cap {} of {} experts", cap, scores.size());
  std::vector<double> values;
  for (const double score : scores) values.push_back(rounded(score));
  std::vector<ExpertId> best(scores.size());
  std::iota(best.begin(), best.end(), 0);
  std::stable_sort(best.begin(), best.end(),
                   [&](ExpertId a, ExpertId b) { return values[idx(a)] > values[idx(b)]; });
  std::vector<ExpertId> out;
  for (i64 i = 0; i < slots; ++i) out.push_back(best[idx(i / cap) % best.size()]);
  return out;
}

Growth plan_growth(const ModelConfig& model, const GrowthOptions& options) {
  check_trainable(model);
  if (model.num_experts == 0)
    fail<ConfigError>(options.keys + "factor",
                      "{} has no experts: expected --experts, to make experts of its dense layers",
                      model.name);
  if (options.factor < 2)
    fail<ConfigError>(options.keys + "factor", "got {}, which adds no experts: expected 2 or more",
                      options.factor);
  if (!options.scores.empty()) check_scores(model, options.scores);
  check_mode(model, options);
  Growth out{.mode = options.mode,
             .moments = options.moments.value_or(moments_of(options.mode)),
             .factor = options.factor,
             .noise = options.mode == GrowthMode::kRandom ? 0 : options.noise,
             .seed = options.seed,
             .before = model,
             .after = grown_model(model, options),
             .source_of = std::vector<std::vector<ExpertId>>(idx(model.num_layers)),
             .is_copy = std::vector<std::vector<bool>>(idx(model.num_layers))};
  check_config(out.after, "grown " + model.name);
  for (i64 l = 0; l < model.num_layers; ++l) {
    if (model.is_moe(l)) number_experts(out, l, copies_of(model, options, l));
  }
  return out;
}

std::optional<ModelConfig> model_right_after(const Growth& growth) {
  ModelConfig out = growth.before;
  if (growth.mode == GrowthMode::kRandom) return std::nullopt;
  if (growth.mode != GrowthMode::kFixedK) return out;
  if (out.group_score == GroupScore::kTopTwoSum) return std::nullopt;
  if (out.top_k > growth.factor && out.top_k % growth.factor != 0) return std::nullopt;
  for (i64 l = 0; l < out.num_layers; ++l) {
    for (const ExpertId source : growth.source_of[idx(l)]) {
      if (growth.instances(l, source) != growth.factor) return std::nullopt;
    }
  }
  out.top_k = std::max<i64>(1, out.top_k / growth.factor);
  return out;
}

Growth plan_narrowing(const Growth& growth, const ModelConfig& from, i64 top_k) {
  const ModelConfig& source = growth.before;
  if (growth.mode != GrowthMode::kWideK) {
    fail<ConfigError>("grow.narrow_to", "got {} with mode {}, expected it with wide-k, whose top-k is wider",
                      top_k, name_of(growth.mode));
  }
  if (top_k < 1 || top_k >= from.top_k)
    fail<ConfigError>("grow.narrow_to", "got {}, expected 1 to {}, below the top-k {} of the grown model",
                      top_k, from.top_k - 1, from.top_k);
  const double scale = scale_of_instances(source, growth.factor, top_k);
  if (scale != 1 && !has_routed_scale(source)) {
    fail<ConfigError>("grow.narrow_to",
                      "got {}, but routing weights that are not normalised would then need a factor {:.4g}, "
                      "which {} has no key for: expected at least {}",
                      top_k, scale, source.model_type, growth.factor);
  }
  Growth out{.mode = GrowthMode::kFixedK,
             .moments = GrownMoments::kCopy,
             .factor = 1,
             .before = from,
             .after = from,
             .source_of = std::vector<std::vector<ExpertId>>(idx(from.num_layers)),
             .is_copy = std::vector<std::vector<bool>>(idx(from.num_layers))};
  out.after.top_k = top_k;
  out.after.routed_scale = source.routed_scale * scale;
  out.after.aux_loss_coef = source.aux_loss_coef * real(source.top_k) / real(top_k);
  check_config(out.after, "narrower " + from.name);
  for (i64 l = 0; l < from.num_layers; ++l) {
    if (!from.is_moe(l)) continue;
    out.source_of[idx(l)].resize(idx(from.num_experts));
    std::iota(out.source_of[idx(l)].begin(), out.source_of[idx(l)].end(), 0);
    out.is_copy[idx(l)].assign(idx(from.num_experts), false);
  }
  return out;
}

Growth plan_shrink(const ModelConfig& model, const GrowthOptions& options) {
  const i64 m = options.factor;
  if (model.num_experts == 0)
    fail<ConfigError>("--factor", "got 1/{}, but {} has no experts to merge", m, model.name);
  if (options.mode == GrowthMode::kRandom)
    fail<ConfigError>("--mode",
                      "got random with --factor 1/{}, expected another: there are no copies to merge", m);
  const bool wide = options.mode == GrowthMode::kWideK;
  const auto divides = [&](i64 number, const char* what) {
    if (number % m == 0 && number / m > 0) return;
    fail<ConfigError>("--factor", "got 1/{}, but {} has {} {}: expected a divisor of it", m, model.name,
                      number, what);
  };
  divides(model.num_experts, "experts");
  if (model.has_expert_groups()) divides(model.num_experts / model.num_expert_groups, "experts in a group");
  if (wide) divides(model.top_k, "experts for a token (wide-k)");
  ModelConfig small = model;
  small.num_experts /= m;
  if (wide) small.top_k /= m;
  if (small.top_k > small.num_experts) {
    fail<ConfigError>("--factor",
                      "got 1/{}, which would leave {} {} of which a token sees {}: expected a larger factor, "
                      "or --mode wide-k",
                      m, small.name, counted(small.num_experts, "expert"), small.top_k);
  }
  // Numbers that people wrote are short: of those whose product is this one they are meant.
  const auto undo = [](double product, double factor) {
    const double plain = product / factor, short_one = rounded(plain);
    return short_one * factor == product ? short_one : plain;
  };
  small.routed_scale = undo(small.routed_scale, scale_factor(small, options.mode, m));
  if (wide) {
    const double least = small.aux_loss_coef * real(m);
    small.aux_loss_coef = rounded(least) / real(m) == model.aux_loss_coef ? rounded(least) : least;
  }
  Growth out = plan_growth(small, options);
  out.after = model;
  return out;
}

namespace {

/// The name of the same tensor of another expert.
std::string name_of_expert(const ParamInfo& parameter, ExpertId expert) {
  std::string name = parameter.name;
  const std::string number = fmt::format(".experts.{}.", parameter.expert);
  const std::size_t at = name.find(number);
  HM_CHECK(at != std::string::npos, "{} names no expert", name);
  return name.replace(at, number.size(), fmt::format(".experts.{}.", expert));
}

}  // namespace

std::string source_name(const Growth& growth, const ParamInfo& parameter) {
  if (parameter.expert < 0) return parameter.name;
  return name_of_expert(parameter, growth.source_of[idx(parameter.layer)][idx(parameter.expert)]);
}

std::vector<std::string> instance_names(const Growth& growth, const ParamInfo& source) {
  if (source.expert < 0) return {source.name};
  std::vector<std::string> out;
  const std::vector<ExpertId>& order = growth.source_of[idx(source.layer)];
  for (std::size_t e = 0; e < order.size(); ++e) {
    if (order[e] == source.expert) out.push_back(name_of_expert(source, static_cast<ExpertId>(e)));
  }
  return out;
}

double noise_width(const Growth& growth) {
  // Rows of unit variance have logits that spread sqrt(H) times as wide as their elements.
  return growth.before.router_bias ? growth.noise : growth.noise / std::sqrt(real(growth.before.hidden));
}

ModelConfig sparse_model(const ModelConfig& dense, i64 num_experts, i64 top_k) {
  check_trainable(dense);
  if (dense.num_experts > 0)
    fail<ConfigError>("--experts", "{} has {} experts already: expected a multiple of them, or --factor",
                      dense.name, dense.num_experts);
  if (!dense.sliding_layer.empty())
    fail<ConfigError>(dense.name,
                      "has sliding windows in some of its layers, which qwen3_moe has in all or none");
  ModelConfig out = dense;
  out.model_type = family_of(dense).sparse_type;
  if (out.model_type.empty())
    fail<ConfigError>(
        dense.name,
        "is of family {}, to which no family with experts belongs whose attention is the same and "
        "which has no shared expert: expected one of llama, mistral, qwen3",
        dense.model_type);
  out.name = fmt::format("{}-{}e", dense.name, num_experts);
  out.num_experts = num_experts;
  out.top_k = top_k;
  out.expert_hidden = dense.dense_hidden;
  out.dense_hidden = 0;
  out.dense_layer.assign(idx(dense.num_layers), false);
  out.normalize_top_k = true;
  out.aux_loss_coef = 0.001;  // of both families' configuration classes
  check_config(out, "sparse " + dense.name);
  return out;
}

double growth_saving(Seconds step_before, Seconds step_after, double grow_at, double steps) {
  return grow_at * (step_after - step_before) / (steps * step_after);
}

}  // namespace hetermoe
