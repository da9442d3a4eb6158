#include "hetermoe/routing/layer_loads.h"

#include <algorithm>
#include <cmath>

#include "hetermoe/base/index.h"
#include "hetermoe/routing/metrics.h"

namespace hetermoe {
double effective_experts(const std::vector<double>& copies) {
  const double sum = sum_of(copies);
  double squares = 0;
  for (const double count : copies) squares += count * count;
  return squares > 0 ? sum * sum / squares : 0;
}

std::vector<LayerLoad> layer_loads(const ModelConfig& model, const std::vector<std::vector<double>>& copies,
                                   const std::vector<double>& dropped) {
  std::vector<LayerLoad> out;
  for (i64 l = 0; l < model.num_layers; ++l) {
    if (!model.is_moe(l)) continue;
    const std::vector<double>& counts = copies[idx(l)];
    const double sum = sum_of(counts), mean = sum / real(counts.size());
    if (sum == 0) continue;
    double spread = 0;
    for (const double count : counts) spread += (count - mean) * (count - mean);
    out.push_back({.layer = l,
                   .max_over_mean = *std::max_element(counts.begin(), counts.end()) / mean,
                   .cv = std::sqrt(spread / real(counts.size())) / mean,
                   .dead = std::count(counts.begin(), counts.end(), 0.0),
                   .dropped = dropped.empty() ? 0 : dropped[idx(l)] / sum});
  }
  return out;
}

std::vector<Collapse> CollapseWatch::add(const std::vector<std::vector<double>>& copies) {
  std::vector<Collapse> found;
  steps_.resize(copies.size(), 0);
  const double bound = real(top_k_) + kShare * real(num_experts_ - top_k_);
  for (std::size_t l = 0; l < copies.size(); ++l) {
    if (sum_of(copies[l]) < kFewestCopies * real(num_experts_)) continue;
    const double effective = effective_experts(copies[l]);
    steps_[l] = effective < bound ? steps_[l] + 1 : 0;
    if (steps_[l] == kSteps) found.push_back({static_cast<i64>(l), effective});
  }
  return found;
}

}  // namespace hetermoe
