#include <gtest/gtest.h>

#include "hetermoe/nn/router.h"
#include "hetermoe/routing/trace.h"
#include "hetermoe/weights/safetensors.h"
#include "tests/cli/program.h"

namespace hetermoe {
namespace {

/// Two sequences of four tokens of the tiny model; the first has a token of padding.
struct Case {
  ModelConfig model = load_model("tiny");
  WorkFolder folder;
  std::vector<NamedTensor> tensors;
  std::string input = folder / "in.safetensors", output = folder / "out.routes";

  ProgramResult import(const std::vector<std::string>& more = {}) {
    write_safetensors(input, tensors);
    std::vector<std::string> words = {"routing", "import", input, "--model", "tiny", "-o", output};
    words.insert(words.end(), more.begin(), more.end());
    return run_hetermoe(words);
  }
};

TEST(RoutingImport, ChoosesByTheModelsOwnRouter) {
  Case c;
  std::vector<at::Tensor> expected;
  for (i64 l = 0; l < c.model.num_layers; ++l) {
    const at::Tensor logits = at::randn({8, c.model.num_experts}, at::TensorOptions().dtype(at::kFloat));
    c.tensors.push_back({fmt::format("layers.{}.router_logits", l), logits});
    expected.push_back(choose_experts(c.model, router_scores(c.model, logits), {}).contiguous());
  }
  at::Tensor mask = at::ones({2, 4}, at::TensorOptions().dtype(at::kLong));
  mask[0][3] = 0;
  c.tensors.push_back({"attention_mask", mask});
  c.tensors.push_back({"domain", at::arange(2).to(at::kLong)});
  const ProgramResult result = c.import();
  ASSERT_EQ(result.code, 0) << result.err;
  const RoutingTrace trace(c.output);
  const TraceStep step = trace.read(0);
  ASSERT_EQ(step.num_sequences(), 2);
  EXPECT_EQ(step.sequences[1].domain, 1u);
  for (std::size_t l = 0; l < expected.size(); ++l) {
    for (i64 i = 0; i < 8 * c.model.top_k; ++i) {
      const i64 id = i / c.model.top_k == 3 ? kNoExpert : expected[l].const_data_ptr<i64>()[i];
      EXPECT_EQ(step.choices[l][static_cast<std::size_t>(i)], id) << "layer " << l << " copy " << i;
    }
  }
}

at::Tensor ids_of(const Case& c, i64 tokens) {
  return at::arange(c.model.top_k)
      .to(at::kLong)
      .expand({tokens, c.model.num_layers, c.model.top_k})
      .contiguous();
}

TEST(RoutingImport, TakesIdsOfAllLayersTogether) {
  Case c;
  c.tensors = {{"topk", ids_of(c, 6)}};
  const ProgramResult result = c.import({"--seq", "3"});
  ASSERT_EQ(result.code, 0) << result.err;
  const TraceStep step = RoutingTrace(c.output).read(0);
  EXPECT_EQ(step.num_sequences(), 2);
  EXPECT_EQ(step.choices[0][1], 1);
}

TEST(RoutingImport, RefusesWhatDoesNotFit) {
  const auto refused = [](const std::function<void(Case&)>& spoil, const std::string& part,
                          const std::vector<std::string>& more = {}) {
    Case c;
    spoil(c);
    const ProgramResult result = c.import(more);
    EXPECT_EQ(result.code, 2);
    EXPECT_TRUE(contains(result.err, part)) << result.err;
    EXPECT_FALSE(std::filesystem::exists(c.output));
  };
  refused(
      [](Case& c) {
        c.tensors = {{"other", at::ones({2})}};
      },
      "layer 0: got neither layers.0.router_logits nor layers.0.topk nor topk");
  refused(
      [](Case& c) {
        c.tensors = {{"topk", ids_of(c, 4).slice(2, 0, 1).contiguous()}};
      },
      "topk: got shape [4, ");
  refused(
      [](Case& c) {
        c.tensors = {{"topk", at::zeros_like(ids_of(c, 4))}};
      },
      "topk: token 0 has expert 0 twice");
  refused(
      [](Case& c) {
        c.tensors = {{"topk", ids_of(c, 4).add(1000)}};
      },
      "topk: token 0: got expert 1000, expected 0 to ");
  refused(
      [](Case& c) {
        c.tensors = {{"topk", ids_of(c, 4)}};
      },
      "tokens: got 4, expected whole sequences of 3 (--seq)", {"--seq", "3"});
  refused(
      [](Case& c) {
        c.tensors = {{"layers.0.router_logits", at::ones({4, 1})}};
      },
      "layers.0.router_logits: got shape [4, 1], expected [tokens, ");
  refused(
      [](Case& c) {
        c.tensors = {{"topk", ids_of(c, 4)}, {"domain", at::zeros({3}).to(at::kLong)}};
      },
      "domain: got shape [3], expected [1], one for each sequence");
}

}  // namespace
}  // namespace hetermoe
