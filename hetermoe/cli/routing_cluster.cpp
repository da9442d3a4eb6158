#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>

#include "hetermoe/balance/locality.h"
#include "hetermoe/balance/trace_balance.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/numbers.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cli/routing_placements.h"
#include "hetermoe/report/balance_page.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/job/job.h"

namespace hetermoe {
namespace {

/// Groups that are alike, by number, or device groups of a job's plan.
std::vector<double> speeds_of_groups(const RoutingClusterArguments& options, const TraceHeader& header,
                                     const Overrides& overrides) {
  if (const std::optional<i64> number = whole_number(options.groups)) {
    if (*number < 2)
      fail<ConfigError>("--groups", "got {}, expected at least 2: with one group nothing can change groups",
                        *number);
    if (*number > header.num_experts)
      fail<ConfigError>("--groups", "got {} groups, expected at most {}, as many as a layer has experts",
                        *number, header.num_experts);
    return std::vector<double>(idx(*number), 1);
  }
  if (options.job.empty() && overrides.empty())
    fail<ConfigError>("--groups",
                      "got {} without a job, expected a number of groups that are alike, or a job whose "
                      "cluster has the devices",
                      options.groups);
  const Job job = options.job.empty() ? job_from_overrides(overrides) : load_job(options.job, overrides);
  const ModelConfig model = load_model(job.model);
  check_model(header, model, options.trace);
  const Cluster cluster = load_cluster(job.cluster);
  const Plan plan = emulated_plan(job, make_job_plan(job, model, cluster));
  const Plan by_time =
      TraceBalance(model, cluster, plan, step_options(job, model), load_profiles(cluster))
          .placed({.balancer = "none"}, even_load(model.num_moe_layers(), model.num_experts));
  std::vector<DeviceId> owners;
  for (const LayerPlacement& layer : plan.groups[0].layers) {
    for (const ExpertOwners& of_expert : layer.experts) {
      for (const ExpertOwner& owner : of_expert) owners.push_back(owner.device);
    }
  }
  std::sort(owners.begin(), owners.end());
  owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
  std::vector<double> speeds;
  for (const std::vector<DeviceId>& group : device_groups(options.groups, cluster, owners)) {
    speeds.push_back(0);
    for (const DeviceId device : group) {
      if (std::binary_search(owners.begin(), owners.end(), device))
        speeds.back() += real(by_time.split_speeds[idx(device)]);
    }
    if (speeds.back() == 0)
      fail<ConfigError>("--groups", "a group of {} has no owner of experts: got {}", options.groups,
                        Json(group).dump());
  }
  if (speeds.size() < 2)
    fail<ConfigError>("--groups",
                      "got {}, which is one group of the {} that own experts in the {} plan on cluster {}, "
                      "expected at least 2. With --strategy ep all devices own some",
                      options.groups, counted(owners.size(), "device"), plan.strategy, cluster.name);
  return speeds;
}

/// "python 80 %, c 20 %"
std::string domains_in(const ClusterResult& r, i32 cluster) {
  std::map<std::string, double> counts;
  double all = 0;
  for (std::size_t s = 0; s < r.step.sequences.size(); ++s) {
    if (r.clusters.of_sequence[s] != cluster) continue;
    const std::uint32_t domain = r.step.sequences[s].domain;
    counts[domain < r.header.domains.size() ? r.header.domains[domain] : "-"] += 1;
    all += 1;
  }
  std::string out;
  for (const auto& [name, count] : counts)
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, format_percent(count / all));
  return out;
}

PageTable clusters_table(const ClusterResult& r) {
  PageTable table{"Clusters", {"cluster", "sequences", "tokens", "groups", "domains in it"}, {}};
  for (i32 c = 0; c < static_cast<i32>(r.clusters.num_clusters()); ++c) {
    i64 sequences = 0, tokens = 0;
    for (std::size_t s = 0; s < r.step.sequences.size(); ++s) {
      if (r.clusters.of_sequence[s] != c) continue;
      ++sequences;
      tokens += r.step.sequences[s].tokens;
    }
    std::string groups;
    for (const i32 group : r.groups[idx(c)]) groups += fmt::format("{}{}", groups.empty() ? "" : " ", group);
    table.rows.push_back({r.cluster_names[idx(c)], std::to_string(sequences), std::to_string(tokens), groups,
                          domains_in(r, c)});
  }
  table.notes = {"groups: of devices, to which the sequences of the cluster go.",
                 "domains in it: the kinds of text of its sequences, as the trace names them."};
  return table;
}

std::string over(double a, double b) { return b > 0 ? fmt::format("{:.3f}", a / b) : "-"; }

PageTable placements_table(const RoutingClusterArguments& options, const ClusterResult& r) {
  PageTable table{"Placements of the experts",
                  {"experts placed", "copies that change groups", "of linear", "rows", "rows of linear",
                   "padded rows of linear", "load ratio", "worst layer"},
                  {}};
  const PlacedWay& linear = r.ways[0];
  for (const PlacedWay& way : r.ways)
    table.rows.push_back({way.name, format_count(way.all()), over(way.all(), linear.all()),
                          way.rows > 0 ? format_count(way.rows) : "-", over(way.rows, linear.rows),
                          over(way.padded, linear.padded), fmt::format("{:.3f}", way.ratio),
                          fmt::format("{:.2f}", way.worst)});
  table.notes = {
      "linear: experts dealt out in order. eplb: by load alone, without copies. greedy, exact: by use. "
      "capped: by "
      "use, with a load ratio of at most " +
          fmt::format("{}", options.load_cap) + ".",
      "copies that change groups: of tokens to experts in another group of devices than their sequence's, "
      "which is "
      "that of its cluster; of linear: over those of linear, below 1 is less.",
      "rows: what travels for these, a row for each token and group that needs it.",
      "padded rows: where every group sends as many as the one that sends most.",
      "load ratio: time of the slowest group over a perfect division, mean over layers; worst layer: the "
      "largest."};
  return table;
}

void print_table(const PageTable& page) {
  Table table(page.header);
  for (const std::vector<std::string>& row : page.rows) table.add_row(row);
  std::cout << table.str();
  for (const std::string& note : page.notes) std::cout << note << "\n";
}

void print_clusters(const RoutingClusterArguments& options, const ClusterResult& r) {
  std::cout << fmt::format("{}: {}, {}, {} of {} experts (top {}), {} groups\n\n", options.trace,
                           counted(r.step.sequences.size(), "sequence"),
                           counted(r.step.num_tokens(), "token"), counted(r.header.layers.size(), "layer"),
                           r.header.num_experts, r.header.top_k, r.speeds.size());
  print_table(clusters_table(r));
  std::cout << "\n";
  print_table(placements_table(options, r));
  if (r.ways[4].over_cap > 0)
    std::cout << fmt::format("in {} not even experts dealt out by load alone keep the cap of {}\n",
                             counted(r.ways[4].over_cap, "layer"), options.load_cap);
  std::cout << fmt::format("with sequences sent to groups by chance: {:.3f} times the copies (capped)\n",
                           r.shuffled_volume);
  if (options.prefix != 0)
    std::cout << fmt::format(
        "by the prefix: {} of the clusters guessed right, {:.3f} times the copies (capped), "
        "correlation of prefix and rest {:.3f}\n",
        format_percent(r.prefix_right), r.prefix_volume, r.prefix_correlation);
  print(r.told);
}

Json json_of_clusters(const RoutingClusterArguments& options, const ClusterResult& r) {
  Json ways = Json::array(), clusters = Json::array();
  for (const PlacedWay& way : r.ways)
    ways.push_back({{"placement", way.name},
                    {"copies", way.all()},
                    {"over_linear", way.all() / r.ways[0].all()},
                    {"rows", way.rows},
                    {"padded", way.padded},
                    {"load_ratio", way.ratio},
                    {"worst_load_ratio", way.worst},
                    {"layers_over_cap", way.over_cap},
                    {"copies_of_layer", way.copies}});
  for (std::size_t c = 0; c < r.groups.size(); ++c)
    clusters.push_back({{"name", r.cluster_names[c]}, {"groups", r.groups[c]}});
  Json json = {{"trace", options.trace},
               {"clusters", clusters},
               {"cluster_of_sequence", r.clusters.of_sequence},
               {"group_of_sequence", r.group_of},
               {"placements", ways},
               {"volume_by_chance", r.shuffled_volume}};
  if (options.prefix != 0)
    json["prefix"] = {
        {"right", r.prefix_right}, {"volume", r.prefix_volume}, {"correlation", r.prefix_correlation}};
  if (r.told.tested > 0) json["domains"] = to_json(r.told);
  return json;
}

/// clusters.html: cluster x expert, and what changes groups layer by layer.
void write_page(const RoutingClusterArguments& options, const ClusterResult& r) {
  BalancePage page;
  page.title = "Sequences that use the same experts";
  page.label = "";
  page.maps_title = "Cluster by expert";
  constexpr std::size_t kMostLayers = 8;
  page.maps_text =
      "Copies of each expert that the sequences of a cluster have, the darker the more, on one scale. Right: "
      "copies of the cluster over the mean of clusters (the line).";
  if (r.header.layers.size() > kMostLayers)
    page.maps_text +=
        fmt::format(" Drawn are the first {} of {} layers.", kMostLayers, r.header.layers.size());
  page.curves_title = "Layer by layer";
  page.facts = {
      {"trace", options.trace}, {"clustered by", options.by}, {"groups", std::to_string(r.speeds.size())}};
  if (options.prefix != 0) page.facts.emplace_back("guessed by the prefix", format_percent(r.prefix_right));
  for (const ToldDomains::Way& way : r.told.ways)
    page.facts.emplace_back("domain told by " + way.by, format_percent(way.right.vote));
  page.tables = {clusters_table(r), placements_table(options, r)};
  page.curves = {"Copies that change groups, over those of linear", "layer", "of linear", {}, 1100, 300};
  for (const PlacedWay& way : r.ways) {
    LossSeries series{way.name, {}, {}};
    for (std::size_t l = 0; l < way.copies.size(); ++l)
      series.train.push_back({real(r.header.layers[l]), way.copies[l] / r.ways[0].copies[l]});
    page.curves.runs.push_back(std::move(series));
  }
  std::vector<std::vector<i32>> own(idx(r.clusters.num_clusters()));
  for (std::size_t c = 0; c < own.size(); ++c) own[c] = {static_cast<i32>(c)};
  for (std::size_t l = 0; l < std::min(kMostLayers, r.header.layers.size()); ++l) {
    const Activations rows = activations(r.header, r.step, static_cast<i64>(l), 0, options.trace);
    DeviceMap map{.title = "copies of each cluster's sequences by expert",
                  .devices = {},
                  .copies = usage_of(rows, r.clusters, own, r.clusters.num_clusters()),
                  .times = {},
                  .bars = "copies over the mean of clusters"};
    const double all = std::accumulate(
        map.copies.begin(), map.copies.end(), 0.0,
        [](double sum, const auto& row) { return sum + std::accumulate(row.begin(), row.end(), 0.0); });
    for (std::size_t c = 0; c < map.copies.size(); ++c) {
      map.devices.push_back("cluster " + r.cluster_names[c]);
      map.times.push_back(std::accumulate(map.copies[c].begin(), map.copies[c].end(), 0.0) / all *
                          real(map.copies.size()));
    }
    page.layers.push_back({r.header.layers[l], {std::move(map)}});
  }
  write_text(std::filesystem::path(options.output) / "clusters.html", balance_page(page));
}

int run_cluster(const RoutingClusterArguments& options, Overrides overrides) {
  if (!(options.load_cap >= 1))  // nor nan
    fail<ConfigError>("--load-cap", "got {}, expected at least 1, at which all groups take equally long",
                      options.load_cap);
  if (!options.output.empty()) check_output_folder(options.output);
  if (!options.plan.empty()) overrides.emplace_back("plan.file", options.plan);
  const RoutingTrace trace = open_trace(options.trace);
  const StepRange range = parse_steps(options.steps, "--steps");
  ClusterResult r;
  r.header = trace.header();
  r.speeds = speeds_of_groups(options, r.header, overrides);
  if (static_cast<i64>(r.speeds.size()) > r.header.num_experts)
    fail<ConfigError>("--groups", "got {} groups, expected at most {}, as many as a layer has experts",
                      r.speeds.size(), r.header.num_experts);
  const auto layer = std::find(r.header.layers.begin(), r.header.layers.end(), options.layer);
  if (options.layer >= 0 && layer == r.header.layers.end())
    fail<ConfigError>("--layer", "got {}, expected one that the trace has: {}", options.layer,
                      Json(r.header.layers).dump());
  RoutingClusterArguments by = options;
  by.layer = options.layer < 0 ? -1 : layer - r.header.layers.begin();
  read_activations(by, trace, range, r);
  make_clusters(by, r);
  place_experts(by, r);
  count_crossings(trace, range, r);
  r.told = tell_domains(r.header, r.step, r.clusters);
  if (!options.output.empty()) write_page(options, r);
  const Json json = json_of_clusters(options, r);
  if (!options.file.empty()) write_text(options.file, json.dump(1) + "\n");
  if (options.json) {
    print_json(json);
    return 0;
  }
  print_clusters(options, r);
  return 0;
}

}  // namespace

std::function<int()> make_routing_cluster(Flags& flags) {
  const auto options = std::make_shared<RoutingClusterArguments>();
  flags.add_option("trace", options->trace, "a routing trace: a file, or a folder with one for each rank")
      ->required();
  flags.add_option("job", options->job,
                   "a job whose devices are grouped (--groups node); every key of it is also a flag");
  flags.add_option("--plan", options->plan, "a plan.json instead of what the job's strategy makes");
  flags
      .add_option(
          "--groups", options->groups,
          "groups of devices that share fast links: a number of groups that are alike, or with a job node, "
          "device, or lists as [[0,1],[2,3]]")
      ->capture_default_str();
  flags
      .add_option("--by", options->by,
                  "what makes clusters: routes (the experts that sequences use) or domain")
      ->capture_default_str();
  flags.add_option("--clusters", options->clusters, "of routes [default: as many as groups]")
      ->range(at_least(1));
  flags.add_option("--layer", options->layer, "cluster by this layer alone [default: all]")
      ->range(at_least(0));
  flags
      .add_option(
          "--prefix", options->prefix,
          "also guess the cluster of each sequence by its first so many tokens; -1 = its prompt, 0 = no "
          "guess")
      ->capture_default_str()
      ->range(at_least(-1));
  flags.add_option("--load-cap", options->load_cap, "of the capped placement: time ratio of the groups")
      ->capture_default_str();
  flags.add_option("--steps", options->steps, "steps of the trace, as 10..20 [default: all, together]");
  flags.add_option("--output", options->output, "folder for clusters.html");
  flags.add_option("-o,--file", options->file, "file for clusters and placements as JSON")->is_output();
  flags.add_flag("--json", options->json, "print the same as JSON");
  allow_overrides(flags);
  return [options, flags] { return run_cluster(*options, overrides_of(flags)); };
}

}  // namespace hetermoe
