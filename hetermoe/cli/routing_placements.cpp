#include "hetermoe/cli/routing_placements.h"

#include <algorithm>

#include "hetermoe/balance/locality.h"
#include "hetermoe/base/index.h"
#include "hetermoe/routing/crossing.h"
#include "hetermoe/routing/joined_steps.h"

namespace hetermoe {

void read_activations(const RoutingClusterArguments& options, const RoutingTrace& trace, StepRange steps,
                      ClusterResult& r) {
  for_each_joined_step(trace, steps.first, steps.last, [&](TraceStep step) {
    r.has_choices = r.has_choices && step.has_choices();
    if (options.prefix != 0) {
      Activations prefix = activations(r.header, step, options.layer, options.prefix, options.trace);
      r.prefix.insert(r.prefix.end(), std::move_iterator(prefix.begin()), std::move_iterator(prefix.end()));
    }
    const std::size_t num_layers = step.counts.size();
    step.choices = std::vector<std::vector<std::uint16_t>>(num_layers);  // which frees those of the step
    step.weights = std::vector<std::vector<float>>(num_layers);
    append_step(r.step, std::move(step));
  });
  r.rows = activations(r.header, r.step, options.layer, 0, options.trace);
}

void make_clusters(const RoutingClusterArguments& options, ClusterResult& r) {
  const auto num_groups = static_cast<i64>(r.speeds.size());
  const auto num_sequences = static_cast<i64>(r.rows.size());
  if (options.by == "domain") {
    if (!has_domains(r.header, r.step))
      fail<InputError>(options.trace,
                       "--by domain: got sequences without domains, expected at least two domains. Give "
                       "data.weights, so that every path of data.paths is one, or cluster --by routes");
    r.clusters = labelled(r.rows, domains_of(r.step), static_cast<i64>(r.header.domains.size()));
    r.cluster_names = r.header.domains;
  } else {
    if (options.by != "routes") fail<ConfigError>("--by", "got {}, expected routes or domain", options.by);
    const i64 num = options.clusters > 0 ? options.clusters : std::min(num_groups, num_sequences);
    if (num < 2 || num > num_sequences)
      fail<ConfigError>("--clusters", "got {}, expected 2 to {}, as many as there are sequences", num,
                        num_sequences);
    r.clusters = k_means(r.rows, num);
    for (i64 c = 0; c < num; ++c) r.cluster_names.push_back(std::to_string(c));
  }
  r.groups = groups_of_clusters(r.rows, r.clusters, num_groups);
  std::vector<double> tokens(idx(num_groups), 0);
  for (std::size_t s = 0; s < r.rows.size(); ++s) {
    const std::vector<i32>& may = r.groups[idx(r.clusters.of_sequence[s])];
    const i32 least = *std::min_element(may.begin(), may.end(),
                                        [&](i32 a, i32 b) { return tokens[idx(a)] < tokens[idx(b)]; });
    tokens[idx(least)] += r.step.sequences[s].tokens;
    r.group_of.push_back(least);
  }
}

namespace {

std::vector<i32> in_order(const std::vector<i64>& room) {
  std::vector<i32> out;
  for (std::size_t g = 0; g < room.size(); ++g) out.insert(out.end(), idx(room[g]), static_cast<i32>(g));
  return out;
}

void add_layer(const RoutingClusterArguments& options, const ClusterResult& r, PlacedWay& way,
               const Usage& usage, const std::vector<i32>& placed) {
  std::vector<double> load(usage[0].size(), 0);
  for (const std::vector<double>& of_group : usage) {
    for (std::size_t e = 0; e < load.size(); ++e) load[e] += of_group[e];
  }
  const double ratio = group_ratio(load, r.speeds, placed);
  way.group_of.push_back(placed);
  way.copies.push_back(copies_outside(usage, placed));
  way.ratio += ratio / real(r.header.layers.size());
  way.worst = std::max(way.worst, ratio);
  way.over_cap += way.name == "capped" && ratio > options.load_cap * (1 + 1e-9) ? 1 : 0;
}

}  // namespace

void place_experts(const RoutingClusterArguments& options, ClusterResult& r) {
  const auto num_groups = static_cast<i64>(r.speeds.size());
  const std::vector<i64> room = group_room(r.header.num_experts, r.speeds);
  for (const char* name : {"linear", "eplb", "greedy", "exact", "capped"}) {
    r.ways.emplace_back();
    r.ways.back().name = name;
  }
  Clusters guessed = r.clusters, mixed = r.clusters;
  if (options.prefix != 0) {
    const Activations rest = without_prefix(r.rows, r.prefix);
    if (std::all_of(rest.begin(), rest.end(), [](const auto& row) {
          return std::all_of(row.begin(), row.end(), [](double copies) { return copies == 0; });
        }))
      fail<ConfigError>("--prefix",
                        "got {}, which is all of every sequence, expected fewer tokens than a sequence has: "
                        "nothing is left to guess (in traces of training the prompt is the whole sequence)",
                        options.prefix);
    guessed.of_sequence = nearest(r.prefix, r.clusters.centres);
    for (std::size_t s = 0; s < r.prefix.size(); ++s) {
      r.prefix_right += guessed.of_sequence[s] == r.clusters.of_sequence[s] ? 1 / real(r.prefix.size()) : 0;
      r.prefix_correlation += correlation(r.prefix[s], rest[s]) / real(r.prefix.size());
    }
  }
  mixed.of_sequence = shuffled(r.clusters.of_sequence, 1);
  double guessed_copies = 0, mixed_copies = 0;
  for (std::size_t l = 0; l < r.header.layers.size(); ++l) {
    const Activations rows = activations(r.header, r.step, static_cast<i64>(l), 0, options.trace);
    const Usage usage = usage_of(rows, r.clusters, r.groups, num_groups);
    const std::vector<i32> capped = place_capped(usage, room, r.speeds, options.load_cap).group;
    add_layer(options, r, r.ways[0], usage, in_order(room));
    add_layer(options, r, r.ways[1], usage, place_by_load(usage, room, r.speeds));
    add_layer(options, r, r.ways[2], usage, place_greedy(usage, room));
    add_layer(options, r, r.ways[3], usage, place_exact(usage, room));
    add_layer(options, r, r.ways[4], usage, capped);
    guessed_copies += copies_outside(usage_of(rows, guessed, r.groups, num_groups), capped);
    mixed_copies += copies_outside(usage_of(rows, mixed, r.groups, num_groups), capped);
  }
  r.prefix_volume = guessed_copies / r.ways[4].all();
  r.shuffled_volume = mixed_copies / r.ways[4].all();
}

void count_crossings(const RoutingTrace& trace, StepRange steps, ClusterResult& r) {
  if (!r.has_choices) return;
  const std::size_t num_layers = r.header.layers.size();
  const auto num_groups = static_cast<i64>(r.speeds.size());
  std::vector<std::vector<Crossing>> crossed(r.ways.size(),
                                             std::vector<Crossing>(num_layers, Crossing(num_groups)));
  std::span<const i32> rest = r.group_of;
  for_each_joined_step(trace, steps.first, steps.last, [&](const TraceStep& step) {
    const std::span<const i32> of_sequence = rest.first(step.sequences.size());
    rest = rest.subspan(of_sequence.size());
    for (std::size_t w = 0; w < r.ways.size(); ++w) {
      for (std::size_t l = 0; l < num_layers; ++l)
        add_crossing(crossed[w][l], r.header, step, l, of_sequence, r.ways[w].group_of[l]);
    }
  });
  for (std::size_t w = 0; w < r.ways.size(); ++w) {
    for (const Crossing& of_layer : crossed[w]) {
      r.ways[w].rows += of_layer.rows;
      r.ways[w].padded += of_layer.most() * real(num_groups);
    }
  }
}

}  // namespace hetermoe
