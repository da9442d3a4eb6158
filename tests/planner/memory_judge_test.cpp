#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "hetermoe/planner/evaluator.h"
#include "hetermoe/planner/planner.h"
#include "hetermoe/planner/strategies.h"
#include "hetermoe/schedule/builder.h"
#include "hetermoe/sim/simulated_step.h"
#include "tests/support/nodes_of_eight.h"
#include "tests/support/random_request.h"

// The peak of the simulated step decides whether a plan fits; the closed form sorts.
namespace hetermoe {
namespace {

/// [device] of all ops and microbatches, as `simulate --plan` shows them.
std::vector<Bytes> peaks_of(const PlanRequest& request, const Plan& plan, double zipf = 0) {
  const Schedule schedule = build_schedule(plan, request.model);
  const Placement placement(plan, request.model);
  const std::vector<double> popularity =
      zipf > 0 ? zipf_popularity(request.model.num_experts, zipf) : std::vector<double>();
  const std::unique_ptr<CostModel> cost = make_cost(request.model, request.cluster, plan, {});
  const SimulatedStep step =
      simulate_step(schedule, placement, placement, request.model, request.cluster, *cost,
                    ExpectedRouting(request.model, popularity));
  std::vector<Bytes> peaks;
  for (DeviceId d = 0; d < request.cluster.num_devices(); ++d)
    peaks.push_back(step.memory[static_cast<std::size_t>(d)].use.total());
  return peaks;
}

PlanRequest request_of(const std::string& model, const Cluster& cluster, i64 seq_len, i64 sequences) {
  PlanRequest request;
  request.model = load_model(model);
  request.cluster = cluster;
  request.seq_len = seq_len, request.sequences = sequences;
  request.dtype = Dtype::kBf16;
  request.limits.offload = false;
  return request;
}

struct Row {
  const char* model;
  i64 seq_len, sequences;
};

class MemoryJudge : public ::testing::TestWithParam<Row> {};

/// Plans that were handed out with a peak of 77.6 to 78.3 of 76.6 GiB.
TEST_P(MemoryJudge, HandsOutNoPlanWhosePeakIsTooHigh) {
  const Row& row = GetParam();
  PlanRequest request = request_of(row.model, testing::nodes_of_eight(1), row.seq_len, row.sequences);
  request.limits.simulation_budget = 200'000;
  const PlanResult result = find_plan(request);
  ASSERT_TRUE(result.feasible()) << result.infeasible;
  EXPECT_EQ(overfilled_device(peaks_of(request, result.best().plan), request.cluster), "");
}

INSTANTIATE_TEST_SUITE_P(On8H100, MemoryJudge,
                         ::testing::Values(Row{"llama-3.1-8b", 512, 256}, Row{"qwen3-30b-a3b", 512, 256},
                                           Row{"qwen3-32b", 512, 64}));
