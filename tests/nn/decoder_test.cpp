#include "hetermoe/nn/decoder.h"

#include <gtest/gtest.h>

#include <map>

#include "hetermoe/kernels/host_kernels.h"
#include "hetermoe/nn/reference.h"
#include "tests/nn/newer_models.h"
#include "tests/nn/task_chain.h"

namespace hetermoe::testing {
namespace {

std::vector<ModelConfig> all_models() {
  std::vector<ModelConfig> models = models_of_all_families();
  models.push_back(tiny_llama());
  models.push_back(tiny_qwen2());
  models.push_back(tiny_mistral());
  models.back().sliding_window = 3;
  models.push_back(tiny_mixtral());
  models.back().head_dim = 8;  // widths of the CPU kernel
  models.back().rope_scaling = {.kind = RopeKind::kLinear, .factor = 4};
  return models;
}

ModelState lively_model(const ModelConfig& model, at::ScalarType dtype) {
  ModelState state = make_model_state(model, dtype);
  fill_lively(state.views(model));
  return state;
}

at::Tensor some_tokens(i64 count) { return at::arange(count).mul(7).remainder(31); }

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

// Claim (Decoder.*): text that goes on with a KV cache is that of one forward pass: 1e-5 in fp32, 1e-12 in
// fp64
TEST(Decoder, LogitsAreThoseOfTheReference) {
  for (const ModelConfig& model : all_models()) {
    const ModelState state = lively_model(model, at::kDouble);
    TensorsByName values;
    for (const NamedView& view : state.views(model)) values[view.name] = view.value;
    const at::Tensor tokens = some_tokens(9);
    Decoder decoder(model, state, 9);
    EXPECT_LT(distance(decoder.read(tokens), reference_logits(model, values, tokens.unsqueeze(0))[0]), 1e-11)
        << model.name;
    EXPECT_EQ(decoder.size(), 9);
  }
}

TEST(Decoder, TokenByTokenGivesTheLogitsOfOneForwardPass) {
  for (const ModelConfig& model : all_models()) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      const ModelState state = lively_model(model, dtype);
      const at::Tensor tokens = some_tokens(9);
      Decoder whole(model, state, 9), by_parts(model, state, 9);
      const at::Tensor expected = whole.read(tokens);
      std::vector<at::Tensor> parts = {by_parts.read(tokens.narrow(0, 0, 4))};  // the prompt
      for (i64 t = 4; t < 9; ++t) parts.push_back(by_parts.read(tokens.narrow(0, t, 1)));
      EXPECT_LT(distance(at::cat(parts), expected), dtype == at::kDouble ? 1e-12 : 1e-5) << model.name;
    }
  }
}

TEST(Decoder, APromptReadInPartsGivesTheLastLogitsOfOneForwardPass) {
  for (const ModelConfig& model : all_models()) {
    const ModelState state = lively_model(model, at::kDouble);
    const at::Tensor tokens = some_tokens(9);
    for (const i64 part : {0, 1, 4, 9}) {
      Decoder whole(model, state, 9), by_parts(model, state, 9);
      EXPECT_LT(distance(by_parts.read_prompt(tokens, part), whole.read(tokens)[8]), 1e-12)
          << model.name << " in parts of " << part;
      EXPECT_EQ(by_parts.size(), 9);
    }
  }
}

/// The kernels that run on GPUs, on the host.
TEST(Decoder, OnKernelsGivesTheLogitsOfTheCpu) {
  for (const ModelConfig& model : all_models()) {
    const ModelState state = lively_model(model, at::kFloat);
    const auto read = [&] {
      Decoder decoder(model, state, 9);
      const at::Tensor prompt = decoder.read_prompt(some_tokens(8), 5);
      return at::stack({prompt, decoder.read(at::tensor({i64{7}}))[0]});
    };
    const at::Tensor plain = read();
    const kernels::HostKernels on;
    EXPECT_LT(distance(read(), plain), 1e-5) << model.name;
  }
}

TEST(ChooseToken, GreedyTakesTheLikeliest) { EXPECT_EQ(choose_token(at::tensor({0.1, 3.0, 2.9}), {}, 5), 1); }

TEST(ChooseToken, DrawsByProbabilityAndRepeatsItself) {
  const at::Tensor logits = at::log(at::tensor({0.5, 0.1, 0.4}, at::kDouble));
  std::map<i64, i64> counts, narrow, cold;
  for (i64 position = 0; position < 4000; ++position) {
    const i64 token = choose_token(logits, {.temperature = 1, .seed = 3}, position);
    EXPECT_EQ(choose_token(logits, {.temperature = 1, .seed = 3}, position), token);
    ++counts[token];
    ++narrow[choose_token(logits, {.temperature = 1, .top_p = 0.8, .seed = 3}, position)];
    ++cold[choose_token(logits, {.temperature = 0.5, .seed = 3}, position)];
  }
  // Five standard deviations are 160 at most.
  EXPECT_NEAR(static_cast<double>(counts[0]), 2000, 160);
  EXPECT_NEAR(static_cast<double>(counts[1]), 400, 100);
  EXPECT_EQ(narrow.count(1), 0U);
  EXPECT_NEAR(static_cast<double>(narrow[0]), 4000 * 5 / 9.0, 160);
  EXPECT_NEAR(static_cast<double>(cold[0]), 4000 * 25 / 42.0, 160);  // squares of the probabilities
}

}  // namespace
}  // namespace hetermoe::testing
