#include <gtest/gtest.h>

#include "hetermoe/plan/pipeline_tasks.h"
#include "tests/golden/layer_seconds.h"

// Steps of interleaved pipelines: Megatron-LM (arXiv 2104.04473, section 2.2). With P ranks, M microbatches
// and chunks of f + b seconds on each rank, a step takes M v (f + b) + (P - 1) (f + b): the bubble is 1/v of
// what it is with the same layers in one piece.
namespace hetermoe {
namespace {

struct Pipeline {
  i32 ranks, chunks;
  i64 microbatches;
  i64 layers_of_chunk = 1;
};

Plan make_interleaved(const Pipeline& p, const ModelConfig& model, const Cluster& cluster) {
  StrategyRequest request;
  request.seq_len = 8;
  request.sequences = request.microbatches = p.microbatches;
  request.stages = p.ranks;
  request.interleave = p.chunks;
  Plan plan = find_strategy("pp-ep").make(model, cluster, request);
  plan.recompute = Recompute::kOff;
  return plan;
}

Seconds step_of(const Pipeline& p) {
  test::ModelShape shape{.num_layers = p.ranks * p.chunks * p.layers_of_chunk};
  for (i64 l = 0; l < shape.num_layers; ++l) shape.dense.push_back(l);
  const ModelConfig model = test::make_model(shape);
  const Cluster cluster = test::make_cluster({p.ranks});
  const Plan plan = make_interleaved(p, model, cluster);
  EXPECT_TRUE(test::no_faults(validate(plan, model, cluster)));
  LayerSeconds cost;
  cost.times.forward.assign(static_cast<std::size_t>(shape.num_layers) + 1, 1);
  cost.times.backward.assign(static_cast<std::size_t>(shape.num_layers) + 1, 2);
  cost.times.backward.back() = 0;
  const Schedule schedule = build_schedule(plan, model);
  EXPECT_TRUE(test::no_faults(validate(schedule, plan, model)));
  return Simulator()
      .run(schedule, price(schedule, Placement(plan, model, {}), model, cluster, cost, EachLayer(model)))
      .step;
}

TEST(InterleavedGolden, TheBubbleIsAChunk) {
  EXPECT_EQ(step_of({.ranks = 4, .chunks = 1, .microbatches = 8, .layers_of_chunk = 2}), 8 * 6 + 3 * 6);
  EXPECT_EQ(step_of({.ranks = 4, .chunks = 2, .microbatches = 8}), 8 * 6 + 3 * 3);
  EXPECT_EQ(step_of({.ranks = 2, .chunks = 2, .microbatches = 4}), 4 * 6 + 1 * 3);
  EXPECT_EQ(step_of({.ranks = 2, .chunks = 4, .microbatches = 8}), 8 * 12 + 1 * 3);
  EXPECT_EQ(step_of({.ranks = 4, .chunks = 4, .microbatches = 16}), 16 * 12 + 3 * 3);
}

/// Groups of windows that are not full: none waits for ever, and the bubble is at most a chunk more than that
/// of one piece.
TEST(InterleavedGolden, AnyNumberOfMicrobatches) {
  for (const i64 microbatches : {1, 2, 3, 5, 6, 7, 9, 11}) {
    const Seconds step = step_of({.ranks = 4, .chunks = 2, .microbatches = microbatches});
    EXPECT_LE(step, real(microbatches) * 6 + 3 * 6 + 3) << microbatches;
    EXPECT_GE(step, real(microbatches) * 6 + 3 * 3) << microbatches;
  }
}

/// As in validation: forward alone, of turns as well.
TEST(InterleavedGolden, ForwardAlone) {
  const ModelConfig model = test::make_model({.num_layers = 4});
  const Cluster cluster = test::make_cluster({2});
  const StepOptions forward{.backward = false};
  Plan turns = make_interleaved({.ranks = 2, .chunks = 1, .microbatches = 4}, model, cluster);
  deal_turns(turns, {.split = {.forward = {2, 1}, .fused = 2, .backward = {1, 2}}, .round = 2});
  for (const Plan& plan :
       {make_interleaved({.ranks = 2, .chunks = 2, .microbatches = 4}, model, cluster), turns}) {
    const Schedule schedule = build_schedule(plan, model, forward);
    EXPECT_TRUE(test::no_faults(validate(schedule, plan, model, forward))) << name_of(plan.order);
    EXPECT_GT(schedule.num_ops(), 0);
  }
}

TEST(InterleavedGolden, TasksOfTheFirstRank) {
  const ModelConfig model = test::make_model({.num_layers = 4});
  const Cluster cluster = test::make_cluster({2});
  const Plan plan = make_interleaved({.ranks = 2, .chunks = 2, .microbatches = 4}, model, cluster);
  const PipelineStages stages = pipeline_stages(plan.groups[0]);
  EXPECT_EQ(stages.first_layer, (std::vector<i32>{0, 1, 2, 3}));
  EXPECT_EQ(stages.ranks, 2);
  std::string text;
  for (const PipelineTask& task : tasks_of_rank(stages, 0, 4, true))
    text += fmt::format("{}{}.{} ", task.forward ? "F" : "B", task.stage, task.window);
  EXPECT_EQ(text, "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3 ");
  EXPECT_EQ(windows_in_flight(stages, 0, 4), 4);
  EXPECT_EQ(windows_in_flight(stages, 2, 4), 2);
}

}  // namespace
}  // namespace hetermoe
