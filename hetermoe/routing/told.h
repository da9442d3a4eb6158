#pragma once
#include "hetermoe/routing/clusters.h"

// How well labels of sequences, domains say, are told from the experts that they use.
namespace hetermoe {

/// Labels of the rows `asked`, learned from other rows whose labels are known.
using Teller = std::vector<i32> (*)(const Activations& rows, const std::vector<i32>& labels, i64 num_labels,
                                    const Activations& asked);
/// The label with the nearest mean, of rows of length 1.
std::vector<i32> told_by_mean(const Activations& rows, const std::vector<i32>& labels, i64 num_labels,
                              const Activations& asked);
/// By multinomial logistic regression on rows of length 1 less their mean: 200 steps over all rows from zero,
/// with the squared length of the weights (1e-3) in the loss.
std::vector<i32> told_by_regression(const Activations& rows, const std::vector<i32>& labels, i64 num_labels,
                                    const Activations& asked);

/// Every fifth sequence of each label is predicted from the other four fifths. Share of correct predictions.
struct Told {
  std::vector<double> of_layer;  ///< [layers] by that layer alone
  double vote = 0;               ///< of the layers
  i64 tested = 0;
};
/// rows: of all layers together, num_experts each.
Told tell_labels(const Activations& rows, i64 num_experts, const std::vector<i32>& labels, i64 num_labels,
                 Teller teller);

}  // namespace hetermoe
