#include "hetermoe/routing/told.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// Rows of length 1 less the mean of those that teach, and a 1 for the bias.
class Features {
 public:
  explicit Features(const Activations& rows) : mean_(rows[0].size(), 0) {
    for (const std::vector<double>& row : rows) {
      const double length = length_of(row);
      for (std::size_t j = 0; j < row.size(); ++j) mean_[j] += row[j] / length / real(rows.size());
    }
  }
  std::vector<double> of(const std::vector<double>& row) const {
    const double length = length_of(row);
    std::vector<double> out;
    for (std::size_t j = 0; j < row.size(); ++j) out.push_back(row[j] / length - mean_[j]);
    out.push_back(1);
    return out;
  }

 private:
  /// Of a row without copies 1.
  static double length_of(const std::vector<double>& row) {
    const double squares = std::inner_product(row.begin(), row.end(), row.begin(), 0.0);
    return squares > 0 ? std::sqrt(squares) : 1;
  }
  std::vector<double> mean_;
};

using Weights = std::vector<std::vector<double>>;  // [labels][features]

std::vector<double> scores_of(const Weights& weights, const std::vector<double>& x) {
  std::vector<double> out;
  for (const std::vector<double>& w : weights)
    out.push_back(std::inner_product(x.begin(), x.end(), w.begin(), 0.0));
  return out;
}

/// Scores become chances.
void softmax(std::vector<double>& scores) {
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - most);
  for (double& score : scores) score /= sum;
}

/// Gradient of the mean loss of the labels and the penalty.
Weights gradient(const Weights& weights, const Activations& features, const std::vector<i32>& labels,
                 double penalty) {
  Weights out = weights;
  for (std::vector<double>& w : out) {
    for (double& x : w) x *= penalty;
    w.back() = 0;  // the bias is free
  }
  for (std::size_t i = 0; i < features.size(); ++i) {
    std::vector<double> chances = scores_of(weights, features[i]);
    softmax(chances);
    chances[idx(labels[i])] -= 1;
    for (std::size_t c = 0; c < out.size(); ++c) {
      for (std::size_t j = 0; j < features[i].size(); ++j)
        out[c][j] += chances[c] * features[i][j] / real(features.size());
    }
  }
  return out;
}

/// By gradients with Nesterov's momentum, at the step that cannot overshoot.
Weights learned(const Activations& features, const std::vector<i32>& labels, i64 num_labels) {
  constexpr double kPenalty = 1e-3;
  constexpr int kSteps = 200;
  double longest = 0;
  for (const std::vector<double>& x : features)
    longest = std::max(longest, std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
  const double rate = 1 / (longest / 2 + kPenalty);
  Weights weights(idx(num_labels), std::vector<double>(features[0].size(), 0)), before = weights;
  for (int step = 0; step < kSteps; ++step) {
    const double momentum = real(step) / real(step + 3);
    Weights ahead = weights;
    for (std::size_t c = 0; c < ahead.size(); ++c) {
      for (std::size_t j = 0; j < ahead[c].size(); ++j)
        ahead[c][j] += momentum * (weights[c][j] - before[c][j]);
    }
    const Weights slope = gradient(ahead, features, labels, kPenalty);
    before = std::move(weights);
    weights = std::move(ahead);
    for (std::size_t c = 0; c < weights.size(); ++c) {
      for (std::size_t j = 0; j < weights[c].size(); ++j) weights[c][j] -= rate * slope[c][j];
    }
  }
  return weights;
}

i32 largest(const std::vector<double>& values) {
  return static_cast<i32>(std::max_element(values.begin(), values.end()) - values.begin());
}

Activations layer_of(const Activations& rows, const std::vector<std::size_t>& which, std::size_t layer,
                     i64 num_experts) {
  Activations out;
  for (const std::size_t i : which) {
    const auto begin = rows[i].begin() + static_cast<std::ptrdiff_t>(layer * idx(num_experts));
    out.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(num_experts));
  }
  return out;
}

}  // namespace

std::vector<i32> told_by_mean(const Activations& rows, const std::vector<i32>& labels, i64 num_labels,
                              const Activations& asked) {
  return nearest(asked, labelled(rows, labels, num_labels).centres);
}

std::vector<i32> told_by_regression(const Activations& rows, const std::vector<i32>& labels, i64 num_labels,
                                    const Activations& asked) {
  const Features features(rows);
  Activations known;
  for (const std::vector<double>& row : rows) known.push_back(features.of(row));
  const Weights weights = learned(known, labels, num_labels);
  std::vector<i32> out;
  for (const std::vector<double>& row : asked) out.push_back(largest(scores_of(weights, features.of(row))));
  return out;
}

Told tell_labels(const Activations& rows, i64 num_experts, const std::vector<i32>& labels, i64 num_labels,
                 Teller teller) {
  constexpr i64 kParts = 5;
  const std::size_t num_layers = rows[0].size() / idx(num_experts);
  std::vector<i64> seen(idx(num_labels), 0);
  std::vector<std::size_t> taught, tested;
  for (std::size_t i = 0; i < rows.size(); ++i)
    (seen[idx(labels[i])]++ % kParts == kParts - 1 ? tested : taught).push_back(i);
  Told out;
  out.tested = static_cast<i64>(tested.size());
  if (tested.empty()) return out;
  std::vector<i32> known;
  for (const std::size_t i : taught) known.push_back(labels[i]);
  std::vector<std::vector<double>> votes(tested.size(), std::vector<double>(idx(num_labels), 0));
  for (std::size_t l = 0; l < num_layers; ++l) {
    const std::vector<i32> told = teller(layer_of(rows, taught, l, num_experts), known, num_labels,
                                         layer_of(rows, tested, l, num_experts));
    double right = 0;
    for (std::size_t t = 0; t < tested.size(); ++t) {
      right += told[t] == labels[tested[t]] ? 1 : 0;
      votes[t][idx(told[t])] += 1;
    }
    out.of_layer.push_back(right / real(tested.size()));
  }
  for (std::size_t t = 0; t < tested.size(); ++t)
    out.vote += largest(votes[t]) == labels[tested[t]] ? 1 / real(tested.size()) : 0;
  return out;
}

}  // namespace hetermoe
