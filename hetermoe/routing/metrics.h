#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hetermoe/base/fields.h"
#include "hetermoe/base/types.h"

// How uneven routing is: figures of the copies of each expert of one layer over a window (a microbatch, a
// step, some sequences, a whole trace). A window without copies has no figure.
namespace hetermoe {

using CopyCounts = std::span<const double>;  ///< [experts]

double sum_of(std::span<const double> values);

/// Largest over mean; 1 = even. Also of anything else that is counted, such as copies of devices.
std::optional<double> straggler_ratio(CopyCounts counts);

/// Gini coefficient: 0 = even, 1 - 1/E = one expert has all.
std::optional<double> gini(CopyCounts counts);

/// The Gini coefficient that chance alone gives a router that is even in truth, when each of `tokens` tokens
/// picks top_k of num_experts. Within 5 % from 6 copies per expert on. 0 without tokens.
double noise_floor(i64 num_experts, i64 top_k, double tokens);
/// A Gini coefficient below this many times the noise floor is noise.
inline constexpr double kNoiseFactor = 1.2;
/// The part of a Gini coefficient beyond the noise floor.
double gini_excess(double gini, double floor);

/// Copies of the experts that each of num_devices holds when they are dealt out in runs, in order; numbers of
/// experts differ by at most one. num_devices: 1 to the number of experts.
std::vector<double> rank_copies(CopyCounts counts, i64 num_devices);

/// Time of the slowest device over the time of all if copies could be divided at will. loads, speeds:
/// [devices], speeds above 0.
std::optional<double> time_ratio(std::span<const double> loads, std::span<const double> speeds);

/// The num_busiest most loaded experts, ascending; of equal ones the lower.
std::vector<ExpertId> busiest_experts(CopyCounts counts, i64 num_busiest);
inline constexpr i64 kDriftExperts = 8;
/// Share of the kDriftExperts most loaded experts that change from one microbatch to the next. None where the
/// layer has no more experts than that, or a microbatch no copies.
std::optional<double> drift(CopyCounts before, CopyCounts after);

/// The kind of a router by the Gini coefficient of real text.
enum class RoutingBand { kResilient, kBetween, kConcentrated };
template <>
struct EnumNames<RoutingBand> {
  static const std::vector<std::string>& names();
};
RoutingBand band_of(double gini);

/// Mean, smallest and largest of figures; none of no figures.
struct FigureRange {
  double mean = 0, low = 0, high = 0;
  i64 count = 0;
  void add(std::optional<double> figure);
};

}  // namespace hetermoe
