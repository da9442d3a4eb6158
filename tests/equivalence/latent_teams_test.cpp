#include <gtest/gtest.h>

#include "hetermoe/plan/offload.h"
#include "tests/equivalence/adapters.h"
#include "tests/equivalence/against_reference.h"
#include "tests/support/with_hosts.h"

// Teams that send the latents of MLA, from which each device makes keys and values of its heads: they give
// the gradients of the reference. Up to three devices with heads get latents of narrow_model().
namespace hetermoe::testing {
namespace {

struct Part {
  std::vector<i64> tokens, heads;
  bool latents;
};
/// Teams of 12 tokens and 4 heads each.
const std::vector<std::vector<Part>> kRows = {{{{6, 6}, {2, 2}, true}},
                                              {{{11, 1}, {1, 3}, true}},
                                              {{{5, 3, 4}, {1, 2, 1}, true}},
                                              {{{5, 0, 7}, {3, 1, 0}, true}},
                                              {{{3, 4, 2, 3}, {1, 1, 0, 2}, true}},
                                              {{{3, 4, 2, 3}, {1, 1, 1, 1}, false}},
                                              {{{7, 5}, {2, 2}, true}, {{2, 10}, {0, 4}, true}},
                                              {{{7, 5}, {1, 3}, true}, {{3, 2, 6, 1}, {1, 1, 1, 1}, false}}};

ModelConfig narrow_model(const std::string& name) {
  ModelConfig model = load_model(name);
  model.kv_lora_rank = 12;
  return model;
}

struct Case {
  Cluster cluster;
  Plan plan;
};

/// Microbatches of two sequences for each team.
Case make_case(const ModelConfig& model, const std::vector<Part>& parts, i64 microbatches,
               i32 node_size = 2) {
  ShareRow row;
  for (std::size_t t = 0; t < parts.size(); ++t) {
    for (std::size_t i = 0; i < parts[t].tokens.size(); ++i)
      row.push_back(
          {static_cast<DeviceId>(row.size()), 2, parts[t].tokens[i], parts[t].heads[i], static_cast<i32>(t)});
  }
  Case out{make_cluster(static_cast<i32>(row.size()), node_size), {}};
  StrategyRequest request;
  request.seq_len = 6;
  request.sequences = 2 * static_cast<i64>(parts.size()) * microbatches, request.microbatches = microbatches;
  out.plan = find_strategy("ep").make(model, out.cluster, request);
  Group& group = out.plan.groups[0];
  group.embed = group.head = {row};
  for (LayerPlacement& layer : group.layers) layer.attention = {row};
  const Placement placement(out.plan, model, {});
  const std::vector<Team> teams = placement.teams_of(0, 1, 0);
  EXPECT_EQ(teams.size(), parts.size());
  for (std::size_t t = 0; t < teams.size(); ++t) EXPECT_EQ(teams[t].latents, parts[t].latents);
  return out;
}

/// With and without a latent of queries (v3, v2); all ways to recompute.
// Claim (LatentTeams.*): teams that send latents give the gradients of the reference, also with documents,
// adapters, and weights on hosts
TEST(LatentTeams, GiveTheGradientsOfTheReference) {
  i32 i = 0;
  const ModelConfig models[] = {narrow_model("tiny-deepseek-v2"), narrow_model("tiny-deepseek-v3")};
  for (const std::vector<Part>& parts : kRows) {
    for (i32 r = 0; r < kEnumCount<Recompute>; ++r, ++i) {
      const ModelConfig& model = models[i % 2];
      Case c = make_case(model, parts, 1 + i % 2, 1 + i % 3);
      c.plan.recompute = static_cast<Recompute>(r);
      c.plan.window = i % 3;
      c.plan.weight_gradients = i % 4 == 1 ? WeightGradients::kAfter : WeightGradients::kWith;
      c.plan.shard_optimizer = i % 3 == 0;
      const Comparison found = against_reference(model, c.cluster, c.plan);
      EXPECT_LE(found.max(), kTolerance)
          << model.name << " " << name_of(c.plan.recompute) << " case " << i << ": loss " << found.loss
          << ", gradient " << found.gradient << " of " << found.worst;
    }
  }
}

/// Documents that begin on one device and end on another.
TEST(LatentTeams, KnowDocuments) {
  const ModelConfig model = narrow_model("tiny-deepseek-v3");
  Case c = make_case(model, kRows[2], 2);
  const Comparison found = against_reference(model, c.cluster, c.plan, [](StepInput& input) {
    input.starts = at::zeros_like(input.tokens);
    for (i64 s = 0; s < input.starts.size(0); ++s) input.starts[s][0] = 1, input.starts[s][1 + s] = 1;
  });
  EXPECT_LE(found.max(), kTolerance) << found.gradient << " of " << found.worst;
}

/// Each device gives the gradients of its rows of B, and its part of those of A; also where the frozen
/// weights visit from a host.
TEST(LatentTeams, TrainAdapters) {
  const ModelConfig model = narrow_model("tiny-deepseek-v3");
  for (const Patterns& patterns : {Patterns{"*kv_b_proj*"}, {"*_proj*"}, {"*q_b_proj*"}}) {
    const StepOptions step = with_lora(model, patterns);
    const TensorsByName values = lively(model, *step.lora);
    for (const bool hosts : {false, true}) {
      for (const std::size_t row : {0, 3, 5, 7}) {
        Case c = make_case(model, kRows[row], 2);
        use_fp64(c.plan);
        c.plan.recompute = row == 3 ? Recompute::kOff : Recompute::kAhead;
        if (hosts) c.cluster = with_hosts(std::move(c.cluster));
        if (hosts) offload(c.plan, model, c.cluster, {"all"}, "test");
        ASSERT_EQ(validate(c.plan, model, c.cluster), std::vector<std::string>{});
        Session session = make_session(model, c.cluster, c.plan, step);
        load(session, values);
        const StepInput input = random_input(c.plan, model);
        const StepResult result = session.train_step(input);
        const Comparison found =
            compare(result, session.gradients(), reference_of(model, *step.lora, values, input));
        EXPECT_LE(found.max(), kTolerance) << patterns[0] << " row " << row << " hosts " << hosts << ": "
                                           << found.gradient << " of " << found.worst;
      }
    }
  }
}

/// Weights and saved inputs wait on hosts: scores needs the visit, too.
TEST(LatentTeams, TrainWeightsOnHosts) {
  i32 i = 0;
  for (const std::vector<Part>& parts : kRows) {
    const ModelConfig model = narrow_model(i % 2 == 0 ? "tiny-deepseek-v2" : "tiny-deepseek-v3");
    for (const std::vector<std::string>& entries :
         {std::vector<std::string>{"attention.weights"}, {"all"}, {"weights", "saved"}}) {
      Case c = make_case(model, parts, 2);
      c.cluster = with_hosts(std::move(c.cluster));
      use_fp64(c.plan);
      const bool saved = entries.back() == "saved";  // what is kept on devices cannot wait on hosts
      c.plan.recompute = saved ? Recompute::kAhead : static_cast<Recompute>(i % kEnumCount<Recompute>);
      offload(c.plan, model, c.cluster, entries, "test");
      c.plan.slots = {1 + i % 3, 1 + (i + 1) % 3, 1 + i % 2};
      ++i;
      const Comparison found = against_reference(model, c.cluster, c.plan);
      EXPECT_LE(found.max(), kTolerance)
          << "case " << i << " " << entries[0] << ": " << found.gradient << " of " << found.worst;
    }
  }
}

}  // namespace
}  // namespace hetermoe::testing
