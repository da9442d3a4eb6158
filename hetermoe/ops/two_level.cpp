#include "hetermoe/ops/two_level.h"

#include <algorithm>
#include <map>

#include "hetermoe/base/index.h"

namespace hetermoe {

TwoLevel::TwoLevel(const Cluster& cluster, std::span<const PlaceId> holders) {
  std::map<NodeId, std::size_t> index;
  for (std::size_t i = 0; i < holders.size(); ++i) {
    const auto [at, is_new] = index.try_emplace(cluster.node_of(holders[i]), nodes_.size());
    if (is_new) nodes_.emplace_back();
    nodes_[at->second].push_back(i);
    node_of_.push_back(at->second);
  }
}

std::size_t TwoLevel::stands_for(std::size_t part, std::size_t holder) const {
  if (node_of_[part] == node_of_[holder]) return part;
  const std::vector<std::size_t>& there = mates(holder);
  return there[part % there.size()];
}

std::vector<std::size_t> TwoLevel::parts_of(std::size_t holder) const {
  std::vector<std::size_t> parts;
  for (std::size_t part = 0; part < node_of_.size(); ++part) {
    if (stands_for(part, holder) == holder) parts.push_back(part);
  }
  return parts;
}

std::vector<std::size_t> TwoLevel::partners(std::size_t holder) const {
  std::vector<std::size_t> all;
  for (std::size_t other = 0; other < node_of_.size(); ++other) {
    if (stands_for(other, holder) == holder && (other == holder || node_of_[other] != node_of_[holder]))
      all.push_back(other);
    else if (node_of_[other] != node_of_[holder] && stands_for(holder, other) == other)
      all.push_back(other);
  }
  return all;
}

/// Of every m parts in a row one, with m holders on the node; but those of the node's own holders.
std::vector<i64> TwoLevel::num_parts() const {
  const std::size_t all = node_of_.size();
  std::vector<i64> counts(all, 1);
  for (const std::vector<std::size_t>& there : nodes_) {
    const std::size_t m = there.size();
    for (std::size_t rank = 0; rank < m; ++rank) {
      counts[there[rank]] += static_cast<i64>((all - rank + m - 1) / m);
      --counts[there[there[rank] % m]];
    }
  }
  return counts;
}

bool pays_two_levels(const Cluster& cluster, std::span<const PlaceId> holders) {
  std::map<NodeId, double> on_node;
  for (const PlaceId holder : holders) on_node[cluster.node_of(holder)] += 1;
  if (on_node.size() < 2 || on_node.size() == holders.size()) return false;
  const double all = real(holders.size()), others = real(on_node.size() - 1);
  Seconds flat = 0, inside = 0, between = 0;  // for a tensor of one byte
  for (const auto& [node, count] : on_node) {
    const Node& at = cluster.nodes[idx(node)];
    const Seconds once = (all - count) / all / at.network;
    flat = std::max(flat, count * once);
    // A sum leaves the node for each part of others, and one of every other node comes for each of its own.
    between = std::max({between, once, others * count / all / at.network});
    if (count == 1) continue;
    flat = std::max(flat, (count - 1) / all / at.local);
    inside = std::max(inside, (count - 1) / count / at.local);
  }
  return inside + between < flat;
}

}  // namespace hetermoe
