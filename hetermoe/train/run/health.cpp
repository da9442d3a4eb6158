#include "hetermoe/train/run/health.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>

namespace hetermoe {

std::vector<std::string> kinds_of(const Cluster& cluster, const Plan& plan) {
  std::vector<std::string> kinds = roles_of(plan);
  for (std::size_t d = 0; d < kinds.size(); ++d)
    kinds[d] = fmt::format("{} {}", cluster.type_of(static_cast<DeviceId>(d)).name, kinds[d]);
  return kinds;
}

std::vector<double> over_peers(const std::vector<double>& slowness, const std::vector<std::string>& kinds) {
  std::vector<double> out(slowness.size(), 0);
  for (std::size_t d = 0; d < slowness.size(); ++d) {
    std::vector<double> peers;
    for (std::size_t p = 0; p < slowness.size(); ++p) {
      if (p != d && kinds[p] == kinds[d] && slowness[p] > 0) peers.push_back(slowness[p]);
    }
    if (!peers.empty()) out[d] = slowness[d] / median(peers);
  }
  return out;
}

std::vector<Straggler> StragglerWatch::add(const std::vector<double>& slowness) {
  std::vector<Straggler> now;
  if (share_ == 0) return now;
  ratios_.resize(slowness.size());
  found_.resize(slowness.size(), false);
  const std::vector<double> ratios = over_peers(slowness, kinds_);
  for (std::size_t d = 0; d < ratios.size(); ++d) {
    if (found_[d]) continue;
    if (ratios[d] <= 1 + share_) {
      ratios_[d].clear();
      continue;
    }
    ratios_[d].push_back(ratios[d]);
    if (static_cast<i64>(ratios_[d].size()) < kSteps) continue;
    found_[d] = true;
    now.push_back({static_cast<DeviceId>(d), median(ratios_[d])});
  }
  return now;
}

std::optional<Spike> SpikeWatch::add(double loss) {
  if (sigma_ == 0 || !std::isfinite(loss)) return std::nullopt;
  std::optional<Spike> spike;
  if (window_.size() >= kFirst) {
    const double middle = median({window_.begin(), window_.end()});
    std::vector<double> distances;
    for (const double value : window_) distances.push_back(std::abs(value - middle));
    // 1.4826 times the median distance is the standard deviation of normally distributed values. Losses that
    // are all alike would make a spike of rounding.
    const double spread = std::max(1.4826 * median(distances), 1e-3 * std::abs(middle));
    const double sigmas = spread > 0 ? (loss - middle) / spread : 0;
    if (sigmas > sigma_ && !in_spike_) spike = Spike{loss, middle, sigmas};
    in_spike_ = sigmas > sigma_;
  }
  window_.push_back(loss);
  if (window_.size() > kWindow) window_.pop_front();
  return spike;
}

Bytes resident_watermark() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<Bytes>(usage.ru_maxrss) * 1024;  // Linux counts KiB
}

std::optional<Bytes> MemoryWatch::add(Bytes watermark) {
  if (++steps_ <= kSettled) {
    settled_ = watermark;
    return {};
  }
  if (told_ || watermark <= kGrowth * settled_) return {};
  told_ = true;
  return settled_;
}

}  // namespace hetermoe
