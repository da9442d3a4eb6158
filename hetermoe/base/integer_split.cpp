#include "hetermoe/base/integer_split.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>
#include <tuple>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"

namespace hetermoe {

std::vector<i64> proportional_split(i64 total, const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  HM_CHECK(!weights.empty() && sum > 0, "nothing to split over");
  std::vector<i64> parts;
  std::vector<double> remainders;
  i64 given = 0;
  for (const double weight : weights) {
    const double exact = static_cast<double>(total) * weight / sum;
    parts.push_back(static_cast<i64>(exact));
    remainders.push_back(exact - static_cast<double>(parts.back()));
    given += parts.back();
  }
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return remainders[a] > remainders[b]; });
  for (std::size_t i = 0; given < total; ++i, ++given) ++parts[order[i % order.size()]];
  return parts;
}

namespace {

/// Units of each bin that finish by some time at which no more than `units` have: what giving one unit after
/// another comes by, too.
std::vector<i64> most_units(i64 units, const std::vector<double>& load, const std::vector<double>& cost,
                            const std::vector<i64>& capacity) {
  constexpr int kHalvings = 24;
  std::vector<i64> given(load.size(), 0), tried = given;
  double low = 0, high = 0;
  for (std::size_t i = 0; i < load.size(); ++i) high = std::max(high, load[i] + real(units) * cost[i]);
  for (int step = 0; step < kHalvings; ++step) {
    const double finish = (low + high) / 2;
    i64 sum = 0;
    for (std::size_t i = 0; i < load.size(); ++i) {
      // A unit less than the quotient: rounding makes no unit early.
      const double fit = cost[i] > 0 ? std::floor((finish - load[i]) / cost[i]) - 1 : 0;
      tried[i] = static_cast<i64>(std::clamp(fit, 0.0, real(std::max<i64>(0, capacity[i]))));
      sum += tried[i];
    }
    if (sum > units) {
      high = finish;
    } else {
      low = finish;
      std::swap(given, tried);
    }
  }
  return given;
}

}  // namespace

std::vector<i64> balance_units(i64 units, const std::vector<double>& load, const std::vector<double>& cost,
                               const std::vector<i64>& capacity) {
  std::vector<i64> given = most_units(units, load, cost, capacity);
  for (const i64 count : given) units -= count;
  using Entry = std::tuple<double, i64, std::size_t>;  // finish with one more, units so far, bin
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> next;
  for (std::size_t i = 0; i < load.size(); ++i) {
    if (given[i] < capacity[i]) next.emplace(load[i] + real(given[i] + 1) * cost[i], given[i], i);
  }
  for (; units > 0 && !next.empty(); --units) {
    const std::size_t i = std::get<2>(next.top());
    next.pop();
    if (++given[i] < capacity[i]) next.emplace(load[i] + real(given[i] + 1) * cost[i], given[i], i);
  }
  return given;
}

std::vector<std::vector<i64>> spread(const std::vector<i64>& rows, const std::vector<i64>& columns) {
  const double total = std::max(1.0, real(std::accumulate(rows.begin(), rows.end(), i64{0})));
  std::vector<std::vector<i64>> out;
  std::vector<i64> given(columns.size(), 0);
  i64 cumulative = 0;
  for (const i64 row : rows) {
    cumulative += row;
    std::vector<i64> parts(columns.size(), 0);
    std::vector<std::pair<double, std::size_t>> wanting;
    i64 left = row;
    for (std::size_t j = 0; j < columns.size(); ++j) {
      const double wanted = real(columns[j]) * real(cumulative) / total - real(given[j]);
      parts[j] = std::clamp<i64>(static_cast<i64>(std::floor(wanted + 1e-9)), 0,
                                 std::min(left, columns[j] - given[j]));
      left -= parts[j];
      wanting.emplace_back(real(parts[j]) - wanted, j);
    }
    std::stable_sort(wanting.begin(), wanting.end());
    for (std::size_t i = 0; left > 0; i = (i + 1) % wanting.size()) {
      const std::size_t j = wanting[i].second;
      if (given[j] + parts[j] < columns[j]) ++parts[j], --left;
    }
    for (std::size_t j = 0; j < columns.size(); ++j) given[j] += parts[j];
    out.push_back(std::move(parts));
  }
  return out;
}

namespace {

/// Finds how many experts a device of each part owns in one layer.
class LayerCounts {
 public:
  LayerCounts(i64 experts, const std::vector<i64>& sizes, const std::vector<double>& unit_s)
      : experts_(experts), sizes_(sizes), unit_s_(unit_s), counts_(sizes.size()) {}

  /// wanted: [parts] experts of the whole part. Empty when no whole numbers add up.
  std::vector<i64> nearest(const std::vector<double>& wanted) {
    wanted_ = &wanted;
    best_.clear();
    try_part(0, experts_, 0);
    return best_;
  }

 private:
  static constexpr i64 kReach = 1;  ///< beyond the two whole numbers next to the wanted one

  void try_part(std::size_t part, i64 left, double cost) {
    if (!best_.empty() && cost >= least_) return;
    const double exact = (*wanted_)[part] / real(sizes_[part]);
    if (part + 1 == sizes_.size()) {
      counts_[part] = left / sizes_[part];
      if (left % sizes_[part] != 0) return;
      cost += cost_of(part, exact);
      if (!best_.empty() && cost >= least_) return;
      best_ = counts_;
      least_ = cost;
      return;
    }
    const i64 floor = static_cast<i64>(std::floor(exact));
    for (i64 count = std::max<i64>(0, floor - kReach); count <= floor + 1 + kReach; ++count) {
      if (count * sizes_[part] > left) break;
      counts_[part] = count;
      try_part(part + 1, left - count * sizes_[part], cost + cost_of(part, exact));
    }
  }
  double cost_of(std::size_t part, double exact) const {
    const double off = unit_s_[part] * (real(counts_[part]) - exact);
    return real(sizes_[part]) * off * off;
  }

  i64 experts_;
  const std::vector<i64>& sizes_;
  const std::vector<double>& unit_s_;
  const std::vector<double>* wanted_ = nullptr;
  std::vector<i64> counts_, best_;
  double least_ = 0;
};

}  // namespace

std::vector<std::vector<i64>> equal_counts(i64 layers, i64 experts, const std::vector<i64>& sizes,
                                           const std::vector<i64>& totals,
                                           const std::vector<double>& unit_s) {
  LayerCounts counts(experts, sizes, unit_s);
  std::vector<std::vector<i64>> out;
  std::vector<i64> given(sizes.size(), 0);
  std::vector<double> wanted(sizes.size());
  for (i64 l = 0; l < layers; ++l) {
    for (std::size_t p = 0; p < sizes.size(); ++p)
      wanted[p] = real(totals[p]) * real(l + 1) / real(layers) - real(given[p]);
    out.push_back(counts.nearest(wanted));
    if (out.back().empty()) return {};
    for (std::size_t p = 0; p < sizes.size(); ++p) given[p] += out.back()[p] * sizes[p];
  }
  return out;
}

}  // namespace hetermoe
