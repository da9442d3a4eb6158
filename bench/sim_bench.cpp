#include <benchmark/benchmark.h>

#include <array>
#include <chrono>
#include <map>

#include "hetermoe/cost/roofline.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/sim/folded_step.h"

// How fast schedules are built, priced and simulated, on one core.
namespace hetermoe {
namespace {

/// Nodes of eight devices, the first half newer ones.
Cluster make_cluster(i32 num_devices) {
  Cluster cluster;
  cluster.name = "bench";
  cluster.types = {catalogue_device("A40", "bench"), catalogue_device("V100", "bench")};
  for (i32 d = 0; d < num_devices; ++d) {
    if (d % 8 == 0) cluster.nodes.push_back({fmt::format("node{}", d / 8), 12.5e9, 1e-5, 20e9, 5e-6});
    cluster.devices.push_back(
        {d < num_devices / 2 ? 0 : 1, static_cast<NodeId>(cluster.nodes.size()) - 1, 1});
  }
  return cluster;
}

struct Setup {
  ModelConfig model;
  Cluster cluster;
  Plan plan;

  Setup(const std::string& strategy, i32 num_devices, i64 num_layers, i64 num_microbatches)
      : model(load_model("mixtral-8x7b")), cluster(make_cluster(num_devices)) {
    model.num_layers = num_layers;
    model.dense_layer.assign(static_cast<std::size_t>(num_layers), false);
    model.num_experts = std::max<i64>(8, num_devices);
    StrategyRequest request;
    request.seq_len = 4096;
    request.microbatches = num_microbatches;
    request.sequences = num_microbatches * num_devices;
    plan = find_strategy(strategy).make(model, cluster, request);
  }
};

void report(benchmark::State& state, const Schedule& schedule, Seconds step) {
  state.SetItemsProcessed(state.iterations() * schedule.num_ops());
  state.counters["ops"] = schedule.num_ops();
  state.counters["visits"] = static_cast<double>(schedule.lanes.size());
  state.counters["step_s"] = step;
}

void simulate(benchmark::State& state, const std::string& strategy) {
  const Setup s(strategy, static_cast<i32>(state.range(0)), state.range(1), state.range(2));
  const Schedule schedule = build_schedule(s.plan, s.model);
  const OpCosts costs = price(schedule, Placement(s.plan, s.model, {}), s.model, s.cluster,
                              RooflineCost(s.model, s.cluster, s.plan), ExpectedRouting(s.model));
  Simulator simulator;
  for (auto _ : state) benchmark::DoNotOptimize(simulator.run(schedule, costs).step);
  state.SetItemsProcessed(state.iterations() * schedule.num_ops());
  state.counters["simulations/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["ops"] = schedule.num_ops();
}

void build(benchmark::State& state, const std::string& strategy) {
  const Setup s(strategy, static_cast<i32>(state.range(0)), state.range(1), state.range(2));
  i64 ops = 0;
  for (auto _ : state) ops += build_schedule(s.plan, s.model).num_ops();
  state.SetItemsProcessed(ops);
}

void price_ops(benchmark::State& state, const std::string& strategy) {
  const Setup s(strategy, static_cast<i32>(state.range(0)), state.range(1), state.range(2));
  const Schedule schedule = build_schedule(s.plan, s.model);
  const Placement placement(s.plan, s.model, {});
  const RooflineCost cost(s.model, s.cluster, s.plan);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        price(schedule, placement, s.model, s.cluster, cost, ExpectedRouting(s.model)).num_ports);
  }
  state.SetItemsProcessed(state.iterations() * schedule.num_ops());
}

/// From plan to step time, every device on its own.
void plan_to_step(benchmark::State& state, const std::string& strategy) {
  const Setup s(strategy, static_cast<i32>(state.range(0)), state.range(1), state.range(2));
  Schedule schedule;
  Seconds step = 0;
  for (auto _ : state) {
    schedule = build_schedule(s.plan, s.model);
    const OpCosts costs = price(schedule, Placement(s.plan, s.model, {}), s.model, s.cluster,
                                RooflineCost(s.model, s.cluster, s.plan), ExpectedRouting(s.model));
    Simulator simulator;
    step = simulator.run(schedule, costs).step;
  }
  report(state, schedule, step);
}

/// Cost of an op when there are more and more of them, four devices on their own: from a thousand to ten
/// million. Time for building, pricing and simulating, per op.
void scaling(benchmark::State& state) {
  const Setup s("zebra", 4, state.range(0), state.range(1));
  const RooflineCost cost(s.model, s.cluster, s.plan);
  using Clock = std::chrono::steady_clock;
  std::array<double, 3> seconds{};
  i64 ops = 0;
  for (auto _ : state) {
    const Clock::time_point begin = Clock::now();
    const Schedule schedule = build_schedule(s.plan, s.model);
    const Clock::time_point built = Clock::now();
    const OpCosts costs =
        price(schedule, Placement(s.plan, s.model, {}), s.model, s.cluster, cost, ExpectedRouting(s.model));
    const Clock::time_point priced = Clock::now();
    Simulator simulator;
    benchmark::DoNotOptimize(simulator.run(schedule, costs).step);
    const Clock::time_point simulated = Clock::now();
    seconds[0] += std::chrono::duration<double>(built - begin).count();
    seconds[1] += std::chrono::duration<double>(priced - built).count();
    seconds[2] += std::chrono::duration<double>(simulated - priced).count();
    ops += schedule.num_ops();
  }
  const auto ns_per_op = [&](std::size_t part) { return 1e9 * seconds[part] / static_cast<double>(ops); };
  state.counters["ops"] = static_cast<double>(ops) / static_cast<double>(state.iterations());
  state.counters["build_ns"] = ns_per_op(0);
  state.counters["price_ns"] = ns_per_op(1);
  state.counters["simulate_ns"] = ns_per_op(2);
}

/// From plan to step time, with equal devices folded.
void folded_plan_to_step(benchmark::State& state, const std::string& strategy) {
  const Setup s(strategy, static_cast<i32>(state.range(0)), state.range(1), state.range(2));
  Schedule schedule;
  Seconds step = 0;
  for (auto _ : state) {
    FoldedStep folded = make_folded_step(s.plan, s.model, s.cluster, RooflineCost(s.model, s.cluster, s.plan),
                                         ExpectedRouting(s.model));
    Simulator simulator;
    step = simulator.run(folded.schedule, folded.costs).step;
    schedule = std::move(folded.schedule);
  }
  report(state, schedule, step);
}

// devices, layers, microbatches
BENCHMARK_CAPTURE(simulate, zebra, "zebra")->Args({4, 4, 4})->Args({16, 32, 16});
BENCHMARK_CAPTURE(simulate, ep, "ep")->Args({4, 4, 4});
BENCHMARK_CAPTURE(build, zebra, "zebra")->Args({4, 4, 4})->Args({16, 32, 16});
BENCHMARK_CAPTURE(price_ops, zebra, "zebra")->Args({4, 4, 4})->Args({16, 32, 16});
BENCHMARK_CAPTURE(folded_plan_to_step, zebra, "zebra")->Args({4, 4, 4});
BENCHMARK_CAPTURE(folded_plan_to_step, zebra, "zebra")->Args({1024, 32, 64})->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(folded_plan_to_step, ep, "ep")->Args({1024, 32, 64})->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(plan_to_step, zebra, "zebra")->Args({4, 4, 4});
BENCHMARK_CAPTURE(plan_to_step, zebra, "zebra")
    ->Args({128, 32, 64})
    ->Args({1024, 32, 64})
    ->Unit(benchmark::kSecond)
    ->Iterations(1);

// layers, microbatches
BENCHMARK(scaling)
    ->ArgNames({"layers", "microbatches"})
    ->Args({4, 8})
    ->Args({16, 24})
    ->Args({32, 128})
    ->Args({128, 320});
BENCHMARK(scaling)
    ->ArgNames({"layers", "microbatches"})
    ->Args({512, 1630})
    ->Unit(benchmark::kSecond)
    ->Iterations(1);

}  // namespace
}  // namespace hetermoe

BENCHMARK_MAIN();
