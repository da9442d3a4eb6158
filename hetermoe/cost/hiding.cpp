#include "hetermoe/cost/hiding.h"

#include <algorithm>
#include <map>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// In bf16, or in fp16 where that is faster, as old devices have it.
FlopsPerSecond peak_of_16_bits(const DeviceType& type) {
  return std::max(type.peak(Dtype::kBf16), type.peak(Dtype::kFp16));
}

bool alike(const LinkHiding& a, const LinkHiding& b) {
  return a.devices == b.devices && a.link == b.link && a.places == b.places && a.rate == b.rate;
}

}  // namespace

double compute_over_transfer(double width, BytesPerSecond link, FlopsPerSecond peak, i64 places) {
  return 1.5 * width * link / peak * real(places) / real(places - 1);
}

std::vector<LinkHiding> hiding_links(const Cluster& cluster) {
  std::vector<LinkHiding> out;
  const auto add = [&](LinkHiding link) {
    if (link.places < 2 || link.rate <= 0) return;
    link.width = 1 / compute_over_transfer(1, link.rate, link.peak, link.places);
    if (std::none_of(out.begin(), out.end(), [&](const LinkHiding& other) { return alike(other, link); }))
      out.push_back(link);
  };
  for (std::size_t n = 0; n < cluster.nodes.size(); ++n) {
    std::map<std::string, i64> counts;
    FlopsPerSecond sum = 0, fastest = 0;
    i64 devices = 0;
    for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
      if (idx(cluster.node_of(d)) != n) continue;
      const FlopsPerSecond peak = peak_of_16_bits(cluster.type_of(d)) * cluster.devices[idx(d)].speed;
      ++counts[cluster.type_of(d).name], ++devices;
      sum += peak, fastest = std::max(fastest, peak);
    }
    std::string names;
    for (const auto& [type, count] : counts)
      names += fmt::format("{}{} x{}", names.empty() ? "" : ", ", type, count);
    const Node& node = cluster.nodes[n];
    add({node.name, names, "inside", devices, node.local, fastest, 0});
    add({node.name, names, "network", static_cast<i64>(cluster.nodes.size()), node.network, sum, 0});
  }
  return out;
}

}  // namespace hetermoe
