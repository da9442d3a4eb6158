// Balancers on made routing traces: how even they leave the devices, and what that is worth in a simulated
// step. Usage: balance_bench [--markdown FILE]. Everything printed here is computed or simulated.
#include <cstring>
#include <ctime>
#include <iostream>
#include <numeric>
#include <random>
#include <tuple>

#include "bench/document.h"
#include "hetermoe/balance/locality.h"
#include "hetermoe/balance/lplb.h"
#include "hetermoe/balance/trace_balance.h"
#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/json.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/routing/clusters.h"
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
  Case(ModelConfig of, Cluster on, i64 microbatches, i64 tokens, double spread, double drift, i64 domains = 0,
       const std::string& strategy = "ep")
      : model(std::move(of)), cluster(std::move(on)) {
    StrategyRequest request;
    request.seq_len = 128;
    request.microbatches = microbatches;
    request.sequences = microbatches * tokens / request.seq_len;
    plan = find_strategy(strategy).make(model, cluster, request);
    for (Dtype& dtype : plan.dtype) dtype = Dtype::kFp16;
    plan.wire_forward = plan.wire_backward = Wire::kFp16;
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
    if (domains > 0) options.domains = domains, options.domain_spread = 1;
    steps.emplace_back(header, SyntheticTrace(header, options).step(0), model, "made");
  }

  TraceBalanceResult run(const std::string& balancer, Weigh weigh = Weigh::kTime, bool guard = false,
                         bool padded = false) const {
    const auto owners = static_cast<i64>(
        Placement(plan, model, {}).owners(0, static_cast<i32>(steps[0].header().layers[0])).size());
    return TraceBalance(model, cluster, plan, {}, {})
        .run({.balancer = balancer,
              .knows = Knows::kForesight,
              .replicas = 2 * owners,
              .guest_cost = std::nullopt,
              .weigh = weigh,
              .topology = owners > 2 ? "torus:" + torus_of(owners) : "ring",
              .guard = guard,
              .padded = padded},
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

/// So many of its layers, and as much of its vocabulary, so that embedding and head are the same part of a
/// step as in the whole model.
ModelConfig layers_of(const std::string& name, i64 num_layers) {
  ModelConfig model = load_model(name);
  num_layers = std::min(model.num_layers, num_layers);
  model.vocab = model.vocab * num_layers / model.num_layers;
  model.num_layers = num_layers;
  model.dense_layer.resize(idx(model.num_layers));
  return model;
}

std::string figure(double x) { return fmt::format("{:.3f}", x); }

void add_equal(Document& document, i32 devices, const std::string& strategy) {
  const Case c(layers_of("qwen3-30b-a3b", 4), equal_nodes("H100", devices), 16, 2048 * devices, 0.6, 0.6, 0,
               strategy);
  document.heading(fmt::format("{} H100 in nodes of 8, {}", devices, strategy));
  document.paragraph(fmt::format(
      "Four layers of qwen3-30b-a3b (and a twelfth of its vocabulary, as four of its 48 layers have) by "
      "expert "
      "parallelism, 16 microbatches of {} tokens, "
      "popularity and drift of "
      "experts lognormal with 0.6 each. Count ratio: fullest device over the mean, mean over "
      "exchanges. Steps are "
      "simulated with contention, the ways of guests' weights and gradients with them; the loads of the "
      "step are known. A guest must save what it costs by the cost model. Hidden: part of the time on the "
      "wire of what is lent that no other work waited for. No guard.",
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
                    r.lent.seconds > 0 ? fmt::format("{:.0f} %", 100 * r.lent.hidden_share()) : "-",
                    fmt::format("{:.2f} s", r.plan)});
  }
  document.table({"balancer", "count ratio", "worst", "owners of a layer", "guests per exchange",
                  "simulated step", "speed over none", "lent hidden", "placing, this machine"},
                 rows);
}

/// What a balancer can win hangs on what else a step is made of.
void add_types(Document& document) {
  document.heading("Other devices, and smaller microbatches");
  document.paragraph(
      "As above by `ep`, with 32 microbatches of 4096 tokens in all, and for more types of device on the "
      "same "
      "links (NVLink and cards are those of the H100 machines, so that only the devices differ). Speed over "
      "none.");
  std::vector<Row> rows;
  for (const auto& [type, devices, tokens] :
       std::vector<std::tuple<std::string, i32, i64>>{{"H100", 16, 4096},
                                                      {"H100", 32, 4096},
                                                      {"H200", 16, 0},
                                                      {"H200", 32, 0},
                                                      {"A100-80", 16, 0},
                                                      {"A100-80", 32, 0}}) {
    const i64 microbatches = tokens > 0 ? 32 : 16, of_each = tokens > 0 ? tokens : 2048 * devices;
    const Case c(layers_of("qwen3-30b-a3b", 4), equal_nodes(type, devices), microbatches, of_each, 0.6, 0.6);
    const double none = c.run("none").step, eplb = c.run("eplb").step, relibra = c.run("relibra").step,
                 oracle = c.run("oracle").step;
    rows.push_back({type, std::to_string(devices), fmt::format("{} of {}", microbatches, of_each),
                    fmt::format("{:.1f} ms", 1e3 * none), figure(none / eplb), figure(none / relibra),
                    figure(none / oracle), figure(eplb / relibra), figure(oracle / relibra)});
  }
  document.table({"type", "devices", "microbatches", "none", "eplb", "relibra", "oracle", "relibra over eplb",
                  "relibra of oracle"},
                 rows);
}

void add_mixed(Document& document) {
  document.heading("Devices that differ: copies made equal, or time");
  document.paragraph(
      "Expert parallelism over all devices of a cluster, 8 microbatches, popularity lognormal with 0.6, "
      "drift 0.3; the "
      "loads of the step are known. Time ratio: slowest device over a perfect division by speed, mean over "
      "exchanges. Bound of nodes: the same if each node divided the copies of its experts over its devices "
      "at will, with the owners by time. Guarded: what a balancer chose is taken only where the simulated "
      "step is more than 0.5 % shorter for it.");
  std::vector<Row> rows;
  for (const auto& [model, cluster] :
       std::vector<std::pair<std::string, std::string>>{{"olmoe-1b-7b", "o1"},
                                                        {"olmoe-1b-7b", "c1"},
                                                        {"qwen3-30b-a3b", "h100-v100"},
                                                        {"olmoe-1b-7b", "demo3"}}) {
    const Cluster on = load_cluster(cluster);
    const Case c(layers_of(model, 4), on, 8, 128 * 2 * on.num_devices(), 0.6, 0.3);
    const TraceBalanceResult none = c.run("none");
    rows.push_back({cluster, model, "none", "-", figure(none.time_ratio.mean), figure(none.node_ratio.mean),
                    "-", fmt::format("{:.1f} ms", 1e3 * none.step),
                    fmt::format("{:.1f} ms", 1e3 * none.step)});
    for (const char* name : {"lpt", "eplb", "lplb", "relibra+shares", "relibra"}) {
      const TraceBalanceResult count = c.run(name, Weigh::kCount), time = c.run(name);
      rows.push_back({cluster, model, name, figure(count.time_ratio.mean), figure(time.time_ratio.mean),
                      figure(time.node_ratio.mean), fmt::format("{:.1f} ms", 1e3 * count.step),
                      fmt::format("{:.1f} ms", 1e3 * time.step),
                      fmt::format("{:.1f} ms", 1e3 * c.run(name, Weigh::kTime, true).step)});
    }
  }
  document.table({"cluster", "model, 4 layers", "balancer", "time ratio, by count", "by time",
                  "bound of nodes", "simulated step, by count", "by time", "by time, guarded"},
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
  for (const char* name : {"none", "lpt", "eplb", "lplb", "relibra", "locality"}) {
    const TraceBalanceResult r = c.run(name), guarded = c.run(name, Weigh::kTime, true);
    rows.push_back({name, figure(r.rank_ratio.mean), fmt::format("{:.2f} ms", 1e3 * r.step),
                    fmt::format("{:.4f}", r.step / none), fmt::format("{:.4f}", guarded.step / none)});
  }
  document.table({"balancer", "count ratio", "simulated step", "over none", "guarded, over none"}, rows);
}

/// 7 domains on 8 groups of devices, mean of seeds.
void add_activation_row(std::vector<Row>& rows, double spread, bool even_domains) {
  constexpr i64 kSeeds = 20, kGroups = 8, kDomains = 7;
  TraceHeader header;
  header.layers = {0};
  header.num_experts = 256;
  header.top_k = 8;
  const std::vector<double> speeds(kGroups, 1);
  const std::vector<i64> room = group_room(header.num_experts, speeds);
  std::vector<i32> linear;
  for (i32 e = 0; e < 256; ++e) linear.push_back(e / 32);
  double greedy = 0, exact = 0, capped = 0, load = 0, capped_load = 0;
  for (i64 seed = 1; seed <= kSeeds; ++seed) {
    SyntheticOptions options;
    options.seq_len = 256;
    options.sequences = 160;
    options.spread = 0.6;
    options.domains = kDomains;
    options.domain_spread = spread;
    options.seed = static_cast<u64>(seed);
    const TraceStep step = SyntheticTrace(header, options).step(0);
    const Activations all = activations(header, step, -1, 0, "made");
    Activations used;
    std::vector<i32> domains;
    std::vector<i64> taken(kDomains, 0);
    for (std::size_t s = 0; s < all.size(); ++s) {
      const std::uint32_t domain = step.sequences[s].domain;
      if (even_domains && ++taken[domain] > 12) continue;
      used.push_back(all[s]);
      domains.push_back(static_cast<i32>(domain));
    }
    const Clusters clusters = labelled(used, domains, kDomains);
    const Usage usage = usage_of(used, clusters, groups_of_clusters(used, clusters, kGroups), kGroups);
    std::vector<double> copies(256, 0);
    for (const std::vector<double>& row : usage) {
      for (std::size_t e = 0; e < row.size(); ++e) copies[e] += row[e];
    }
    const std::vector<i32> by_use = place_greedy(usage, room);
    const CappedPlacement under_cap = place_capped(usage, room, speeds, 1.1);
    const double of = copies_outside(usage, linear) * real(kSeeds);
    greedy += copies_outside(usage, by_use) / of;
    exact += copies_outside(usage, place_exact(usage, room)) / of;
    capped += copies_outside(usage, under_cap.group) / of;
    load += group_ratio(copies, speeds, by_use) / real(kSeeds);
    capped_load = std::max(capped_load, under_cap.ratio);
  }
  rows.push_back({fmt::format("{:.1f}", spread), even_domains ? "equally many" : "by chance", figure(greedy),
                  fmt::format("{:.2f}", load), figure(exact), figure(capped), figure(capped_load),
                  spread > 0 ? fmt::format("{:.0f} %", 100 * (capped - exact) / (1 - exact)) : "-"});
}

void add_activations(Document& document) {
  document.heading("Experts placed by the sequences that use them");
  document.paragraph(
      "7 domains, 256 experts, top 8, 8 groups of devices, popularity lognormal with 0.6, sequences of 256 "
      "tokens that "
      "reach the group of their domain; mean of 20 seeds. Copies that change groups, over those with experts "
      "in order; "
      "load: fullest group over the mean. An independent prototype gives for greedy 0.959, 0.860 and 0.734 "
      "at spreads of "
      "0.2, 0.6 and 1.0, with loads of 1.27, 1.29 and 1.38. Given back: what of the gain of the exact "
      "placement the cap "
      "of 1.1 costs. Sequences of each domain are as many as chance has it among 160, or 12 of each.");
  std::vector<Row> rows;
  for (const bool even : {false, true}) {
    for (const double spread : {0.0, 0.2, 0.6, 1.0}) add_activation_row(rows, spread, even);
  }
  document.table({"spread of domains", "sequences of a domain", "greedy", "load", "exact", "cap 1.1",
                  "worst load", "given back"},
                 rows);
}

void add_padding(Document& document) {
  document.heading("Exchanges that are padded");
  document.paragraph(
      "What fewer rows between nodes are worth, without and with kernels of fixed sizes, where every device "
      "sends as "
      "many rows to other nodes as the one that sends most (ours do not). Four layers of qwen3-30b-a3b on "
      "nodes of eight H100, as many domains as nodes or seven (spread 1), popularity lognormal with 0.6; "
      "experts and sequences placed by locality with a cap of 1.1, over experts in order. Rows: between "
      "nodes per token. Exchanges: "
      "dispatches and "
      "combines of a step, each alone on its links.");
  std::vector<Row> rows;
  for (const auto& [nodes, domains] : std::vector<std::pair<i64, i64>>{{2, 2}, {2, 7}, {8, 8}, {8, 7}}) {
    const auto devices = static_cast<i32>(8 * nodes);
    const Case c(layers_of("qwen3-30b-a3b", 4), equal_nodes("H100", devices), 4, 2048 * devices, 0.6, 0,
                 domains);
    for (const bool padded : {false, true}) {
      const TraceBalanceResult none = c.run("none", Weigh::kTime, false, padded),
                               local = c.run("locality", Weigh::kTime, false, padded);
      rows.push_back({std::to_string(nodes), std::to_string(domains), padded ? "padded" : "as they are",
                      figure(none.node_rows), figure(local.node_rows / none.node_rows),
                      fmt::format("{:.1f} ms", 1e3 * none.exchanges),
                      figure(local.exchanges / none.exchanges), fmt::format("{:.1f} ms", 1e3 * none.step),
                      figure(local.step / none.step)});
    }
  }
  document.table({"nodes", "domains", "exchanges", "rows, in order", "by locality, of that",
                  "exchanges, in order", "of that", "simulated step, in order", "of that"},
                 rows);
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

int run(const std::string& file) {
  Document document;
  for (const char* strategy : {"ep", "ep-overlap"}) {
    for (const i32 devices : {16, 32}) add_equal(document, devices, strategy);
  }
  add_types(document);
  add_mixed(document);
  add_even(document);
  add_activations(document);
  add_padding(document);
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
