#pragma once
#include <string>
#include <vector>

#include "hetermoe/timeline/timeline.h"

// Which devices of large clusters a page draws: one of those that are alike, and no more than a browser shows
// at once.
namespace hetermoe {

/// A device that is drawn, for all that do the same at the same time.
struct DeviceClass {
  DeviceId shown = 0;
  std::vector<DeviceId> members;  ///< ascending, `shown` is the first
  Seconds difference = 0;  ///< the most that a start or an end of a member differs from that of `shown`
};

/// Devices of up to so many are drawn one by one, whether alike or not.
inline constexpr std::size_t kFewDevices = 16;
/// Spans that a page shows at once.
inline constexpr std::size_t kMostSpans = 80000;

/// Classes of the devices of timelines over the same devices in the same order (of a prediction, of a run).
/// Two devices are alike when type and role are the same, and in each timeline their spans are of the same
/// ops (but for the group) in the same lanes. The spans must also start and end within 1 % of the step of one
/// another. In the order of `shown`.
std::vector<DeviceClass> device_classes(const std::vector<const Timeline*>& timelines);

/// Those classes that are drawn so that at most about `most` spans and 48 rows are: of each type and role the
/// busiest and the least busy, and others evenly between these. All of them where they are few.
std::vector<DeviceClass> drawn_classes(const std::vector<const Timeline*>& timelines,
                                       std::vector<DeviceClass> classes, std::size_t most = kMostSpans);

/// "A40#0, A40#2 to A40#5": names that differ in their last number alone are put together. If there are more
/// than `most` parts, the rest is counted.
std::string name_ranges(const std::vector<std::string>& names, std::size_t most = 6);

}  // namespace hetermoe
