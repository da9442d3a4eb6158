#include "hetermoe/planner/run_cost.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

constexpr Seconds kHour = 3600;

std::optional<double> times(std::optional<double> per_hour, Seconds seconds) {
  if (!per_hour) return {};
  return *per_hour * seconds / kHour;
}

/// The sum of a figure over used devices; none where some have no figure, whose types are listed.
/// used: [type of the cluster]
template <class Figure>
std::optional<double> sum_of_used(const Cluster& cluster, const std::vector<i64>& used, Figure figure,
                                  std::vector<std::string>& missing) {
  double sum = 0;
  for (std::size_t t = 0; t < used.size(); ++t) {
    if (used[t] == 0) continue;
    const double of_one = figure(cluster.types[t]);
    if (of_one <= 0) missing.push_back(cluster.types[t].name);
    sum += of_one * real(used[t]);
  }
  return missing.empty() && sum > 0 ? std::optional(sum) : std::nullopt;
}

RunCost cost_of_types(const Cluster& cluster, const std::vector<i64>& used, double tokens_per_s) {
  RunCost cost;
  cost.tokens_per_s = tokens_per_s;
  cost.per_hour = sum_of_used(
      cluster, used, [](const DeviceType& type) { return type.price_per_hour; }, cost.unpriced);
  cost.kilowatts = sum_of_used(
      cluster, used, [](const DeviceType& type) { return type.tdp_w / 1e3; }, cost.unrated);
  return cost;
}

Json or_null(std::optional<double> figure) { return figure ? Json(*figure) : Json(); }

}  // namespace

std::optional<double> RunCost::money(double tokens) const { return times(per_hour, seconds(tokens)); }

std::optional<double> RunCost::kilowatt_hours(double tokens) const {
  return times(kilowatts, seconds(tokens));
}

std::optional<double> RunCost::tokens_per_unit() const {
  if (!per_hour) return {};
  return tokens_per_s * kHour / *per_hour;
}

RunCost run_cost_of(const Cluster& cluster, const Candidate& candidate) {
  std::vector<i64> used(cluster.types.size(), 0);
  for (const TypeUse& use : candidate.types) {
    const auto type = std::ranges::find(cluster.types, use.type, &DeviceType::name);
    if (type != cluster.types.end()) used[idx(type - cluster.types.begin())] += use.used;
  }
  return cost_of_types(cluster, used, candidate.prediction.tokens_per_s);
}

RunCost run_cost_of(const Cluster& cluster, const Plan& plan, double tokens_per_s) {
  std::vector<i64> used(cluster.types.size(), 0);
  for (const Group& group : plan.groups)
    for (const DeviceId device : group.devices) ++used[idx(cluster.devices[idx(device)].type)];
  return cost_of_types(cluster, used, tokens_per_s);
}

std::vector<std::size_t> time_and_money(const Cluster& cluster, const PlanResult& result, std::size_t most) {
  std::vector<std::size_t> chosen;
  double best = 0;
  for (std::size_t i = 0; i < result.tried.size(); ++i) {  // the fastest first
    if (!result.tried[i].infeasible.empty()) continue;
    const std::optional<double> tokens = run_cost_of(cluster, result.tried[i]).tokens_per_unit();
    if (!tokens || *tokens <= best) continue;
    best = *tokens;
    chosen.push_back(i);
  }
  // Between the fastest and the cheapest, those that stay are the faster ones.
  if (chosen.size() > most)
    chosen.erase(chosen.begin() + static_cast<std::ptrdiff_t>(most) - 1, chosen.end() - 1);
  return chosen;
}

Json to_json(const RunCost& cost, double run_tokens) {
  Json json = {{"per_hour", or_null(cost.per_hour)},
               {"tokens_per_unit", or_null(cost.tokens_per_unit())},
               {"kilowatts", or_null(cost.kilowatts)},
               {"types_without_price", cost.unpriced},
               {"types_without_tdp", cost.unrated}};
  if (run_tokens > 0) {
    json["seconds"] = cost.seconds(run_tokens);
    json["money"] = or_null(cost.money(run_tokens));
    json["kilowatt_hours"] = or_null(cost.kilowatt_hours(run_tokens));
  }
  return json;
}

}  // namespace hetermoe
