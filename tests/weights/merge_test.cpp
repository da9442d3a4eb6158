#include "hetermoe/weights/merge.h"

#include "hetermoe/weights/convert.h"
#include "hetermoe/weights/upcycle.h"
#include "tests/weights/folders.h"

// Growth that is undone.
namespace hetermoe {
namespace {

namespace fs = std::filesystem;

/// A folder that grew without noise.
struct GrownFolder {
  GrownFolder(const fs::path& source, GrowthMode mode, i64 factor)
      : how{.factor = factor, .mode = mode, .noise = 0} {
    const ModelConfig model = model_of(HfFolder(source));
    upcycle_folder(HfWeights(source, model), path(), plan_growth(model, how));
  }
  fs::path path() const { return folder / "grown"; }
  ModelConfig model() const { return model_of(HfFolder(path())); }
  Growth growth() const { return plan_shrink(model(), how); }
  /// Changes a tensor of the folder.
  void change(const std::string& name, const std::function<void(at::Tensor&)>& change) const {
    Tensors tensors = tensors_of(path() / "model.safetensors");
    change(tensors.at(name));
    write_file(path() / "model.safetensors", tensors);
  }
  fs::path shrink(double least = 0.999) const {
    const Growth undone = growth();
    const HfWeights from(path(), undone.after);
    merge_folder(from, folder / "merged", undone, least);
    verify_merged(from, folder / "merged", undone);
    return folder / "merged";
  }

  WorkFolder folder;
  GrowthOptions how;
};

bool can_grow(const std::string& family, const GrowthOptions& how) {
  return error_of<ConfigError>([&] { plan_growth(load_model(parity_folder(family).string()), how); }) ==
         "no error";
}

// Claim (Merge.*, GrowRun.ShrinkingUndoes*, UpcycleCommand.AFolderShrinks*): growing and shrinking without
// noise is the identity to the bit, config and moments included; twins that have parted too far are named
TEST(Merge, ShrinkingUndoesGrowthToTheBit) {
  int shrunk = 0;
  for (const std::string family :
       {"mixtral", "qwen3_moe", "olmoe", "olmoe_other", "deepseek_v2", "deepseek_v2_other", "deepseek_v3"}) {
    FolderCopy source(family);
    // Zeros have signs, too.
    for (auto& [name, tensor] : source.tensors) {
      if (name.find(".experts.") != std::string::npos && tensor.dim() == 2) tensor[0][0] = -0.0F;
    }
    source.write();
    for (const GrowthMode mode : {GrowthMode::kFixedK, GrowthMode::kWideK, GrowthMode::kDormant}) {
      for (const i64 factor : {2, 3}) {
        if (!can_grow(family, {.factor = factor, .mode = mode})) continue;
        const GrownFolder grown(source.path(), mode, factor);
        const fs::path merged = grown.shrink();
        const Tensors before = read_all(source.path()), after = read_all(merged);
        ASSERT_EQ(before.size(), after.size());
        for (const auto& [name, tensor] : before)
          EXPECT_TRUE(equal_bits(tensor, after.at(name))) << family << name_of(mode) << factor << name;
        EXPECT_EQ(to_hf(model_of(HfFolder(merged))), to_hf(source.model())) << family << name_of(mode);
        ++shrunk;
      }
    }
  }
  EXPECT_GE(shrunk, 22);
}

TEST(Merge, InstancesThatPartedBecomeTheirMean) {
  const GrownFolder grown(parity_folder("mixtral"), GrowthMode::kWideK, 3);
  const std::string layer = "model.layers.1.block_sparse_moe.", tensor = layer + "experts.5.w2.weight";
  const auto more = [](at::Tensor& w) { w[1][2] += 0.03; };
  grown.change(tensor, more);                                                    // an instance of expert 1
  grown.change(layer + "gate.weight", [](at::Tensor& w) { w[9][0] -= 0.006; });  // likewise
  const Tensors before = read_all(parity_folder("mixtral")), after = read_all(grown.shrink(0.9));
  at::Tensor matrix = before.at(layer + "experts.1.w2.weight").clone();
  matrix[1][2] += 0.01;
  EXPECT_TRUE(at::allclose(after.at(layer + "experts.1.w2.weight"), matrix, 1e-6, 1e-8));
  at::Tensor rows = before.at(layer + "gate.weight").clone();
  rows[1][0] -= 0.002;
  EXPECT_TRUE(at::allclose(after.at(layer + "gate.weight"), rows, 1e-6, 1e-8));
}

TEST(Merge, TwinsThatPartedTooFarAreNamed) {
  const std::string layer = "model.layers.1.block_sparse_moe.";
  const auto error_after = [&](const std::string& name, const std::function<void(at::Tensor&)>& change) {
    const GrownFolder grown(parity_folder("mixtral"), GrowthMode::kWideK, 2);
    grown.change(name, change);
    const std::string error = error_of<ConfigError>([&] { grown.shrink(); });
    EXPECT_FALSE(fs::exists(grown.folder / "merged"));
    return error;
  };
  const std::string matrix = error_after(layer + "experts.7.w1.weight", [](at::Tensor& w) { w.neg_(); });
  EXPECT_TRUE(has_part(matrix, "layer 1, expert 3: instance 2 has cosine ")) << matrix;
  const std::string row = error_after(layer + "gate.weight", [](at::Tensor& w) { w[6].zero_(); });
  EXPECT_TRUE(has_part(row, "layer 1, expert 2: the router row of instance 2 has cosine nan") ||
              has_part(row, "layer 1, expert 2: the router row of instance 2 has cosine -nan"))
      << row;
}

TEST(Merge, ACopyThatWokeIsNotDropped) {
  const GrownFolder grown(parity_folder("deepseek_v3"), GrowthMode::kDormant, 2);
  const std::string bias = "model.layers.1.mlp.gate.e_score_correction_bias";
  const i64 experts = grown.model().num_experts;
  grown.change(bias, [&](at::Tensor& values) { values[experts - 1] += 1.5; });
  const std::string error = error_of<ConfigError>([&] { grown.shrink(); });
  EXPECT_TRUE(has_part(error, fmt::format("layer 1, expert {}: this copy may be chosen", experts - 1)))
      << error;
}

TEST(Merge, WhatCannotShrinkIsRefused) {
  const auto error_for = [](const std::string& family, const GrowthOptions& how) {
    return error_of<ConfigError>([&] { plan_shrink(load_model(parity_folder(family).string()), how); });
  };
  const auto expect = [](const std::string& error, const char* part) {
    EXPECT_TRUE(has_part(error, part)) << error;
  };
  expect(error_for("llama", {}), "has no experts to merge");
  expect(error_for("mixtral", {.factor = 3}), "has 4 experts: expected a divisor of it");
  expect(error_for("qwen3_moe", {.mode = GrowthMode::kWideK}), "has 3 experts for a token (wide-k)");
  expect(error_for("mixtral", {.factor = 4}), "would leave mixtral 1 expert of which a token sees 2");
  expect(error_for("mixtral", {.factor = 1}), "adds no experts");
  expect(error_for("mixtral", {.mode = GrowthMode::kDormant}), "does not have");
}

}  // namespace
}  // namespace hetermoe
