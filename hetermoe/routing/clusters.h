#pragma once
#include <string>
#include <vector>

#include "hetermoe/routing/trace.h"

// Which sequences use the same experts.
namespace hetermoe {

/// [sequences][layers * experts] copies.
using Activations = std::vector<std::vector<double>>;

/// Activations of the sequences of a step. layer: position among the header's layers, -1 = all. prefix: only
/// the first so many tokens of each sequence count; 0 = all tokens, -1 = its prompt. Throws InputError where
/// that needs choices and the trace has counts, or where a sequence is shorter. `where` names the trace.
Activations activations(const TraceHeader& header, const TraceStep& step, i64 layer, i64 prefix,
                        const std::string& where);
/// Activations of a sequence beyond the prefix.
Activations without_prefix(const Activations& all, const Activations& prefix);

struct Clusters {
  std::vector<i32> of_sequence;
  std::vector<std::vector<double>> centres;  ///< [clusters] of rows of length 1
  i64 num_clusters() const { return static_cast<i64>(centres.size()); }
};

/// K-means on rows of length 1, without chance: the first centre is the row with most copies, each further
/// one the row farthest from its nearest centre. Rows without copies are of cluster 0. num_clusters: 1 to the
/// number of rows.
Clusters k_means(const Activations& rows, i64 num_clusters);
/// Clusters that are given, with their centres. labels: [rows] below num_clusters.
Clusters labelled(const Activations& rows, const std::vector<i32>& labels, i64 num_clusters);
/// The nearest centre of each row.
std::vector<i32> nearest(const Activations& rows, const std::vector<std::vector<double>>& centres);

/// [clusters] the device groups that serve each cluster. As many clusters as groups: one each. Fewer: the
/// next group goes to the cluster with most copies per group. More: clusters are clustered again.
std::vector<std::vector<i32>> groups_of_clusters(const Activations& rows, const Clusters& clusters,
                                                 i64 num_groups);

/// [groups][size of a row] copies that the sequences of each group's clusters have; groups that serve one
/// cluster have equal parts.
std::vector<std::vector<double>> usage_of(const Activations& rows, const Clusters& clusters,
                                          const std::vector<std::vector<i32>>& groups, i64 num_groups);

/// Pearson correlation of two rows; 0 where one of them is constant.
double correlation(const std::vector<double>& a, const std::vector<double>& b);

/// The labels in another order, by chance.
std::vector<i32> shuffled(std::vector<i32> labels, u64 seed);

}  // namespace hetermoe
