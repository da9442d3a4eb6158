#include <gtest/gtest.h>

#include <sstream>

#include "hetermoe/base/json.h"
#include "hetermoe/planner/strategies/round_robin_plan.h"
#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

/// The lines of a page that are indented as code and begin with `word`.
std::string code_lines(const std::string& word, const std::string& name = "schedule.md") {
  std::istringstream page(read_text(HM_SOURCE_DIR "/docs/" + name));
  std::string lines;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("    " + word)) lines += line.substr(4) + "\n";
  }
  return lines;
}

// Claim (DocumentedExample.*): the examples of `docs/schedule.md`, `roundpipe.md`, `af-pipe.md` and
// `teams.md` are what the builder makes
TEST(DocumentedExample, IsTheTextFormOfZebraOnTwoDevices) {
  const ModelConfig model = test::make_model({.num_layers = 1});
  const Plan plan = test::make_zebra_plan(model, test::make_cluster({2}), {});
  EXPECT_EQ(code_lines("device "), to_text(build_schedule(plan, model)));
}

/// Lanes as the page writes them, without append numbers.
std::string lane_text(const Schedule& schedule, LaneId lane, std::string text) {
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    const std::span<const LaneId> lanes = schedule.lanes_of(op);
    if (std::find(lanes.begin(), lanes.end(), lane) != lanes.end())
      text += to_string(schedule.ops[static_cast<std::size_t>(op)]) + " | ";
  }
  return text.substr(0, text.size() - 3) + "\n";
}
std::string compute_lane(const Schedule& schedule, DeviceId device) {
  return lane_text(schedule, lane_of(device, Queue::kCompute), fmt::format("of device {}: ", device));
}

TEST(DocumentedExample, TheSameWithRecomputationAheadAndGradientsOfWeightsAfter) {
  const ModelConfig model = test::make_model({.num_layers = 1});
  Plan plan = test::make_zebra_plan(model, test::make_cluster({2}), {});
  plan.recompute = Recompute::kAhead;
  plan.weight_gradients = WeightGradients::kAfter;
  const Schedule schedule = build_schedule(plan, model);
  EXPECT_EQ(code_lines("of device "), compute_lane(schedule, 0) + compute_lane(schedule, 1));
}

TEST(DocumentedExample, ExpertsThatAreLent) {
  const ModelConfig model = test::make_model({.num_layers = 1});
  Plan plan = test::make_zebra_plan(model, test::make_cluster({3}), {.experts = 2});
  plan.guest_slots = 2;
  const Schedule schedule = build_schedule(plan, model);
  EXPECT_EQ(code_lines("with guests, "),
            lane_text(schedule, lane_of(1, Queue::kCompute), "with guests, compute: ") +
                lane_text(schedule, lane_of(1, Queue::kGuests), "with guests, guests: "));
}

TEST(DocumentedExample, RoundRobinOnTwoDevices) {
  const ModelConfig model = test::make_model({.num_layers = 2, .dense = {0, 1}});
  StrategyRequest request;
  request.seq_len = 16;
  request.sequences = request.microbatches = 2;
  Plan plan = find_strategy("ep").make(model, test::make_cluster({2}), request);
  deal_turns(plan, {.split = {.forward = {2}, .fused = 1, .backward = {1, 1}}, .round = 2});
  const Schedule schedule = build_schedule(plan, model);
  EXPECT_EQ(code_lines("of device ", "roundpipe.md"), compute_lane(schedule, 0) + compute_lane(schedule, 1));
}

TEST(DocumentedExample, DepthGroupsOnFourDevices) {
  const ModelConfig model = test::make_model({.num_layers = 2});
  StrategyRequest request;
  request.seq_len = 16;
  request.sequences = request.microbatches = 2;
  request.attention = {0, 1}, request.experts = {2, 3};
  request.depth_groups = {2};
  Plan plan = find_strategy("af-pipe").make(model, test::make_cluster({4}), request);
  plan.expected.reset();
  const Schedule schedule = build_schedule(plan, model);
  std::string lanes;
  for (DeviceId device = 0; device < 4; ++device) lanes += compute_lane(schedule, device);
  EXPECT_EQ(code_lines("of device ", "af-pipe.md"), lanes);
  plan.combine_to = CombineTo::kNext;
  const Schedule next = build_schedule(plan, model);
  lanes.clear();
  for (const DeviceId device : {1, 3}) {
    for (const auto& [queue, name] : {std::pair(Queue::kCompute, "compute"), std::pair(Queue::kMove, "move"),
                                      std::pair(Queue::kToAttention, "to_attention")})
      lanes += lane_text(next, lane_of(device, queue), fmt::format("next, device {} {}: ", device, name));
  }
  EXPECT_EQ(code_lines("next, device ", "af-pipe.md"), lanes);
}

TEST(DocumentedExample, ATeamOfTwoDevices) {
  const ModelConfig model = test::make_model({.num_layers = 1});
  StrategyRequest request;
  request.seq_len = 16;
  request.sequences = request.microbatches = 2;
  request.team = {2};
  request.window = 2;
  Plan plan = find_strategy("sp-ep").make(model, test::make_cluster({2}), request);
  plan.recompute = Recompute::kAhead;
  const Schedule schedule = build_schedule(plan, model);
  EXPECT_EQ(code_lines("of device ", "teams.md"), compute_lane(schedule, 0));
}

TEST(DocumentedExample, ATeamWithHeadsInParts) {
  const ModelConfig model = test::make_model({.num_layers = 1});
  StrategyRequest request;
  request.seq_len = 16;
  request.sequences = 1;
  request.team = {2};
  Plan plan = find_strategy("sp-ep").make(model, test::make_cluster({2}), request);
  plan.head_parts = 2;
  const Schedule schedule = build_schedule(plan, model);
  EXPECT_EQ(code_lines("in parts, ", "teams.md"),
            lane_text(schedule, lane_of(0, Queue::kCompute), "in parts, compute: ") +
                lane_text(schedule, lane_of(0, Queue::kSequence), "in parts, sequence: "));
}

}  // namespace
}  // namespace hetermoe
