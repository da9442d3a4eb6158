#include "hetermoe/weights/sparse.h"

#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/nn/reference.h"
#include "tests/weights/folders.h"

// Dense MLPs that become experts compute what they did, by the single-device reference in fp64.
namespace hetermoe {
namespace {

namespace fs = std::filesystem;

at::Tensor logits_of(const fs::path& folder) {
  const ModelConfig model = load_model(folder.string());
  Tensors weights = read_all(folder);
  for (auto& [name, tensor] : weights) tensor = tensor.to(at::kDouble);
  std::vector<i64> tokens;
  for (i64 i = 0; i < 24; ++i) tokens.push_back(i * i % model.vocab);
  return reference_logits(model, weights, at::tensor(tokens, at::kLong).view({2, 12}));
}
/// A family's model of the tests with other settings and new weights.
class Varied {
 public:
  explicit Varied(const std::string& family, const Json& settings = Json::object()) : copy_(family) {
    Json config = copy_.config();
    config.update(settings);
    copy_.set_config(config);
    at::manual_seed(1);
    copy_.tensors.clear();
    for (const ParamInfo& parameter : parameters(copy_.model()))
      copy_.tensors[parameter.name] = at::randn(parameter.shape) * 0.3;
    copy_.write();
  }
  const fs::path& path() const { return copy_.path(); }
  ModelConfig model() const { return copy_.model(); }

 private:
  FolderCopy copy_;
};

/// The folder with experts, verified, whose logits are those of the source.
Sparse expect_same_function(const fs::path& source, const SparseOptions& options, const fs::path& to) {
  const ModelConfig model = load_model(source.string());
  const Sparse sparse = plan_sparse(model, options);
  const HfWeights from(source, model);
  sparsify_folder(from, to, sparse, 3);
  verify_sparse(from, to, sparse, 3);
  const at::Tensor expected = logits_of(source);
  // A factor that is no power of two is rounded in the dtype of the file.
  const bool exact = sparse.scale() == 1;
  EXPECT_LE(largest(logits_of(to) - expected), (exact ? 1e-12 : 1e-6) * largest(expected)) << source;
  return sparse;
}

// Claim (Sparse.*): experts made of a dense MLP compute what it did, as copies or in shards, whatever the
// groups
TEST(Sparse, ADenseModelBecomesOneWithExpertsOfTheSameFunction) {
  for (const std::string& family : kSparseFamilies) {
    for (const i64 top_k : {1, 2, 4}) {
      const WorkFolder out;
      const fs::path to = out / "made";
      const Sparse made =
          expect_same_function(parity_folder(family), {.experts = 4, .top_k = top_k, .layers = {}}, to);
      EXPECT_EQ(made.after.model_type, family == "qwen3" ? "qwen3_moe" : "mixtral");
      const std::string router = family == "qwen3" ? "model.layers.1.mlp.gate.weight"
                                                   : "model.layers.1.block_sparse_moe.gate.weight";
      EXPECT_NEAR(read_all(to).at(router).std().item<double>(), 0.02, 0.01);
    }
  }
}

TEST(Sparse, SomeLayersOfQwen3MayStayDense) {
  const WorkFolder out;
  const fs::path to = out / "made";
  const Sparse made = expect_same_function(parity_folder("qwen3"), {4, 2, {1}}, to);
  EXPECT_EQ(made.after.num_moe_layers(), 1);
  EXPECT_TRUE(load_model(to.string()).is_moe(1));
  EXPECT_FALSE(load_model(to.string()).is_moe(0));
}

/// The MLP is as wide as one expert and the shared one: each expert is all that the shared one is not.
TEST(Sparse, AnMlpThatOneExpertHoldsIsCopied) {
  const WorkFolder out;
  const Varied source("deepseek_v3", {{"intermediate_size", 12}});
  const Sparse made = expect_same_function(source.path(), {.layers = {0}}, out / "made");
  EXPECT_EQ(made.shards, 1);
  EXPECT_EQ(read_json(fs::path(out / "made") / "config.json").at("first_k_dense_replace"), 0);
}

/// Four shards, four experts for a token: the shards of a copy lie in the two groups that a token keeps.
TEST(Sparse, ShardsOfACopyAreChosenTogetherWhateverTheGroups) {
  const WorkFolder out;
  const Json wide = {{"n_routed_experts", 16}, {"num_experts_per_tok", 4}, {"intermediate_size", 30}};
  const Varied source("deepseek_v3", wide);
  const Sparse made = expect_same_function(source.path(), {.layers = {0}}, out / "made");
  EXPECT_EQ(made.shards, 4);
  std::set<std::pair<i64, i64>> places;
  std::map<i64, std::set<i64>> groups;
  for (ExpertId e = 0; e < 16; ++e) {
    places.insert({made.copy_of(e), made.shard_of(e)});
    groups[made.copy_of(e)].insert(e / 4);
  }
  EXPECT_EQ(places.size(), 16u);  // four copies of four shards
  for (const auto& [copy, of] : groups) EXPECT_EQ(of, (copy < 2 ? std::set<i64>{0, 1} : std::set<i64>{2, 3}));
}

/// The third shard is beyond the MLP's neurons: its output is nothing, and yet it learns.
TEST(Sparse, NeuronsThatAnMlpLacksAreNewAndSilent) {
  const WorkFolder out;
  const fs::path to = out / "made";
  const Sparse made = expect_same_function(parity_folder("qwen3_moe"), {.layers = {1}}, to);
  EXPECT_EQ(made.shards, 3);
  const Tensors weights = read_all(to);
  EXPECT_EQ(largest(weights.at("model.layers.1.mlp.experts.5.down_proj.weight")), 0);
  EXPECT_GT(weights.at("model.layers.1.mlp.experts.5.up_proj.weight").std().item<double>(), 0.01);
}

/// Where every second layer has experts by another key.
TEST(Sparse, TheConfigSaysWhichLayersAreLeft) {
  const WorkFolder out;
  const fs::path to = out / "made";
  const Varied source("qwen3_moe_other", {{"norm_topk_prob", true}});
  ASSERT_FALSE(source.model().is_moe(0));
  ASSERT_FALSE(source.model().is_moe(2));
  expect_same_function(source.path(), {.layers = {2}}, to);
  EXPECT_FALSE(load_model(to.string()).is_moe(0));
  EXPECT_TRUE(load_model(to.string()).is_moe(2));
}

TEST(Sparse, ReleasedModels) {
  const Sparse v3 = plan_sparse(load_model("deepseek-v3"), {.layers = {0, 1, 2}});
  EXPECT_EQ(v3.shards, 8);
  EXPECT_EQ(v3.after.num_moe_layers(), 61);
  std::map<i64, std::set<i64>> groups;
  for (ExpertId e = 0; e < 256; ++e) groups[v3.copy_of(e)].insert(e / 32);
  EXPECT_EQ(groups.size(), 32u);
  for (const auto& [copy, of] : groups) EXPECT_EQ(of.size(), 4u);  // as many as a token keeps
}

TEST(Sparse, WhatCannotBeIsRefusedInOneSentence) {
  const auto expect = [](const fs::path& folder, const SparseOptions& options, const char* part) {
    const std::string error =
        error_of<ConfigError>([&] { plan_sparse(load_model(folder.string()), options); });
    EXPECT_TRUE(has_part(error, part)) << error;
  };
  expect(parity_folder("olmoe"), {4, 2, {}}, "has 6 experts already");
  expect(parity_folder("olmoe"), {.layers = {0}}, "has no dense layers: expected --factor");
  expect(parity_folder("llama"), {4, 5, {}}, "more than there are experts");
  expect(parity_folder("llama"), {4, 2, {0}}, "whose config.json has no dense layers: expected all layers");
  expect(parity_folder("qwen3"), {4, 2, {7}}, "got 7, but the layers of");
  expect(parity_folder("qwen3_moe"), {.layers = {0}},
         "got 0, which has experts already, and qwen3_moe has one number of experts for all layers: expected "
         "dense layers (1)");
  expect(parity_folder("deepseek_v2"), {.layers = {0}}, "its routing weights are not normalised");
  expect(parity_folder("deepseek_v3"), {.layers = {0}}, "do not hold as whole copies");
  expect(Varied("deepseek_v3", {{"first_k_dense_replace", 2}}).path(), {.layers = {0}},
         "leaves layer 1 dense behind layer 0, but deepseek_v3 has dense layers at the beginning alone");
}

}  // namespace
}  // namespace hetermoe
