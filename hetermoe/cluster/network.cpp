#include "hetermoe/cluster/network.h"

#include <algorithm>

namespace hetermoe {

void add_sent(PortBytes& from, PortBytes& to, Bytes bytes, bool same_node) {
  (same_node ? from.local_out : from.net_out) += bytes;
  (same_node ? to.local_in : to.net_in) += bytes;
}

std::vector<PortBytes> reversed(std::vector<PortBytes> bytes) {
  for (PortBytes& b : bytes) {
    std::swap(b.net_out, b.net_in);
    std::swap(b.local_out, b.local_in);
  }
  return bytes;
}

std::vector<i64> shared_nics(const Cluster& cluster, const std::vector<i64>& nics) {
  std::vector<i64> shared;
  for (const Node& node : cluster.nodes) shared.push_back(node.nics);
  for (std::size_t d = 0; d < nics.size(); ++d) shared[idx(cluster.devices[d].node)] -= nics[d];
  return shared;
}

Network::Network(const Cluster& cluster, std::vector<i64> nics)
    : cluster_(cluster),
      nics_(std::move(nics)),
      num_nodes_(static_cast<i32>(cluster.nodes.size())),
      first_local_(2 * num_nodes_),
      first_host_link_(first_local_ + 2 * cluster.num_devices()),
      first_shared_(first_host_link_ + 2 * cluster.num_devices()),
      first_nic_(first_shared_ + 3 * num_nodes_) {
  HM_CHECK(nics_.empty() || nics_.size() == cluster.devices.size(), "{} numbers of NICs", nics_.size());
  if (!nics_.empty()) shared_ = shared_nics(cluster, nics_);
}

i32 Network::number(const Port& port) const {
  const i32 in = port.in ? 1 : 0;
  switch (port.kind) {
    case PortKind::kNode:
      return 2 * port.owner + in;
    case PortKind::kLocal:
      return first_local_ + 2 * port.owner + in;
    case PortKind::kHostLink:
      return first_host_link_ + 2 * port.owner + in;
    case PortKind::kHostShared:
      return first_shared_ + 3 * port.owner + 1 - in;
    case PortKind::kHostMemory:
      return first_shared_ + 3 * port.owner + 2;
    case PortKind::kNic:
      return first_nic_ + 2 * port.owner + in;
  }
  HM_CHECK(false, "port kind {}", static_cast<i32>(port.kind));
  return -1;
}

Port Network::port(i32 number) const {
  HM_CHECK(number >= 0 && number < num_ports(), "port {} of {}", number, num_ports());
  const auto pair = [&](PortKind kind, i32 first) {
    return Port{kind, (number - first) / 2, (number - first) % 2 == 1};
  };
  if (number >= first_nic_) return pair(PortKind::kNic, first_nic_);
  if (number >= first_shared_) {
    const i32 node = (number - first_shared_) / 3, part = (number - first_shared_) % 3;
    if (part == 2) return {PortKind::kHostMemory, node, false};
    return {PortKind::kHostShared, node, part == 0};
  }
  if (number >= first_host_link_) return pair(PortKind::kHostLink, first_host_link_);
  if (number >= first_local_) return pair(PortKind::kLocal, first_local_);
  return pair(PortKind::kNode, 0);
}

double Network::shared_part(NodeId node) const {
  if (shared_.empty() || shared_[idx(node)] <= 0) return 1;
  return real(shared_[idx(node)]) / real(cluster_.nodes[idx(node)].nics);
}

BytesPerSecond Network::bandwidth(const Port& port) const {
  const bool of_device =
      port.kind == PortKind::kLocal || port.kind == PortKind::kHostLink || port.kind == PortKind::kNic;
  const Node& node = cluster_.nodes[idx(of_device ? cluster_.node_of(port.owner) : port.owner)];
  switch (port.kind) {
    case PortKind::kNode:
      return node.network * shared_part(port.owner);
    case PortKind::kNic:
      return node.network * real(nics_[idx(port.owner)]) / real(node.nics);
    case PortKind::kLocal:
      return node.local;
    case PortKind::kHostLink:
      return node.host->link_gb_s * 1e9;
    case PortKind::kHostShared:
      return node.host->shared_link_gb_s * 1e9;
    case PortKind::kHostMemory:
      return node.host->memory_gb_s * 1e9;
  }
  HM_CHECK(false, "port kind {}", static_cast<i32>(port.kind));
  return 0;
}

Seconds Network::latency(PlaceId place, const PortBytes& b) const {
  const Node& node = cluster_.nodes[idx(cluster_.node_of(place))];
  Seconds longest = 0;
  if (b.net_out > 0 || b.net_in > 0) longest = std::max(longest, node.latency);
  if (b.local_out > 0 || b.local_in > 0) longest = std::max(longest, node.local_latency);
  if (b.host_out > 0 || b.host_in > 0) longest = std::max(longest, node.host->link_latency_us * 1e-6);
  return longest;
}

}  // namespace hetermoe
