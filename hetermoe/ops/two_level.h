#pragma once
#include <span>
#include <vector>

#include "hetermoe/cluster/cluster.h"

namespace hetermoe {

/// How holders of a tensor on several nodes sum it, or tell each other its parts: inside the nodes first,
/// then between them, so that the port of a node carries each part once and not once for each device there.
/// Part i belongs to holder i. In every node one holder stands for a part: on the node of its owner the
/// owner.
///
/// Sum: each holder sums the parts for which it stands from the holders of its node, then the owner sums what
/// those who stand for its part have. Telling goes the same way back. Sums are in the order of devices within
/// a node, then of nodes, whatever process a device belongs to. Positions are those among the holders.
class TwoLevel {
 public:
  /// holders: devices, or hosts, ascending.
  TwoLevel(const Cluster& cluster, std::span<const PlaceId> holders);

  std::size_t num_nodes() const { return nodes_.size(); }
  /// Holders of the node of a holder, itself included, ascending.
  const std::vector<std::size_t>& mates(std::size_t holder) const { return nodes_[node_of_[holder]]; }
  /// The holder that stands for a part on the node of `holder`.
  std::size_t stands_for(std::size_t part, std::size_t holder) const;
  /// The parts for which a holder stands, ascending.
  std::vector<std::size_t> parts_of(std::size_t holder) const;
  /// Those with whom a holder exchanges between nodes, itself included, ascending.
  std::vector<std::size_t> partners(std::size_t holder) const;
  /// [holder] how many parts it stands for.
  std::vector<i64> num_parts() const;

 private:
  std::vector<std::vector<std::size_t>> nodes_;  // [node] holders, ascending
  std::vector<std::size_t> node_of_;             // [holder] index into nodes_
};

/// Two levels take less time than one exchange among all, by the rates of ports and local links. Never on one
/// node, nor where all holders are on nodes of their own.
bool pays_two_levels(const Cluster& cluster, std::span<const PlaceId> holders);

}  // namespace hetermoe
