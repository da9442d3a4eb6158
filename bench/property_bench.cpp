#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/estimate/lane_bound.h"
#include "hetermoe/planner/search/plan_key.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/schedule/schedule_error.h"
#include "hetermoe/sim/simulated_step.h"
#include "tests/support/more_requests.h"

// What should be true of every plan, over random clusters; cases where it is not are printed.
namespace hetermoe {
namespace {

constexpr double kSlower = 0.99;  ///< of the throughput with less to choose from
constexpr double kBeaten = 1.02;  ///< throughput of a plan by hand over the planner's

struct Tally {
  int cases = 0, failed = 0;
  double worst = 1;

  void print(const std::string& what) const {
    fmt::print("{} cases: {} {}, the worst {:.4f}\n", cases, failed, what, worst);
  }
};

void print_case(u64 seed, const PlanRequest& request, const std::string& what) {
  fmt::print("seed {}, {} on {} devices, {} sequences of {}: {}\n", seed, request.model.name,
             request.cluster.num_devices(), request.sequences, request.seq_len, what);
  std::fflush(stdout);
}

/// How often, and how far, a plan gets slower where there is more to choose from.
Tally monotone(u64 seed, int wanted) {
  Tally tally;
  for (; tally.cases < wanted; ++seed) {
    const PlanRequest request = testing::uneven_request(seed);
    const double before = testing::rate_of(request);
    if (before == 0) continue;
    for (const testing::More& more : testing::more_requests(request)) {
      if (tally.cases == wanted) break;
      ++tally.cases;
      const double share = testing::rate_of(more.request) / before;
      tally.worst = std::min(tally.worst, share);
      if (share >= kSlower) continue;
      ++tally.failed;
      print_case(seed, request, fmt::format("{:.4f} with {}", share, more.what));
    }
  }
  return tally;
}

/// Every plan that `simulate --strategy` makes of a grid of microbatches, windows, stages and recomputation.
template <class Use>
void for_each_plan(const PlanRequest& request, Use use) {
  std::set<u64> seen;
  for (const Strategy& strategy : strategies()) {
    if (!misfit(strategy, request.model, request.cluster).empty() || strategy.one_node) continue;
    for (const i64 microbatches : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
      for (const i64 stages : {2, 3, 4, 5, 6, 8, 10, 12, 16}) {
        for (const i32 window : {0, 1, 2, 4}) {
          StrategyRequest ask;
          ask.seq_len = request.seq_len, ask.sequences = request.sequences;
          ask.microbatches = microbatches, ask.window = window;
          if (microbatches > request.sequences || window > microbatches) continue;
          if (strategy.cut == Cut::kStages) ask.stages = stages;
          if (strategy.cut == Cut::kDepth) ask.depth_groups = {stages};
          if (strategy.cut == Cut::kNone && stages > 2) continue;
          use(strategy, ask, seen);
        }
      }
    }
  }
}

/// Throughput of the fastest of these that has room, if it is more than `least`.
double best_of_grid(const PlanRequest& request, double least, std::string& name) {
  const Rates rates(request);
  Predictor predictor = predictor_of(request);
  const double tokens = real(request.sequences * request.seq_len);
  const auto judge = [&](Plan& plan, const std::string& what) {
    if (tokens / lane_bound(rates, plan) <= least || tokens / predictor.predict(plan).step <= least) return;
    const Prediction judged = *predictor.judge_within(std::numeric_limits<i64>::max(), plan);
    if (!overfilled_device(judged.memory, request.cluster).empty()) return;
    least = judged.tokens_per_s, name = what;
  };
  for_each_plan(request, [&](const Strategy& strategy, const StrategyRequest& ask, std::set<u64>& seen) {
    try {
      Plan plan = strategy.make(request.model, request.cluster, ask);
      take_dtypes(plan, blank_plan(request, Recompute::kLocal));
      plan.shard_optimizer = true;
      for (const Recompute recompute :
           {Recompute::kOff, Recompute::kSelect, Recompute::kLocal, Recompute::kResend}) {
        plan.recompute = recompute;
        if (!seen.insert(key_of(plan)).second) continue;
        judge(plan, fmt::format("{} of {} microbatches, window {}, {} stages, recompute {}", strategy.name,
                                ask.microbatches, ask.window, ask.stages, name_of(recompute)));
      }
    } catch (const Error&) {  // cannot be cut so, or its order deadlocks
    }
  });
  return least;
}

/// How often, and how far, a plan by hand is faster than the planner's.
Tally grid(u64 seed, int wanted) {
  Tally tally;
  for (; tally.cases < wanted; ++seed) {
    const PlanRequest request = testing::uneven_request(seed);
    const double planned = testing::rate_of(request);
    if (planned == 0) continue;
    ++tally.cases;
    std::string name;
    const double ratio = best_of_grid(request, planned, name) / planned;
    tally.worst = std::max(tally.worst, ratio);
    if (ratio <= kBeaten) continue;
    ++tally.failed;
    print_case(seed, request, fmt::format("{:.4f} by {}", ratio, name));
  }
  return tally;
}

/// Requests of which many nearly fill their devices.
PlanRequest tight_request(u64 seed) {
  testing::RequestSizes sizes;
  sizes.types = 4;
  sizes.nodes = 2;
  sizes.models = {"d1", "w1", "d2", "olmoe-1b-7b", "qwen3-30b-a3b", "mixtral-8x7b", "llama-3.1-8b"};
  sizes.seq_lens = {1024, 4096, 8192};
  PlanRequest request = testing::random_request(seed, sizes);
  request.seq_len = std::min(request.seq_len, request.model.max_positions);
  return request;
}

/// Largest part of what a device may use, of a step in all its layers and microbatches, with nothing folded.
double fullest(const PlanRequest& request, const Plan& plan) {
  const Schedule schedule = build_schedule(plan, request.model, {});
  const Placement placement(plan, request.model, {});
  const Predictor predictor = predictor_of(request);
  const std::shared_ptr<const RoutingLoad> load = load_of(request.routing, request.model);
  const std::unique_ptr<CostModel> cost = predictor.cost(plan);
  const SimulatedStep step =
      simulate_step(schedule, placement, placement, request.model, request.cluster, *cost, *load);
  double most = 0;
  for (DeviceId d = 0; d < request.cluster.num_devices(); ++d)
    most = std::max(most, step.memory[idx(d)].use.total() / usable_memory(request.cluster.type_of(d)));
  return most;
}

/// How often, and how far, a device has less memory than the plan takes.
Tally peak(u64 seed, int wanted) {
  Tally tally;
  tally.worst = 0;
  for (; tally.cases < wanted; ++seed) {
    const PlanRequest request = tight_request(seed);
    const PlanResult result = find_plan(request);
    if (!result.feasible()) continue;
    ++tally.cases;
    const std::string over = overfilled_device(result.best().memory, request.cluster);
    const double share = fullest(request, result.best().plan);
    tally.worst = std::max(tally.worst, share);
    if (over.empty() && share <= 1) continue;
    ++tally.failed;
    print_case(seed, request, fmt::format("{:.4f} of what is usable. {}", share, over));
  }
  return tally;
}

}  // namespace
}  // namespace hetermoe

int main(int argc, char** argv) {
  const std::string what = argc > 3 ? argv[1] : "";
  const auto first = static_cast<hetermoe::u64>(argc > 3 ? std::strtoull(argv[2], nullptr, 10) : 0);
  const int cases = argc > 3 ? std::atoi(argv[3]) : 0;
  if (what == "monotone")
    hetermoe::monotone(first, cases).print("slower by more than 1 % with more to choose from");
  else if (what == "grid")
    hetermoe::grid(first, cases).print("slower by more than 2 % than a plan by hand");
  else if (what == "peak")
    hetermoe::peak(first, cases).print("over the usable memory");
  else
    fmt::print("usage: property_bench monotone|grid|peak FIRST_SEED CASES\n");
}
