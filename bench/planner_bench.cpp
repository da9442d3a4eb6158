#include <benchmark/benchmark.h>

#include "hetermoe/planner/planner.h"
#include "hetermoe/planner/strategies/allocation.h"
#include "tests/support/stage_oracle.h"

// How long a plan takes to find, on one core, and how good it is.
namespace hetermoe {
namespace {

/// Nodes of up to eight devices of one type.
Cluster make_cluster(const std::vector<std::pair<std::string, i32>>& types) {
  Cluster cluster;
  cluster.name = "bench";
  for (const auto& [name, count] : types) {
    cluster.types.push_back(catalogue_device(name, "bench"));
    for (i32 d = 0; d < count; ++d) {
      if (d % 8 == 0) {
        cluster.nodes.push_back({fmt::format("node{}", cluster.nodes.size()), 50e9, 1e-5, 20e9, 5e-6});
      }
      cluster.devices.push_back(
          {static_cast<i32>(cluster.types.size()) - 1, static_cast<NodeId>(cluster.nodes.size()) - 1, 1});
    }
  }
  return cluster;
}

void find(benchmark::State& state, const std::vector<std::pair<std::string, i32>>& types) {
  PlanRequest request;
  request.model = load_model("qwen3-30b-a3b");
  request.cluster = make_cluster(types);
  if (request.cluster.num_devices() <= 12) request.model = load_model("d1");
  request.seq_len = 4096;
  request.sequences = std::max<i64>(96, 2 * request.cluster.num_devices());
  PlanResult result;
  for (auto _ : state) result = find_plan(request);
  state.counters["sketches"] = static_cast<double>(result.num_sketches);
  state.counters["simulated"] = static_cast<double>(result.num_simulated);
  if (result.feasible()) state.counters["step_s"] = result.best().prediction.step;
  state.SetLabel(result.feasible() ? result.best().name : result.infeasible);
}

BENCHMARK_CAPTURE(find, 6_and_6, {{"A40", 6}, {"V100", 6}})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(find, 128_and_128, {{"A100-40", 128}, {"V100", 128}})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(find, 128_and_384, {{"A100-40", 128}, {"V100", 384}})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);
BENCHMARK_CAPTURE(find, 3_types_of_256, {{"A100-40", 256}, {"V100", 256}, {"T4", 256}})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

/// Devices and ports for attention and experts: 128 devices of two kinds, 128 ports.
void allocation(benchmark::State& state) {
  AllocationInput input{.devices = {}, .transfer = 30, .nics = 128};
  for (int d = 0; d < 128; ++d)
    input.devices.push_back(d % 2 == 0 ? AllocationInput::Device{300, 200}
                                       : AllocationInput::Device{500, 250});
  Allocation best;
  for (auto _ : state) benchmark::DoNotOptimize(best = allocate(input));
  state.counters["attention"] = static_cast<double>(best.attention);
  state.counters["attention_nics"] = static_cast<double>(best.attention_nics);
}
BENCHMARK(allocation)->Unit(benchmark::kMillisecond);

/// Random small instances: how far the planner's best is from that of an exact branch and bound. Gaps below
/// a per cent count as one; instances that take the oracle more than most_simulated simulations are left
/// out.
template <class Oracle>
void solve(benchmark::State& state, PlanRequest (*request_of)(u64, const testing::SmallSizes&)) {
  constexpr double kTolerance = 0.01;
  const auto first = static_cast<u64>(state.range(4));
  double worst = 0, near = 0, solved = 0;
  for (auto _ : state) {
    for (u64 seed = first; seed < first + static_cast<u64>(state.range(3)); ++seed) {
      const PlanRequest request = request_of(seed, {state.range(0), state.range(1), state.range(2)});
      const std::optional<double> gap =
          testing::gap_to_optimum<Oracle>(request, find_plan(request), kTolerance, state.range(5));
      if (!gap) continue;
      worst = std::max(worst, *gap);
      near += *gap <= 0.02;
      ++solved;
    }
  }
  state.counters["solved"] = solved;
  state.counters["within_2_percent"] = near / solved;
  state.counters["worst_percent"] = 100 * worst;
}

/// Pipelines alone.
void stage_oracle(benchmark::State& state) {
  solve<testing::StageOracle>(state, testing::small_pipeline_request);
}
void oracle(benchmark::State& state) { solve<testing::PlanOracle>(state, testing::small_request); }

BENCHMARK(stage_oracle)
    ->ArgNames({"layers", "experts", "devices", "instances", "first_seed", "most_simulated"})
    ->Args({6, 4, 4, 500, 1, 20000})
    ->Iterations(1)
    ->Unit(benchmark::kSecond);

BENCHMARK(oracle)
    ->ArgNames({"layers", "experts", "devices", "instances", "first_seed", "most_simulated"})
    ->Args({2, 4, 3, 500, 1, 20000})
    ->Args({2, 4, 3, 500, 11000, 20000})
    ->Args({2, 4, 3, 500, 12000, 20000})
    ->Args({2, 4, 3, 500, 13000, 20000})
    ->Args({3, 4, 4, 500, 1, 20000})
    ->Args({4, 6, 5, 500, 1, 20000})
    // The two of them that are left out take minutes each.
    ->Args({4, 6, 5, 1, 48, 20000000})
    ->Args({4, 6, 5, 1, 76, 20000000})
    ->Iterations(1)
    ->Unit(benchmark::kSecond);

}  // namespace
}  // namespace hetermoe

BENCHMARK_MAIN();
