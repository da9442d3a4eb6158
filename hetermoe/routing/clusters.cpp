#include "hetermoe/routing/clusters.h"

#include <algorithm>
#include <cmath>

#include "hetermoe/base/error.h"
#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"
#include "hetermoe/routing/metrics.h"

namespace hetermoe {
namespace {

using Row = std::vector<double>;

double distance(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

Activations of_length_one(Activations rows) {
  for (Row& row : rows) {
    double squares = 0;
    for (const double x : row) squares += x * x;
    for (double& x : row) x = squares > 0 ? x / std::sqrt(squares) : 0;
  }
  return rows;
}

std::vector<Row> means_of(const Activations& rows, const std::vector<i32>& labels, std::vector<Row> centres) {
  std::vector<Row> sums(centres.size(), Row(rows[0].size(), 0));
  std::vector<double> counts(centres.size(), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Row& sum = sums[idx(labels[i])];
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += rows[i][j];
    counts[idx(labels[i])] += 1;
  }
  for (std::size_t c = 0; c < centres.size(); ++c) {
    if (counts[c] == 0) continue;
    for (std::size_t j = 0; j < sums[c].size(); ++j) centres[c][j] = sums[c][j] / counts[c];
  }
  return centres;
}

std::vector<Row> first_centres(const Activations& rows, const Activations& unit, i64 num_clusters) {
  std::size_t most = 0;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (sum_of(rows[i]) > sum_of(rows[most])) most = i;
  }
  std::vector<Row> centres = {unit[most]};
  std::vector<double> nearest(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) nearest[i] = distance(unit[i], centres[0]);
  while (static_cast<i64>(centres.size()) < num_clusters) {
    const auto farthest =
        static_cast<std::size_t>(std::max_element(nearest.begin(), nearest.end()) - nearest.begin());
    centres.push_back(unit[farthest]);
    for (std::size_t i = 0; i < rows.size(); ++i)
      nearest[i] = std::min(nearest[i], distance(unit[i], centres.back()));
  }
  return centres;
}

std::vector<i32> nearest_of(const Activations& unit, const std::vector<Row>& centres) {
  std::vector<i32> labels;
  for (const Row& row : unit) {
    std::size_t best = 0;
    const bool empty = std::all_of(row.begin(), row.end(), [](double x) { return x == 0; });
    double least = distance(row, centres[0]);
    for (std::size_t c = 1; c < centres.size() && !empty; ++c) {
      const double d = distance(row, centres[c]);
      if (d < least) least = d, best = c;
    }
    labels.push_back(static_cast<i32>(best));
  }
  return labels;
}

/// Choices of the first tokens of each sequence.
Activations count_prefix(const TraceHeader& header, const TraceStep& step,
                         const std::vector<std::size_t>& layers, i64 prefix, const std::string& where) {
  if (!step.has_choices())
    fail<InputError>(where,
                     "step {}: got counts alone, expected the choices of every token, without which "
                     "a prefix has no experts. Record with routing.detail: choices",
                     step.step);
  const std::size_t experts = idx(header.num_experts), k = idx(header.top_k);
  Activations out;
  for (std::size_t s = 0; s < step.sequences.size(); ++s) {
    const TraceSequence& sequence = step.sequences[s];
    const i64 tokens = prefix > 0 ? prefix : i64{sequence.prompt};
    if (tokens > sequence.tokens)
      fail<InputError>(where, "step {}, sequence {}: got {} tokens, expected at least the prefix of {}",
                       step.step, s, sequence.tokens, tokens);
    Row row(layers.size() * experts, 0);
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const std::uint16_t* ids = step.choices[layers[l]].data() + idx(step.first_token[s]) * k;
      for (std::size_t i = 0; i < idx(tokens) * k; ++i) {
        if (ids[i] != kNoExpert) row[l * experts + ids[i]] += 1;
      }
    }
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace

Activations activations(const TraceHeader& header, const TraceStep& step, i64 layer, i64 prefix,
                        const std::string& where) {
  std::vector<std::size_t> layers;
  if (layer >= 0)
    layers = {idx(layer)};
  else
    for (std::size_t l = 0; l < header.layers.size(); ++l) layers.push_back(l);
  if (prefix != 0) return count_prefix(header, step, layers, prefix, where);
  const std::size_t experts = idx(header.num_experts);
  Activations out;
  for (std::size_t s = 0; s < step.sequences.size(); ++s) {
    out.emplace_back();
    for (const std::size_t l : layers) {
      const auto begin = step.counts[l].begin() + static_cast<std::ptrdiff_t>(s * experts);
      out.back().insert(out.back().end(), begin, begin + static_cast<std::ptrdiff_t>(experts));
    }
  }
  return out;
}

Activations without_prefix(const Activations& all, const Activations& prefix) {
  Activations out = all;
  for (std::size_t s = 0; s < out.size(); ++s) {
    for (std::size_t i = 0; i < out[s].size(); ++i) out[s][i] -= prefix[s][i];
  }
  return out;
}

Clusters k_means(const Activations& rows, i64 num_clusters) {
  constexpr int kMostRounds = 100;
  HM_CHECK(num_clusters >= 1 && num_clusters <= static_cast<i64>(rows.size()), "{} clusters of {} sequences",
           num_clusters, rows.size());
  const Activations unit = of_length_one(rows);
  Clusters out;
  out.centres = first_centres(rows, unit, num_clusters);
  for (int round = 0; round < kMostRounds; ++round) {
    std::vector<i32> labels = nearest_of(unit, out.centres);
    const bool same = labels == out.of_sequence;
    out.of_sequence = std::move(labels);
    if (same) break;
    out.centres = means_of(unit, out.of_sequence, out.centres);
  }
  return out;
}

Clusters labelled(const Activations& rows, const std::vector<i32>& labels, i64 num_clusters) {
  const std::vector<Row> none(idx(num_clusters), Row(rows[0].size(), 0));
  return {labels, means_of(of_length_one(rows), labels, none)};
}

std::vector<i32> nearest(const Activations& rows, const std::vector<std::vector<double>>& centres) {
  return nearest_of(of_length_one(rows), centres);
}

std::vector<std::vector<i32>> groups_of_clusters(const Activations& rows, const Clusters& clusters,
                                                 i64 num_groups) {
  const std::size_t num_clusters = clusters.centres.size();
  std::vector<Row> sums(num_clusters, Row(rows[0].size(), 0));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < rows[i].size(); ++j) sums[idx(clusters.of_sequence[i])][j] += rows[i][j];
  }
  std::vector<std::vector<i32>> out(num_clusters);
  if (static_cast<i64>(num_clusters) > num_groups) {
    const Clusters of_clusters = k_means(sums, num_groups);
    for (std::size_t c = 0; c < num_clusters; ++c) out[c] = {of_clusters.of_sequence[c]};
    return out;
  }
  for (i32 group = 0; group < num_groups; ++group) {
    std::size_t next = idx(group);
    if (next >= num_clusters) {
      const auto share = [&](std::size_t c) { return sum_of(sums[c]) / real(out[c].size()); };
      next = 0;
      for (std::size_t c = 1; c < num_clusters; ++c) next = share(c) > share(next) ? c : next;
    }
    out[next].push_back(group);
  }
  return out;
}

std::vector<std::vector<double>> usage_of(const Activations& rows, const Clusters& clusters,
                                          const std::vector<std::vector<i32>>& groups, i64 num_groups) {
  std::vector<Row> out(idx(num_groups), Row(rows[0].size(), 0));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::vector<i32>& of_cluster = groups[idx(clusters.of_sequence[i])];
    for (const i32 group : of_cluster) {
      for (std::size_t j = 0; j < rows[i].size(); ++j)
        out[idx(group)][j] += rows[i][j] / real(of_cluster.size());
    }
  }
  return out;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double mean_a = sum_of(a) / real(a.size()), mean_b = sum_of(b) / real(b.size());
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

std::vector<i32> shuffled(std::vector<i32> labels, u64 seed) {
  for (std::size_t i = labels.size(); i > 1; --i)
    std::swap(labels[i - 1], labels[static_cast<std::size_t>(splitmix64(seed ^ splitmix64(i)) % i)]);
  return labels;
}

}  // namespace hetermoe
