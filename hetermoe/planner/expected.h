#pragma once
#include <map>
#include <string>
#include <vector>

#include "hetermoe/cluster/cluster.h"

// The share of a simulated rate that real steps reach, and the constants that it depends on.
namespace hetermoe {

/// Where the times of a device type, or of links, come from. measured: a profile of the device. calibrated:
/// constants that agree with what others published. assumed: a data sheet and the defaults of the cost model.
enum class Evidence { kMeasured, kCalibrated, kAssumed };
template <>
struct EnumNames<Evidence> {
  static const std::vector<std::string>& names();
};

Evidence evidence_of(const DeviceType& type);

/// Measured or published rates over those that were simulated for them.
struct Deviation {
  std::string of;  ///< an evidence, or "several devices": steps with exchanges between devices
  double low = 1, high = 1;
  std::string source;
};
/// The only place of these figures; docs/cost-model.md has the rows behind them.
const std::vector<Deviation>& deviations();

struct Expected {
  double low = 1, high = 1;                   ///< times the simulated rate
  std::map<std::string, Evidence> constants;  ///< of device types by name; "links" where devices exchange
};

/// How far a simulated rate of these devices may be off: the span of all rows of deviations() that concern
/// them, so that knowing less never narrows it. `links_assumed`: see assumed_links().
Expected expected_of(const Cluster& cluster, const std::vector<DeviceId>& used, bool links_assumed);

/// "A100-80 calibrated, L4 assumed (data sheet), links calibrated".
std::string constants_text(const Expected& expected);
/// "52,000 to 68,000": the simulated rate times both factors, in two digits.
std::string range_text(double rate, const Expected& expected);
Json constants_json(const Expected& expected);  ///< {"H100": "calibrated", "links": "assumed"}

}  // namespace hetermoe
