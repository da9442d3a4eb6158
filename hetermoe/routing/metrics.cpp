#include "hetermoe/routing/metrics.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<RoutingBand>::names() {
  static const std::vector<std::string> all = {"resilient", "between", "concentrated"};
  return all;
}

namespace {
constexpr double kResilientBelow = 0.2, kConcentratedAbove = 0.24;
}  // namespace

double sum_of(std::span<const double> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

std::optional<double> straggler_ratio(CopyCounts counts) {
  const double sum = sum_of(counts);
  if (sum <= 0) return {};
  return *std::max_element(counts.begin(), counts.end()) * real(counts.size()) / sum;
}

std::optional<double> gini(CopyCounts counts) {
  const double sum = sum_of(counts), n = real(counts.size());
  if (sum <= 0) return {};
  std::vector<double> ascending(counts.begin(), counts.end());
  std::sort(ascending.begin(), ascending.end());
  double weighted = 0;
  for (std::size_t i = 0; i < ascending.size(); ++i) weighted += real(i + 1) * ascending[i];
  return 2 * weighted / (n * sum) - (n + 1) / n;
}

double noise_floor(i64 num_experts, i64 top_k, double tokens) {
  if (tokens <= 0) return 0;
  const double chance = real(top_k) / real(num_experts);
  return std::sqrt((1 - chance) / (std::numbers::pi * tokens * chance));
}

double gini_excess(double gini, double floor) {
  return std::sqrt(std::max(0.0, gini * gini - floor * floor));
}

std::vector<double> rank_copies(CopyCounts counts, i64 num_devices) {
  const auto num_experts = static_cast<i64>(counts.size());
  HM_CHECK(num_devices >= 1 && num_devices <= num_experts, "{} devices for {} experts", num_devices,
           num_experts);
  std::vector<double> out;
  for (i64 d = 0; d < num_devices; ++d) {
    const i64 begin = num_experts * d / num_devices, end = num_experts * (d + 1) / num_devices;
    out.push_back(sum_of(counts.subspan(idx(begin), idx(end - begin))));
  }
  return out;
}

std::optional<double> time_ratio(std::span<const double> loads, std::span<const double> speeds) {
  const double sum = sum_of(loads);
  if (sum <= 0) return {};
  double slowest = 0;
  for (std::size_t d = 0; d < loads.size(); ++d) slowest = std::max(slowest, loads[d] / speeds[d]);
  return slowest * sum_of(speeds) / sum;
}

std::vector<ExpertId> busiest_experts(CopyCounts counts, i64 num_busiest) {
  std::vector<ExpertId> order(counts.size());
  std::iota(order.begin(), order.end(), ExpertId{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](ExpertId a, ExpertId b) { return counts[idx(a)] > counts[idx(b)]; });
  order.resize(std::min(order.size(), idx(num_busiest)));
  std::sort(order.begin(), order.end());
  return order;
}

std::optional<double> drift(CopyCounts before, CopyCounts after) {
  if (static_cast<i64>(before.size()) <= kDriftExperts || sum_of(before) <= 0 || sum_of(after) <= 0)
    return {};
  const std::vector<ExpertId> a = busiest_experts(before, kDriftExperts),
                              b = busiest_experts(after, kDriftExperts);
  std::vector<ExpertId> left;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(left));
  return real(left.size()) / real(kDriftExperts);
}

RoutingBand band_of(double gini) {
  if (gini < kResilientBelow) return RoutingBand::kResilient;
  return gini > kConcentratedAbove ? RoutingBand::kConcentrated : RoutingBand::kBetween;
}

void FigureRange::add(std::optional<double> figure) {
  if (!figure) return;
  low = count == 0 ? *figure : std::min(low, *figure);
  high = count == 0 ? *figure : std::max(high, *figure);
  mean += (*figure - mean) / real(++count);
}

}  // namespace hetermoe
