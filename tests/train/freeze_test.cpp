#include "hetermoe/train/job/freeze.h"

#include <gtest/gtest.h>

#include "tests/support/error_of.h"
#include "tests/train/tiny_run.h"

namespace hetermoe {
namespace {

using Patterns = std::vector<std::string>;

std::string error_with(const Patterns& patterns) {
  return error_of([&] { frozen_units(patterns, load_model("tiny")); });
}

TEST(FreezePatterns, NameWholeUnits) {
  const ModelConfig model = load_model("tiny");
  EXPECT_EQ(frozen_units({}, model), std::vector<Unit>{});
  EXPECT_EQ(frozen_units({"model.embed_tokens.weight"}, model), std::vector<Unit>{{}});
  const Unit expert{.layer = 1, .part = UnitPart::kExperts, .expert = 2};
  EXPECT_EQ(frozen_units({"model.layers.1.*.experts.2.*"}, model), std::vector<Unit>{expert});
  EXPECT_EQ(frozen_units({"*.experts.*"}, model).size(),
            static_cast<std::size_t>(model.num_experts * model.num_moe_layers()));
  // Patterns add up to units.
  const Unit attention{.layer = 0, .part = UnitPart::kAttention};
  EXPECT_EQ(
      frozen_units({"model.layers.0.self_attn.*", "model.layers.0.*norm.weight", "*.0.*.gate.weight"}, model),
      std::vector<Unit>{attention});
}

TEST(FreezePatterns, AStarStandsForAnyText) {
  const ModelConfig model = load_model("tiny");
  EXPECT_EQ(frozen_units({"*embed*"}, model), std::vector<Unit>{{}});
  EXPECT_EQ(frozen_units({"model.*_tokens.w*t"}, model), std::vector<Unit>{{}});
  EXPECT_NE(error_with({"embed_tokens.weight"}), "no error");  // the whole name must match
  EXPECT_NE(error_with({"*embed"}), "no error");
}

TEST(FreezePatterns, APartOfAUnitIsRefusedWithWhatIsMissing) {
  const std::string error = error_with({"model.layers.0.self_attn.*"});
  EXPECT_NE(error.find("train.freeze"), std::string::npos) << error;
  EXPECT_NE(error.find("attention l0"), std::string::npos) << error;
  EXPECT_NE(error.find("model.layers.0.input_layernorm.weight"), std::string::npos) << error;
  const std::string expert =
      error_with({"model.layers.1.*.experts.2.w1.weight", "model.layers.1.*.experts.2.gate_proj.weight"});
  EXPECT_NE(expert, "no error");
}

TEST(FreezePatterns, WhatMatchesNothingOrEverythingIsRefused) {
  const std::string nothing = error_with({"model.embed_tokens.weight", "model.layers.99.*"});
  EXPECT_NE(nothing.find("\"model.layers.99.*\" matches no parameter of model tiny"), std::string::npos)
      << nothing;
  const std::string all = error_with({"*"});
  EXPECT_NE(all.find("freezes the whole model tiny"), std::string::npos) << all;
}

std::set<std::string> names_in(const fs::path& file) {
  const std::vector<std::string> names = SafetensorsReader(file).names();
  return {names.begin(), names.end()};
}

TEST(FreezeInARun, LeavesNoMomentsInTheCheckpoint) {
  const WorkFolder folder;
  TinyRun run(folder / "out", {{"train.freeze", "[model.embed_tokens.weight]"}});
  run.run();
  const fs::path newest = find_checkpoints(run.checkpoints(), kIgnore).at(0).path;
  EXPECT_EQ(names_in(newest / "model.safetensors").count("model.embed_tokens.weight"), 1);
  const std::set<std::string> moments = names_in(newest / "optimizer.safetensors");
  EXPECT_EQ(moments.count("model.embed_tokens.weight.exp_avg"), 0);
  EXPECT_EQ(moments.count("model.norm.weight.exp_avg"), 1);
}

TEST(FreezeInARun, AResumedRunEndsAsAnUninterruptedOne) {
  const WorkFolder folder;
  const std::pair<std::string, std::string> freeze{"train.freeze", "[\"*.experts.1.*\", \"*embed*\"]"};
  const TensorsByName whole = TinyRun(folder / "whole", {freeze}).run().values;
  const std::string parts = folder / "parts";
  TinyRun first(parts, {freeze});
  first.job.train.steps = 4;
  first.run();
  expect_equal(TinyRun(parts, {freeze}).run().values, whole);
}

TEST(FreezeInARun, AResumedRunMayFreezeMore) {
  const WorkFolder folder;
  const std::string out = folder / "out";
  TinyRun first(out);
  first.job.train.steps = 4;
  const TensorsByName before = first.run().values;
  const TensorsByName after = TinyRun(out, {{"train.freeze", "[\"*embed*\"]"}}).run().values;
  EXPECT_TRUE(at::equal(before.at("model.embed_tokens.weight"), after.at("model.embed_tokens.weight")));
  EXPECT_FALSE(at::equal(before.at("model.norm.weight"), after.at("model.norm.weight")));
}

TEST(FreezeInARun, WhatWasFrozenHasNoMomentsToResumeWith) {
  const WorkFolder folder;
  const std::string out = folder / "out";
  TinyRun first(out, {{"train.freeze", "[\"*embed*\"]"}});
  first.job.train.steps = 4;
  first.run();
  const std::string error = error_of([&] { TinyRun(out).run(); });
  EXPECT_NE(error.find("does not freeze model.embed_tokens.weight"), std::string::npos) << error;
}

}  // namespace
}  // namespace hetermoe
