#include <gtest/gtest.h>

#include "tests/equivalence/against_reference.h"

// Teams share sequences: tokens and heads of any devices give the gradients of the reference.
namespace hetermoe::testing {
namespace {

ShareRow team_row(const std::vector<i64>& tokens, const std::vector<i64>& heads, i64 sequences) {
  ShareRow row;
  for (std::size_t d = 0; d < tokens.size(); ++d)
    row.push_back({static_cast<DeviceId>(d), sequences, tokens[d], heads[d], 0});
  return row;
}

Plan team_plan(const ModelConfig& model, const Cluster& cluster, const ShareRow& row, i64 sequences,
               i64 microbatches) {
  StrategyRequest request;
  request.seq_len = 6;
  request.sequences = sequences * microbatches, request.microbatches = microbatches;
  Plan plan = find_strategy("ep").make(model, cluster, request);
  Group& group = plan.groups[0];
  group.embed = group.head = {row};
  for (LayerPlacement& layer : group.layers) layer.attention = {row};
  return plan;
}

const char* const kModels[] = {"tiny",        "tiny-qwen3",       "tiny-olmoe",      "tiny-deepseek-v2",
                               "tiny-llama",  "tiny-deepseek-v3", "tiny-minimax-m2", "tiny-mistral",
                               "tiny-gpt-oss"};

/// Even and uneven teams of 1 to 4, devices without tokens or without heads, query heads of one key-value
/// head on several devices, a sequence that ends inside a device's tokens; all ways to recompute; one and
/// several microbatches.
// Claim (Teams.*, RandomPlans.*): teams give the gradients of the reference: any parts of tokens and heads,
// none of either, shared key-value heads, latent attention, heads in parts, all ways to recompute; a quarter
// of all random plans has some
TEST(Teams, GiveTheGradientsOfTheReference) {
  std::size_t i = 0;
  for (const char* name : kModels) {
    const ModelConfig model = load_model(name);
    const i64 h = model.num_heads;
    const std::vector<std::pair<std::vector<i64>, std::vector<i64>>> cases = {
        {{12}, {h}},
        {{6, 6}, {h / 2, h - h / 2}},
        {{5, 7}, {h, 0}},
        {{12, 0}, {0, h}},
        {{4, 4, 4}, {1, h - 2, 1}},
        {{1, 8, 3}, {h - 1, 0, 1}},
        {{3, 0, 7, 2}, {1, 1, 0, h - 2}}};
    for (const auto& [tokens, heads] : cases) {
      const Cluster cluster = make_cluster(static_cast<i32>(tokens.size()), 1 + static_cast<i32>(i % 3));
      Plan plan = team_plan(model, cluster, team_row(tokens, heads, 2), 2, 1 + static_cast<i64>(i % 2));
      plan.recompute = static_cast<Recompute>(i % kEnumCount<Recompute>);
      plan.window = static_cast<i32>(i % 3);
      plan.weight_gradients = i % 3 == 1 ? WeightGradients::kAfter : WeightGradients::kWith;
      plan.chunks = 1 + static_cast<i32>(i % 2);
      plan.head_parts = 1 + static_cast<i32>(i % 4);
      plan.shard_optimizer = i % 5 == 0;
      const Comparison found = against_reference(model, cluster, plan);
      EXPECT_LE(found.max(), kTolerance)
          << name << " " << fmt::format("tokens {} heads {}", fmt::join(tokens, " "), fmt::join(heads, " "))
          << ": loss " << found.loss << ", gradient " << found.gradient << " of " << found.worst;
      ++i;
    }
  }
}

/// A document that begins on one device and ends on another; jitter and the z-loss by position.
TEST(Teams, KnowDocumentsAndPositionsOfWholeSequences) {
  for (const char* name : {"tiny-qwen3", "tiny-deepseek-v2", "tiny-mistral"}) {
    const ModelConfig model = load_model(name);
    const Cluster cluster = make_cluster(3);
    Plan plan = team_plan(model, cluster, team_row({5, 4, 3}, {1, model.num_heads - 1, 0}, 2), 2, 2);
    plan.recompute = Recompute::kAhead;
    plan.head_parts = 2;
    const Comparison found = against_reference(model, cluster, plan, [&](StepInput& input) {
      input.starts = at::zeros_like(input.tokens);
      for (i64 s = 0; s < input.starts.size(0); ++s) {
        input.starts[s][0] = 1;
        input.starts[s][1 + s] = 1;
      }
      if (model.num_moe_layers() > 0) input.router = {.z_loss = 0.02, .jitter = 0.1, .seed = 9};
    });
    EXPECT_LE(found.max(), kTolerance) << name << ": " << found.gradient << " of " << found.worst;
  }
}

}  // namespace
}  // namespace hetermoe::testing
