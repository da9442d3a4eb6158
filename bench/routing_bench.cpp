#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>

#include "hetermoe/planner/balance/balancers.h"
#include "hetermoe/routing/analysis.h"
#include "hetermoe/routing/synthetic.h"
#include "hetermoe/routing/writer.h"

// Routing traces: reading, analysing, making; placing experts by their loads.
namespace hetermoe {
namespace {

/// 8 layers of 128 experts, 8 for each of 32,768 tokens: 2 MiB a step.
SyntheticTrace example() {
  TraceHeader header;
  for (i64 l = 0; l < 8; ++l) header.layers.push_back(l);
  header.num_experts = 128;
  header.top_k = 8;
  return SyntheticTrace(header, {.seq_len = 1024, .sequences = 32, .microbatches = 4, .spread = 0.5});
}

std::filesystem::path written() {
  static const std::filesystem::path path = [] {
    std::string name = std::filesystem::temp_directory_path() / "routing_bench_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    const SyntheticTrace trace = example();
    RoutingWriter writer(std::filesystem::path(name) / "trace.routes", trace.header());
    TraceStep step = trace.step(0);
    for (i64 s = 0; s < 16; ++s) {
      step.step = s;
      writer.step(step);
    }
    writer.finish();
    return std::filesystem::path(name) / "trace.routes";
  }();
  return path;
}

void set_bytes(benchmark::State& state) {
  state.SetBytesProcessed(static_cast<i64>(state.iterations()) *
                          static_cast<i64>(std::filesystem::file_size(written())));
}

void BM_OpenTrace(benchmark::State& state) {
  const std::filesystem::path path = written();
  for (auto _ : state) benchmark::DoNotOptimize(RoutingTrace(path).steps().size());
  set_bytes(state);
}
BENCHMARK(BM_OpenTrace)->Unit(benchmark::kMillisecond);

void BM_OpenAndReadTrace(benchmark::State& state) {
  const std::filesystem::path path = written();
  for (auto _ : state) {
    const RoutingTrace trace(path);
    for (const i64 step : trace.steps()) benchmark::DoNotOptimize(trace.read(step).counts.size());
  }
  set_bytes(state);
}
BENCHMARK(BM_OpenAndReadTrace)->Unit(benchmark::kMillisecond);

void BM_AnalyseTrace(benchmark::State& state) {
  const std::filesystem::path path = written();
  for (auto _ : state) {
    const RoutingTrace trace(path);
    TraceAnalyser analyser(trace.header(), window_from("microbatch", ""), {1, 4, 16});
    for (const i64 step : trace.steps()) analyser.add(trace.read(step));
    benchmark::DoNotOptimize(analyser.finish("trace").windows);
  }
  set_bytes(state);
}
BENCHMARK(BM_AnalyseTrace)->Unit(benchmark::kMillisecond);

void BM_MakeStep(benchmark::State& state) {
  const SyntheticTrace trace = example();
  for (auto _ : state) benchmark::DoNotOptimize(trace.step(0).choices.size());
  state.SetItemsProcessed(static_cast<i64>(state.iterations()) * 8 * 32 * 1024 * 128);
}
BENCHMARK(BM_MakeStep)->Unit(benchmark::kMillisecond);

/// 61 layers of 256 experts on 32 devices, with 32 further copies a layer. 1: four of the devices are half as
/// fast.
void BM_Eplb(benchmark::State& state) {
  BalanceInput input;
  for (DeviceId d = 0; d < 32; ++d)
    input.devices.push_back({.id = d, .unit_s = state.range(0) == 1 && d < 4 ? 2.0 : 1.0});
  for (i64 l = 0; l < 61; ++l) {
    input.load.emplace_back();
    for (i64 e = 0; e < 256; ++e)
      input.load.back().push_back(static_cast<double>((e * 7919 + l * 104729) % 1009));
  }
  input.replicas = 32;
  for (auto _ : state) benchmark::DoNotOptimize(find_balancer("eplb").place(input).size());
}
BENCHMARK(BM_Eplb)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace hetermoe

BENCHMARK_MAIN();
