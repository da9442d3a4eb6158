#pragma once
#include <numeric>
#include <string>
#include <vector>

#include "hetermoe/cli/routing.h"
#include "hetermoe/cli/routing_domains.h"
#include "hetermoe/routing/clusters.h"

// Results of `routing cluster`: clusters of sequences, and experts placed by them.
namespace hetermoe {

struct RoutingClusterArguments {
  std::string trace, job, plan, steps, groups = "8", by = "routes", output, file;
  i64 clusters = 0, layer = -1, prefix = 0;
  double load_cap = 1.1;
  bool json = false;
};

/// One way to place experts, summed or averaged over layers.
struct PlacedWay {
  std::string name;
  std::vector<std::vector<i32>> group_of;  ///< [layers][experts]
  std::vector<double> copies;              ///< [layers] whose expert is in another group
  double rows = 0, padded = 0;
  double ratio = 0;  ///< mean over layers of the groups' time ratio
  double worst = 0;
  i64 over_cap = 0;  ///< layers in which the cap could not be kept
  double all() const { return std::accumulate(copies.begin(), copies.end(), 0.0); }
};

struct ClusterResult {
  TraceHeader header;
  TraceStep step;              ///< the sequences of all steps and their counts
  bool has_choices = true;     ///< the trace
  std::vector<double> speeds;  ///< [groups]
  Activations rows;            ///< by which sequences are clustered
  Activations prefix;  ///< the part of `rows` by which clusters are guessed; empty = none is asked for
  Clusters clusters;
  std::vector<std::string> cluster_names;
  std::vector<std::vector<i32>> groups;  ///< [clusters]
  std::vector<i32> group_of;             ///< [sequences]
  std::vector<PlacedWay> ways;
  ToldDomains told;
  // Figures of the prefix:
  double prefix_right = 0, prefix_correlation = 0, prefix_volume = 0, shuffled_volume = 0;
};

/// Reads the steps one after another; of each its sequences, their counts and the prefix are kept.
void read_activations(const RoutingClusterArguments& options, const RoutingTrace& trace, StepRange steps,
                      ClusterResult& r);
/// Which sequences belong together, and which group each goes to. Throws ConfigError and InputError.
void make_clusters(const RoutingClusterArguments& options, ClusterResult& r);
/// All ways of placing, and what a guess by the prefix costs with the capped one. Throws ConfigError.
void place_experts(const RoutingClusterArguments& options, ClusterResult& r);
/// Reads the steps again, and counts the rows that change groups under all ways. Without choices nothing.
void count_crossings(const RoutingTrace& trace, StepRange steps, ClusterResult& r);

}  // namespace hetermoe
