#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>

#include "hetermoe/balance/balancers.h"
#include "hetermoe/balance/reorder.h"
#include "hetermoe/routing/analysis.h"
#include "hetermoe/routing/guests.h"
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

/// Loads that vary as much as lognormal ones with 0.6.
std::vector<i64> uneven_copies(std::size_t num_experts, std::size_t salt) {
  std::vector<i64> copies;
  for (std::size_t e = 0; e < num_experts; ++e) {
    const auto x = static_cast<i64>((e * 7919 + salt * 104729) % 1009);
    copies.push_back(20 + x * x * x / 2000000);
  }
  return copies;
}

/// 256 experts on 32 devices with two more copies on each; 1: of three speeds.
void BM_WholeSplit(benchmark::State& state) {
  Hosts hosts;
  for (i32 e = 0; e < 256; ++e) {
    hosts.push_back({e / 8});
    if (e % 4 == 0) hosts.back().push_back((e / 8 + 1 + e % 8) % 32);
  }
  std::vector<i64> speeds;
  for (i64 d = 0; d < 32; ++d) speeds.push_back(state.range(0) == 1 ? 1000000 + 700001 * (d % 3) : 1);
  std::size_t salt = 0;
  for (auto _ : state) benchmark::DoNotOptimize(whole_split(uneven_copies(256, ++salt), hosts, speeds).num);
}
BENCHMARK(BM_WholeSplit)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

/// 128 experts on 16 devices in two nodes, two slots each.
void BM_Guests(benchmark::State& state) {
  Hosts hosts;
  for (i32 e = 0; e < 128; ++e) hosts.push_back({e / 8});
  std::vector<i64> speeds;
  GuestRoom room;
  room.slots = 2;
  for (i64 d = 0; d < 16; ++d) {
    speeds.push_back(state.range(0) == 1 ? 1000000 + 700001 * (d % 3) : 1);
    room.nodes.push_back(static_cast<NodeId>(d / 8));
  }
  std::size_t salt = 0;
  for (auto _ : state)
    benchmark::DoNotOptimize(
        split_with_guests(uneven_copies(128, ++salt), hosts, speeds, room).guests.size());
}
BENCHMARK(BM_Guests)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

/// One layer: 20,000 proposals, 32 microbatches, 128 experts on 16 devices in two nodes.
void BM_Reorder(benchmark::State& state) {
  ReorderInput input;
  for (std::size_t m = 0; m < 32; ++m) {
    const std::vector<i64> copies = uneven_copies(128, m);
    input.copies.emplace_back(copies.begin(), copies.end());
  }
  input.speeds.assign(16, 1);
  input.node_weight = 4;
  std::vector<i32> start;
  for (NodeId d = 0; d < 16; ++d) input.nodes.push_back(d / 8);
  for (i32 e = 0; e < 128; ++e) start.push_back(e / 8);
  for (auto _ : state) benchmark::DoNotOptimize(reorder(input, start).size());
}
BENCHMARK(BM_Reorder)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace hetermoe

BENCHMARK_MAIN();
