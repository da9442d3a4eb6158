// Balancers on made routing traces: how even they leave the devices, and what that is worth in a simulated
// step. Usage: balance_bench [--markdown FILE]. Everything printed here is computed or simulated.
#include <cstring>
#include <ctime>
#include <iostream>
#include <numeric>
#include <random>

#include "bench/document.h"
#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/json.h"
#include "hetermoe/planner/balance/lplb.h"
#include "hetermoe/planner/balance/trace_balance.h"
#include "hetermoe/planner/strategies.h"
#include "hetermoe/routing/synthetic.h"

namespace hetermoe {
namespace {

/// A model under expert parallelism on a cluster, and one step of made routing.
struct Case {
  ModelConfig model;
  Cluster cluster;
  Plan plan;
  std::vector<TraceRouting> steps;

  /// microbatches of so many tokens in all.
  Case(ModelConfig of, Cluster on, i64 microbatches, i64 tokens, double spread, double drift)
      : model(std::move(of)), cluster(std::move(on)) {
    StrategyRequest request;
    request.seq_len = 128;
    request.microbatches = microbatches;
    request.sequences = microbatches * tokens / request.seq_len;
    plan = find_strategy("ep").make(model, cluster, request);
    for (Dtype& dtype : plan.dtype) dtype = Dtype::kFp16;
    plan.wire_forward = plan.wire_backward = Dtype::kFp16;
    TraceHeader header;
    header.layers = layers_with_experts(model);
    header.num_experts = model.num_experts;
    header.top_k = model.top_k;
    SyntheticOptions options;
    options.seq_len = request.seq_len;
    options.sequences = request.sequences;
    options.microbatches = microbatches;
    options.spread = spread;
    options.drift = drift;
    steps.emplace_back(header, SyntheticTrace(header, options).step(0), model, "made");
  }

  TraceBalanceResult run(const std::string& balancer, Weigh weigh = Weigh::kTime) const {
    const auto owners = static_cast<i64>(
        Placement(plan, model, {}).owners(0, static_cast<i32>(steps[0].header().layers[0])).size());
    return TraceBalance(model, cluster, plan, {}, {})
        .run({.balancer = balancer,
              .knows = Knows::kForesight,
              .replicas = 2 * owners,
              .guest_cost = std::nullopt,
              .weigh = weigh,
              .topology = owners > 2 ? "torus:" + torus_of(owners) : "ring"},
             steps);
  }

 private:
  /// Two columns, so that all rows have two copies a device.
  static std::string torus_of(i64 owners) {
    i64 n = 2;
    for (i64 side = 2; side * side <= owners; ++side) n = owners % side == 0 ? side : n;
    return fmt::format("{}x{}", owners / n, n);
  }
};

/// H100 machines as they are sold: NVLink 4, and eight network cards of 400 Gbit/s that here are one port.
Cluster equal_nodes(const std::string& type, i32 count) {
  Cluster cluster;
  cluster.name = fmt::format("{} {}", count, type);
  cluster.types.push_back(catalogue_device(type, "balance_bench"));
  for (i32 d = 0; d < count; ++d) {
    if (d % 8 == 0) cluster.nodes.push_back({fmt::format("n{}", d / 8), 400e9, 1e-5, 450e9, 5e-6});
    cluster.devices.push_back({0, static_cast<NodeId>(d / 8), 1});
  }
  return cluster;
}

ModelConfig layers_of(const std::string& name, i64 num_layers) {
  ModelConfig model = load_model(name);
  model.num_layers = std::min(model.num_layers, num_layers);
  model.dense_layer.resize(idx(model.num_layers));
  return model;
}

std::string figure(double x) { return fmt::format("{:.3f}", x); }

void add_equal(Document& document, i32 devices) {
  const Case c(layers_of("qwen3-30b-a3b", 4), equal_nodes("H100", devices), 16, 2048 * devices, 0.6, 0.6);
  document.heading(fmt::format("{} H100 in nodes of 8", devices));
  document.paragraph(fmt::format(
      "Four layers of qwen3-30b-a3b by expert parallelism, 8 microbatches of {} tokens, "
      "popularity and drift of "
      "experts lognormal with 0.6 each. Count ratio: fullest device over the mean, mean over "
      "exchanges. Steps are "
      "simulated with contention, the ways of guests' weights and gradients with them; the loads of the "
      "step are known. A guest must save what it costs by the cost model.",
      2048 * devices));
  std::vector<Row> rows;
  double none = 0;
  for (const char* name :
       {"none", "lpt", "relibra+shares", "eplb", "eplb+exact", "lplb", "none+guests", "relibra", "oracle"}) {
    const TraceBalanceResult r = c.run(name);
    if (none == 0) none = r.step;
    rows.push_back({name, figure(r.rank_ratio.mean), fmt::format("{:.2f}", r.rank_ratio.high),
                    fmt::format("{:.0f}", r.owners), fmt::format("{:.1f}", r.guests),
                    fmt::format("{:.1f} ms", 1e3 * r.step), figure(none / r.step),
                    fmt::format("{:.2f} s", r.plan)});
  }
  document.table({"balancer", "count ratio", "worst", "owners of a layer", "guests per exchange",
                  "simulated step", "speed over none", "placing, this machine"},
                 rows);
}

void add_mixed(Document& document) {
  document.heading("Devices that differ: copies made equal, or time");
  document.paragraph(
      "Expert parallelism over all devices of a cluster, 8 microbatches, popularity lognormal with 0.6, "
      "drift 0.3; the "
      "loads of the step are known. Time ratio: slowest device over a perfect division by speed, mean over "
      "exchanges.");
  std::vector<Row> rows;
  for (const auto& [model, cluster] :
       std::vector<std::pair<std::string, std::string>>{{"olmoe-1b-7b", "o1"},
                                                        {"olmoe-1b-7b", "c1"},
                                                        {"qwen3-30b-a3b", "h100-v100"},
                                                        {"olmoe-1b-7b", "demo3"}}) {
    const Cluster on = load_cluster(cluster);
    const Case c(layers_of(model, 4), on, 8, 128 * 2 * on.num_devices(), 0.6, 0.3);
    rows.push_back({cluster, model, "none", "-", figure(c.run("none").time_ratio.mean), "-",
                    fmt::format("{:.1f} ms", 1e3 * c.run("none").step)});
    for (const char* name : {"lpt", "eplb", "lplb", "relibra+shares"}) {
      const TraceBalanceResult count = c.run(name, Weigh::kCount), time = c.run(name);
      rows.push_back({cluster, model, name, figure(count.time_ratio.mean), figure(time.time_ratio.mean),
                      fmt::format("{:.1f} ms", 1e3 * count.step), fmt::format("{:.1f} ms", 1e3 * time.step)});
    }
  }
  document.table({"cluster", "model, 4 layers", "balancer", "time ratio, by count", "by time",
                  "simulated step, by count", "by time"},
                 rows);
}

void add_even(Document& document) {
  document.heading("Even routing");
  document.paragraph(
      "No balancer may make a step slower. 16 H100, every expert equally likely, 8 microbatches; the loads "
      "of the step are known.");
  const Case c(layers_of("qwen3-30b-a3b", 4), equal_nodes("H100", 16), 8, 2048 * 16, 0, 0);
  std::vector<Row> rows;
  const double none = c.run("none").step;
  for (const char* name : {"none", "lpt", "eplb", "lplb", "relibra"}) {
    const TraceBalanceResult r = c.run(name);
    rows.push_back({name, figure(r.rank_ratio.mean), fmt::format("{:.2f} ms", 1e3 * r.step),
                    fmt::format("{:.4f}", r.step / none)});
  }
  document.table({"balancer", "count ratio", "simulated step", "over none"}, rows);
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

int run(const std::string& file) {
  Document document;
  for (const i32 devices : {16, 32}) add_equal(document, devices);
  add_mixed(document);
  add_even(document);
  std::cout << document.text();
  if (!file.empty())
    write_text(
        file,
        fmt::format("# Balancers, computed and simulated\n\n{}, by `build/balance_bench --markdown FILE`. "
                    "Nothing here was measured on GPUs.\n{}",
                    today(), document.markdown()));
  return 0;
}

}  // namespace
}  // namespace hetermoe

int main(int argc, char** argv) {
  try {
    return hetermoe::run(argc == 3 && std::strcmp(argv[1], "--markdown") == 0 ? argv[2] : "");
  } catch (const hetermoe::Error& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
