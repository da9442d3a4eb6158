#pragma once
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/median.h"
#include "hetermoe/base/types.h"
#include "hetermoe/plan/plan.h"

// Watches of a run: devices that are slower than others of their kind, losses that jump.
namespace hetermoe {

/// Devices of one kind do the same work: type and role.
std::vector<std::string> kinds_of(const Cluster& cluster, const Plan& plan);

/// Each device's slowness over the median of its peers, the other devices of its kind: [num_devices], 0 for a
/// device without peers and for one that did nothing.
/// slowness: time of a device's ops over what they should take, 0 = it did nothing. kinds: [num_devices].
std::vector<double> over_peers(const std::vector<double>& slowness, const std::vector<std::string>& kinds);

struct Straggler {
  DeviceId device = 0;
  double over_peers = 0;  ///< 1.25 = its ops take a quarter longer than those of its peers
};

/// Names devices that stay slower than their peers.
class StragglerWatch {
 public:
  static constexpr i64 kSteps = 8;  ///< so many steps in a row
  /// share: 0.1 = more than 10 % slower; 0 = the watch is off.
  StragglerWatch(std::vector<std::string> kinds, double share) : kinds_(std::move(kinds)), share_(share) {}

  /// Slowness of all devices in one step. Returns the stragglers that this step shows; no device is returned
  /// twice.
  std::vector<Straggler> add(const std::vector<double>& slowness);

 private:
  std::vector<std::string> kinds_;
  double share_;
  std::vector<std::vector<double>> ratios_;  // [device] of the current row of slow steps
  std::vector<bool> found_;
};

/// Most memory that this process ever had resident.
Bytes resident_watermark();

/// Tells of memory that grows from step to step: once, when the watermark is a quarter above what it was
/// after the first steps, validation and checkpoint included if they are that early.
class MemoryWatch {
 public:
  static constexpr i64 kSettled = 32;  ///< steps
  static constexpr double kGrowth = 1.25;

  /// Watermark after a step. Returns the watermark after the first steps when it is time to tell.
  std::optional<Bytes> add(Bytes watermark);

 private:
  i64 steps_ = 0;
  Bytes settled_ = 0;
  bool told_ = false;
};

struct Spike {
  double loss = 0, median = 0;
  double sigmas = 0;  ///< how far above the median
};

/// Finds losses far above the running median. The spread is that of the differences to it, robustly.
class SpikeWatch {
 public:
  static constexpr std::size_t kWindow = 64, kFirst = 16;  ///< losses it looks back to, at most and at least
  /// sigma: 0 = the watch is off.
  explicit SpikeWatch(double sigma) : sigma_(sigma) {}

  /// A spike is told once, at its first step. Losses that are not finite are not looked at.
  std::optional<Spike> add(double loss);

 private:
  double sigma_;
  std::deque<double> window_;
  bool in_spike_ = false;
};

}  // namespace hetermoe
