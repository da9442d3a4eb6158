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
  return a.devices == b.devices && a.link == b.link && a.type == b.type && a.places == b.places &&
         a.rate == b.rate;
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
    std::map<std::string, FlopsPerSecond> fastest;  // of a type
    FlopsPerSecond sum = 0;
    i64 devices = 0;
    for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
      if (idx(cluster.node_of(d)) != n) continue;
      const FlopsPerSecond peak = peak_of_16_bits(cluster.type_of(d)) * cluster.devices[idx(d)].speed;
      FlopsPerSecond& of_type = fastest[cluster.type_of(d).name];
      ++counts[cluster.type_of(d).name], ++devices;
      sum += peak, of_type = std::max(of_type, peak);
    }
    std::string names;
    for (const auto& [type, count] : counts)
      names += fmt::format("{}{} x{}", names.empty() ? "" : ", ", type, count);
    const Node& node = cluster.nodes[n];
    for (const auto& [type, peak] : fastest)
      add({node.name, names, "inside", type, devices, node.local, peak, 0});
    add({node.name, names, "network", "", static_cast<i64>(cluster.nodes.size()), node.network, sum, 0});
  }
  return out;
}

Json to_json(const LinkHiding& link) {
  return {{"node", link.node},        {"devices", link.devices}, {"link", link.link},
          {"type", link.type},        {"places", link.places},   {"bytes_s", link.rate},
          {"peak_flop_s", link.peak}, {"width", link.width}};
}

Json hiding_json(const Cluster& cluster, const std::optional<ModelConfig>& model) {
  Json out = Json::array();
  for (const LinkHiding& link : hiding_links(cluster)) {
    out.push_back(to_json(link));
    if (model) out.back()["compute_over_transfer"] = link.of(*model);
  }
  return out;
}

}  // namespace hetermoe
