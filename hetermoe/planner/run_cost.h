#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/planner/planner.h"

// Days, money and energy of a run by a plan.
namespace hetermoe {

/// Cost of the devices that a plan uses; idle devices are not counted. Money is in the unit of
/// DeviceType::price_per_hour. Power is DeviceType::tdp_w of each, as if it drew that all the time: an upper
/// figure, without hosts and cooling.
struct RunCost {
  double tokens_per_s = 0;                     ///< simulated
  std::optional<double> per_hour, kilowatts;   ///< none: some type that is used has no figure
  std::vector<std::string> unpriced, unrated;  ///< types that are used without a price, without a tdp_w

  Seconds seconds(double tokens) const { return tokens / tokens_per_s; }
  std::optional<double> money(double tokens) const;
  std::optional<double> kilowatt_hours(double tokens) const;
  std::optional<double> tokens_per_unit() const;  ///< of money
};
RunCost run_cost_of(const Cluster& cluster, const Candidate& candidate);
RunCost run_cost_of(const Cluster& cluster, const Plan& plan, double tokens_per_s);

/// Indices of PlanResult::tried: plans that no other beats in both tokens/s and money, the fastest first. At
/// most `most` of them, with the fastest and the cheapest. Empty where no plan has a price.
std::vector<std::size_t> time_and_money(const Cluster& cluster, const PlanResult& result,
                                        std::size_t most = 3);

/// {"per_hour", "tokens_per_unit", "kilowatts"}, null where not known, {"types_without_price",
/// "types_without_tdp"}, lists of names; with run_tokens > 0 also "seconds",
/// "money", "kilowatt_hours".
Json to_json(const RunCost& cost, double run_tokens);

}  // namespace hetermoe
