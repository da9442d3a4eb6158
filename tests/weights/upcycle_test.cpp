#include "hetermoe/weights/upcycle.h"

#include <cmath>

#include "hetermoe/base/index.h"
#include "hetermoe/model/sparse.h"
#include "hetermoe/nn/optimizer.h"
#include "hetermoe/nn/reference.h"
#include "hetermoe/nn/router.h"
#include "hetermoe/weights/convert.h"
#include "hetermoe/weights/merge.h"
#include "tests/weights/folders.h"

// What grows computes what it should, by the single-device reference in fp64.
namespace hetermoe {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kSources = {
    "mixtral",     "mixtral_other",     "qwen3_moe",   "qwen3_moe_other",   "olmoe",           "olmoe_other",
    "deepseek_v2", "deepseek_v2_other", "deepseek_v3", "deepseek_v3_other", "deepseek_v3_yarn"};

/// A model with its weights, in fp64 unless said otherwise.
struct Loaded {
  ModelConfig model;
  Tensors weights;
  explicit Loaded(const fs::path& folder, at::ScalarType type = at::kDouble)
      : model(load_model(folder.string())), weights(read_all(folder)) {
    for (auto& [name, tensor] : weights) tensor = tensor.to(type);
  }
};

at::Tensor tokens_of(const std::string& family) {
  return tensors_of(parity_folder(family) / "expected.safetensors").at("tokens");
}
at::Tensor logits(const ModelConfig& model, const Loaded& loaded, const at::Tensor& tokens) {
  return reference_logits(model, loaded.weights, tokens);
}
ReferenceResult step_of(const Loaded& loaded, const at::Tensor& tokens) {
  return reference_step(loaded.model, loaded.weights, tokens, tokens.roll(-1, 1));
}

GrowthOptions quiet(GrowthMode mode, i64 factor = 2) { return {.factor = factor, .mode = mode, .noise = 0}; }

class Grown {
 public:
  Grown(const std::string& family, const GrowthOptions& options) : Grown(parity_folder(family), options) {}
  Grown(const char* family, const GrowthOptions& options) : Grown(parity_folder(family), options) {}
  Grown(const fs::path& source, const GrowthOptions& options)
      : model(model_of(HfFolder(source))), growth(plan_growth(model, options)), from(source, model) {
    done = upcycle_folder(from, folder_ / "grown", growth);
    verify_upcycled(from, path(), growth);
  }
  fs::path path() const { return folder_ / "grown"; }

  ModelConfig model;
  Growth growth;
  HfWeights from;
  Upcycled done;

 private:
  WorkFolder folder_;
};

bool refused(const std::string& family, const GrowthOptions& options) {
  return error_of<ConfigError>([&] { plan_growth(load_model(parity_folder(family).string()), options); }) !=
         "no error";
}

// Claim (Upcycle.*): grown models compute what the source does (`wide-k`, `dormant`) or what it does with
// fewer experts (`fixed-k`), to 1e-12 in fp64 and 1e-6 of the largest logit in fp32, m = 2, 3, 4, all
// families; noise is on copies alone; a token's work is that of before but for router rows
TEST(Upcycle, WideKAndDormantKeepEveryLogit) {
  int grown_models = 0;
  for (const std::string& family : kSources) {
    const Loaded source(parity_folder(family));
    const at::Tensor tokens = tokens_of(family), expected = logits(source.model, source, tokens);
    for (const GrowthMode mode : {GrowthMode::kWideK, GrowthMode::kDormant}) {
      for (const i64 factor : {2, 3, 4}) {
        if (refused(family, quiet(mode, factor))) continue;
        const Grown folder(family, quiet(mode, factor));
        const Loaded grown(folder.path()), in_fp32(folder.path(), at::kFloat);
        EXPECT_EQ(grown.model.num_experts, factor * source.model.num_experts);
        EXPECT_LE(largest(logits(grown.model, grown, tokens) - expected), 1e-12)
            << family << " " << name_of(mode) << " " << factor;
        const at::Tensor in_source = logits(source.model, Loaded(parity_folder(family), at::kFloat), tokens);
        EXPECT_LE(largest(logits(grown.model, in_fp32, tokens) - in_source), 1e-6 * largest(in_source))
            << family << " " << name_of(mode) << " " << factor;
        ++grown_models;
      }
    }
  }
  // Wide: all but DeepSeek-V3 with groups (two); dormant: DeepSeek-V3 alone (three).
  EXPECT_EQ(grown_models, 3 * (9 + 3));
}

TEST(Upcycle, FixedKIsTheSourceWithFewerExperts) {
  int predicted = 0;
  for (const std::string& family : kSources) {
    const Loaded source(parity_folder(family));
    const at::Tensor tokens = tokens_of(family), before = logits(source.model, source, tokens);
    for (const i64 factor : {2, 3, 4}) {
      const GrowthOptions options = quiet(GrowthMode::kFixedK, factor);
      if (refused(family, options)) continue;
      const Grown folder(family, options);
      const std::optional<ModelConfig> right_after = model_right_after(folder.growth);
      if (!right_after) continue;
      const Loaded grown(folder.path());
      const at::Tensor got = logits(grown.model, grown, tokens);
      EXPECT_LE(largest(got - logits(*right_after, source, tokens)), 1e-12) << family << " " << factor;
      EXPECT_GT(largest(got - before), 1e-4) << family << " " << factor;
      ++predicted;
    }
  }
  EXPECT_GE(predicted, 10);
}

at::Tensor order_of(const Growth& growth, i64 layer) {
  const std::vector<ExpertId>& order = growth.source_of[idx(layer)];
  return at::tensor(std::vector<i64>(order.begin(), order.end()), at::kLong);
}

/// Twins share gradients evenly, and the load-balancing loss stays what it was.
TEST(Upcycle, WideKDividesGradientsAndKeepsTheLoss) {
  for (const char* family : {"mixtral", "qwen3_moe", "olmoe", "deepseek_v2"}) {
    const Grown folder(family, quiet(GrowthMode::kWideK, 3));
    const at::Tensor tokens = tokens_of(family);
    const ReferenceResult before = step_of(Loaded(parity_folder(family)), tokens);
    const ReferenceResult after = step_of(Loaded(folder.path()), tokens);
    EXPECT_NEAR(after.loss, before.loss, 1e-12) << family;
    EXPECT_NEAR(after.aux_loss, before.aux_loss, 1e-12) << family;
    for (const ParamInfo& parameter : parameters(folder.growth.after)) {
      if (parameter.buffer) continue;
      const bool router = parameter.name.ends_with(".gate.weight");
      at::Tensor expected = before.grads.at(source_name(folder.growth, parameter));
      if (router) expected = expected.index_select(0, order_of(folder.growth, parameter.layer));
      if (router || parameter.expert >= 0) expected = expected / 3;
      EXPECT_LE(largest(after.grads.at(parameter.name) - expected), 1e-12) << family << " " << parameter.name;
    }
  }
}

/// The control: what is new is that of a new model, what was there stays.
TEST(Upcycle, RandomExpertsAreDrawnBesideTheOldOnes) {
  for (const std::string family : {"mixtral", "deepseek_v3"}) {
    const Grown grown(family, {.mode = GrowthMode::kRandom, .seed = 3});
    EXPECT_EQ(grown.growth.after.top_k, grown.model.top_k);
    EXPECT_EQ(grown.growth.moments, GrownMoments::kReset);
    EXPECT_FALSE(model_right_after(grown.growth));
    const Tensors before = read_all(parity_folder(family)), after = read_all(grown.path());
    i64 drawn = 0;
    for (const ParamInfo& parameter : parameters(grown.growth.after)) {
      const at::Tensor &now = after.at(parameter.name),
                       source = before.at(source_name(grown.growth, parameter));
      if (is_router(grown.growth.before, parameter)) {
        for (i64 e = 0; e < now.size(0); ++e) {
          const bool copy = grown.growth.is_copy[idx(parameter.layer)][idx(e)];
          const ExpertId from = grown.growth.source_of[idx(parameter.layer)][idx(e)];
          EXPECT_EQ(at::equal(now[e], source[from]), !copy) << parameter.name << e;
        }
      } else if (parameter.expert >= 0 && grown.growth.is_copy[idx(parameter.layer)][idx(parameter.expert)]) {
        EXPECT_FALSE(at::equal(now, source)) << parameter.name;
        EXPECT_NEAR(now.to(at::kDouble).std().item<double>(), 0.02, 0.01) << parameter.name;
        ++drawn;
      } else if (!parameter.buffer) {
        EXPECT_TRUE(at::equal(now, source)) << parameter.name;
      }
    }
    EXPECT_GT(drawn, 0);
  }
  EXPECT_TRUE(refused("mixtral", {.mode = GrowthMode::kRandom, .moments = GrownMoments::kSplit}));
}

TEST(Upcycle, NoiseIsOnCopiesAloneAndWithinItsBounds) {
  for (const char* family : {"olmoe", "deepseek_v3"}) {
    const bool bias = std::string(family) == "deepseek_v3";
    GrowthOptions options{.factor = 3, .seed = 7};
    const Grown folder(family, options);
    const Tensors source = read_all(parity_folder(family)), grown = read_all(folder.path());
    const double width = bias ? 1e-3 : 1e-3 / std::sqrt(real(folder.model.hidden));
    double most = 0;
    for (const ParamInfo& parameter : parameters(folder.growth.after)) {
      const bool router = parameter.name.ends_with(".gate.weight");
      const at::Tensor& from = source.at(source_name(folder.growth, parameter));
      if (!router && !parameter.buffer) {
        EXPECT_TRUE(at::equal(grown.at(parameter.name), from)) << parameter.name;
        continue;
      }
      const std::vector<ExpertId>& order = folder.growth.source_of[idx(parameter.layer)];
      for (i64 e = 0; e < std::ssize(order); ++e) {
        const double difference = largest(grown.at(parameter.name)[e] - from[order[idx(e)]]);
        const bool copy = folder.growth.is_copy[idx(parameter.layer)][idx(e)];
        if (copy && bias == parameter.buffer) {
          EXPECT_GT(difference, 0) << parameter.name << e;
          most = std::max(most, difference);
        } else {
          EXPECT_EQ(difference, 0) << parameter.name << e;
        }
      }
    }
    EXPECT_LE(most, width * (1 + 1e-3)) << family;
    EXPECT_GT(most, width * 0.5) << family;
    expect_same_tensors(read_all(Grown(family, options).path()), grown);
    options.seed = 8;
    const std::string noisy =
        bias ? "model.layers.1.mlp.gate.e_score_correction_bias" : "model.layers.1.mlp.gate.weight";
    EXPECT_FALSE(at::equal(read_all(Grown(family, options).path()).at(noisy), grown.at(noisy)));
  }
}

TEST(Upcycle, TheBestExpertsGetTheCopies) {
  const ModelConfig model = load_model(parity_folder("mixtral").string());
  GrowthOptions options{.scores = weight_scores(HfWeights(parity_folder("mixtral"), model), model)};
  for (const std::vector<double>& scores : options.scores) {
    ASSERT_EQ(scores.size(), 4u);
    EXPECT_GT(*std::min_element(scores.begin(), scores.end()), 0);
  }
  const Tensors source = read_all(parity_folder("mixtral"));
  double squares = 0;
  for (const char* part : {"w1", "w2", "w3"}) {
    const at::Tensor& w = source.at(fmt::format("model.layers.1.block_sparse_moe.experts.2.{}.weight", part));
    squares += w.to(at::kDouble).pow(2).sum().item<double>();
  }
  EXPECT_NEAR(options.scores[1][2], squares, 1e-12 * squares);
  const Grown folder("mixtral", options);
  for (i64 l = 0; l < 2; ++l) {
    const auto best = std::max_element(options.scores[idx(l)].begin(), options.scores[idx(l)].end());
    EXPECT_EQ(folder.growth.instances(l, static_cast<ExpertId>(best - options.scores[idx(l)].begin())), 4);
  }
}

/// A token's work is that of before, but for the router's rows (and their biases).
TEST(Upcycle, ActiveParametersGrowByRouterRowsAlone) {
  int grown = 0;
  for (const std::string& family : kSources) {
    for (const GrowthMode mode : {GrowthMode::kFixedK, GrowthMode::kDormant}) {
      if (refused(family, quiet(mode))) continue;
      const Growth growth = plan_growth(load_model(parity_folder(family).string()), quiet(mode));
      const ModelConfig& model = growth.before;
      const i64 row = model.hidden + (model.router_bias ? 1 : 0);
      EXPECT_EQ(count_parameters(growth.after).active - count_parameters(model).active,
                model.num_experts * row * model.num_moe_layers())
          << family;
      ++grown;
    }
  }
  EXPECT_GE(grown, 12);
}

TEST(Upcycle, GroupsKeepTheirCopies) {
  const Growth growth =
      plan_growth(load_model(parity_folder("deepseek_v2").string()), quiet(GrowthMode::kWideK));
  EXPECT_EQ(growth.source_of[1], (std::vector<ExpertId>{0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7}));
  const Growth plain =
      plan_growth(load_model(parity_folder("mixtral").string()), quiet(GrowthMode::kWideK, 3));
  EXPECT_EQ(plain.source_of[0], (std::vector<ExpertId>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}));
}

/// Whatever the layout and the name of a setting.
TEST(Upcycle, FusedFoldersAndOtherNamesOfASettingGrowAlike) {
  const WorkFolder out;
  convert_folder(parity_folder("qwen3_moe"), out / "fused", {.dtype = {}, .layout = ExpertLayout::kFused});
  const Grown fused(fs::path(out / "fused"), {}), plain("qwen3_moe", {});
  expect_same_tensors(read_all(fused.path()), read_all(plain.path()));
  const Json config = read_json(plain.path() / "config.json");
  EXPECT_EQ(config.at("num_local_experts"), 12);
  EXPECT_EQ(config.at("num_experts_per_tok"), 3);
  EXPECT_EQ(plain.done.num_tensors, std::ssize(parameters(plain.growth.after)));
  i64 bytes = 0;
  for (const ParamInfo& parameter : parameters(plain.growth.after)) bytes += 4 * parameter.numel();
  EXPECT_EQ(plain.done.bytes, bytes);
}

TEST(Upcycle, VerifyFindsOneChangedBitAndNothingIsLeftOfAFailure) {
  const Grown folder("mixtral", {});
  Tensors tensors = tensors_of(folder.path() / "model.safetensors");
  const std::string name = "model.layers.1.block_sparse_moe.experts.6.w2.weight";
  tensors[name].view(at::kInt)[1][2].bitwise_xor_(1);
  write_file(folder.path() / "model.safetensors", tensors);
  const std::string error =
      error_of<InputError>([&] { verify_upcycled(folder.from, folder.path(), folder.growth); });
  EXPECT_TRUE(has_part(error, "1 tensors") && has_part(error, name)) << error;

  const WorkFolder out;
  FolderCopy source("mixtral");
  source.tensors["lm_head.weight"][0][0] = NAN;
  source.write();
  const HfWeights from(source.path(), source.model());
  const std::string failed = error_of<IoError>([&] { upcycle_folder(from, out / "grown", folder.growth); });
  EXPECT_TRUE(has_part(failed, "lm_head.weight has 1 values that are NaN")) << failed;
  EXPECT_TRUE(out.contents().empty());
}

/// Whatever its rotary embeddings and windows: the config of the grown model says it all.
TEST(Upcycle, EveryStoredModelGrows) {
  int with_experts = 0, dense = 0;
  for (const auto& entry : fs::directory_iterator(parity_folder(""))) {
    if (entry.path().filename().string().starts_with("gpt_oss")) continue;  // refused below
    const ModelConfig model = load_model(entry.path().string());
    // Refused below: what is added to softmax scores does not shrink with them.
    if (model.router_bias && model.router_score == RouterScore::kSoftmax) continue;
    if (model.num_experts > 0) {
      EXPECT_EQ(plan_growth(model, {}).after.num_experts, 2 * model.num_experts) << entry.path();
      ++with_experts;
    } else if (model.sliding_layer.empty() && !model.qkv_bias) {  // Qwen2-MoE has a shared expert
      EXPECT_EQ(plan_sparse(model, {.experts = 4, .top_k = 2}).after.num_moe_layers(), model.num_layers)
          << entry.path();
      ++dense;
    }
  }
  EXPECT_GE(with_experts, 14);
  EXPECT_GE(dense, 8);
}

std::string growth_error(const std::string& family, const GrowthOptions& options) {
  return error_of<ConfigError>([&] { plan_growth(load_model(parity_folder(family).string()), options); });
}

TEST(Upcycle, WhatCannotGrowIsRefusedInOneSentence) {
  const auto expect = [](const std::string& error, const char* part) {
    EXPECT_TRUE(has_part(error, part)) << error;
  };
  expect(growth_error("mixtral", {.factor = 1}), "got 1, which adds no experts");
  expect(growth_error("llama", {}), "has no experts");
  expect(growth_error("ernie4_5_moe", {}), "adds a correction bias to softmax scores");
  expect(growth_error("gpt_oss", {}), "its experts or its router have biases");
  expect(growth_error("mixtral", {.mode = GrowthMode::kDormant}), "which mixtral (mixtral) does not have");
  expect(growth_error("deepseek_v3", {.mode = GrowthMode::kWideK}), "twins count twice");
  expect(growth_error("olmoe", {.factor = 4}), "expected a factor of at most 3");
  ExpertScores scores = {{4, 3, 2, 1}, {1, 2, 3, 4}};
  expect(growth_error("mixtral", {.mode = GrowthMode::kWideK, .scores = scores}),
         "as many copies of every expert");
  scores[1][2] = NAN;
  expect(growth_error("mixtral", {.scores = scores}), "got nan in layer 1");
  const std::vector<double> falling = {8, 7, 6, 5, 4, 3, 2, 1};
  expect(growth_error("deepseek_v2", {.scores = {{}, falling, falling}}), "breaks the groups of layer 1");
}

// --- worked examples ---

/// Of four experts, three chosen, with logits 2, 1 and two far below: twins of the best, then one of the
/// next.
TEST(UpcycleGolden, ThreeOfTwins) {
  ModelConfig model = load_model(parity_folder("mixtral").string());
  model.top_k = 3;
  const Growth growth = plan_growth(model, quiet(GrowthMode::kFixedK));
  EXPECT_FALSE(model_right_after(growth));
  const at::Tensor logits = at::tensor({2.0, 1.0, -5.0, -6.0}, at::kDouble).repeat(2).view({1, 8});
  const at::Tensor scores = router_scores(growth.after, logits);
  const at::Tensor chosen = choose_experts(growth.after, scores, {});
  const at::Tensor weights = routing_weights(growth.after, scores, chosen);
  double first = 0, second = 0;
  for (i64 k = 0; k < 3; ++k) {
    const ExpertId source = growth.source_of[0][idx(chosen[0][k].item<i64>())];
    (source == 0 ? first : second) += weights[0][k].item<double>();
    EXPECT_NEAR(weights[0][k].item<double>(), source == 0 ? .422318798252 : .155362403497, 1e-12);
  }
  EXPECT_NEAR(first, 2 * .422318798252, 1e-11);
  EXPECT_NEAR(second, .155362403497, 1e-12);
}

/// One parameter after its seventh update.
double after_update(double gradient, double exp_avg, double exp_avg_sq) {
  const auto one = [](double x) { return at::full({1, 1}, x, at::kDouble); };
  std::vector<at::Tensor> values = {one(.5)};
  AdamwState state = make_adamw_state(values);
  state.exp_avg[0].fill_(exp_avg);
  state.exp_avg_sq[0].fill_(exp_avg_sq);
  state.step = 6;
  adamw_update(values, {one(gradient)}, state, {.beta1 = .9, .beta2 = .95, .eps = 1e-8, .weight_decay = .1},
               1e-3, 1);
  return values[0].item<double>();
}

TEST(UpcycleGolden, SplitMomentsMakeTheStepOfTheSource) {
  EXPECT_NEAR(after_update(.02, .01, 3e-4), .499286898483, 1e-12);
  const auto grown = [](GrownMoments moments, i64 factor) {
    GrowthOptions options = quiet(GrowthMode::kWideK, factor);
    options.moments = moments;
    const Growth growth = plan_growth(load_model(parity_folder("mixtral").string()), options);
    const ParamInfo parameter = parameters(growth.after).at(8 + 3 * 5);  // of expert 5, a copy
    EXPECT_EQ(parameter.expert, 5);
    const auto moment = [&](double x, i64 power) {
      return grown_moment(growth, parameter, at::full({1, 1}, x, at::kDouble), power).item<double>();
    };
    return after_update(.02 / real(factor), moment(.01, 1), moment(3e-4, 2));
  };
  EXPECT_NEAR(grown(GrownMoments::kSplit, 2), .499286898692, 1e-12);
  EXPECT_NEAR(grown(GrownMoments::kCopy, 2), .499331786829, 1e-12);
  EXPECT_NEAR(grown(GrownMoments::kSplit, 4), .499286899109, 1e-12);
}

/// E sum f P, by the gradient that a step uses.
double balance_loss(const ModelConfig& model, const std::vector<double>& f, const std::vector<double>& p) {
  const at::Tensor counts = at::tensor(f, at::kDouble).view({1, -1}) * 4;
  const at::Tensor gradient = balance_gradient(model, counts, 4, at::kDouble);
  return 4 * real(model.num_moe_layers()) * (gradient[0] * at::tensor(p, at::kDouble)).sum().item<double>();
}

TEST(UpcycleGolden, LoadBalancingLoss) {
  ModelConfig model = load_model(parity_folder("mixtral").string());
  model.num_experts = 2;
  model.top_k = 1;
  model.aux_loss_coef = 1;
  EXPECT_NEAR(balance_loss(model, {.75, .25}, {.6, .4}), 1.1, 1e-14);
  ModelConfig grown = plan_growth(model, quiet(GrowthMode::kWideK)).after;
  const std::vector<double> f = {.75, .25, .75, .25}, p = {.3, .2, .3, .2};
  EXPECT_NEAR(balance_loss(grown, f, p), 1.1, 1e-14);
  grown.aux_loss_coef = 1;
  EXPECT_NEAR(balance_loss(grown, f, p), 2.2, 1e-14);
}

}  // namespace
}  // namespace hetermoe
