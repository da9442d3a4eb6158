#pragma once
#include <vector>

#include "hetermoe/base/index.h"
#include "hetermoe/cluster/cluster.h"

// The flat network of a cluster: which ports bytes go through, and how fast each is. Cost model, simulator
// and planner ask it, and know no numbers of ports.
namespace hetermoe {

/// Bytes of one transfer that one participant sends and receives, by how far the other end is. Rows that stay
/// on the participant do not count.
struct PortBytes {
  Bytes net_out = 0, net_in = 0;      ///< to and from other nodes
  Bytes local_out = 0, local_in = 0;  ///< to and from devices of the same node
  Bytes host_out = 0, host_in = 0;    ///< of a device to and from its host; of the host the reverse
};

/// Adds what `from` sends to `to`.
void add_sent(PortBytes& from, PortBytes& to, Bytes bytes, bool same_node);

/// The same exchange from those who receive to those who send.
std::vector<PortBytes> reversed(std::vector<PortBytes> bytes);

/// [node] NICs that no device has for itself, where `nics` are those of each device.
std::vector<i64> shared_nics(const Cluster& cluster, const std::vector<i64>& nics);

/// kNode: the uplink and downlink of the NICs of a node that no device has for itself, which its devices
/// share. kNic: of those that a device has. kLocal: of a device to its neighbours on the node. kHostLink:
/// between a device and its host. kHostShared: all such links of a node together. kHostMemory: main memory of
/// a node, one port for both directions.
enum class PortKind { kNode, kLocal, kHostLink, kHostShared, kHostMemory, kNic };

struct Port {
  PortKind kind;
  i32 owner;  ///< node; of kLocal, kHostLink and kNic a device
  bool in;    ///< bytes come in: to a node or device, of kHostShared to the host
  bool operator==(const Port&) const = default;
};

/// Immutable; any thread may ask it.
class Network {
 public:
  /// Keeps a reference. nics: [device] that it has for itself (PlanChoices::nics); empty = none.
  explicit Network(const Cluster& cluster, std::vector<i64> nics = {});

  i32 num_ports() const { return first_nic_ + 2 * cluster_.num_devices(); }
  /// 0 to num_ports() - 1: nodes, then local ports, links of hosts, hosts, NICs of devices.
  i32 number(const Port& port) const;
  Port port(i32 number) const;
  /// From the data sheet, in one direction. A port of a host needs a node that has one.
  BytesPerSecond bandwidth(const Port& port) const;
  /// The port out to other nodes; that in has the next number.
  i32 net_port(PlaceId place) const {
    const bool own = place < static_cast<PlaceId>(nics_.size()) && nics_[static_cast<std::size_t>(place)] > 0;
    return own ? first_nic_ + 2 * place : 2 * cluster_.node_of(place);
  }
  bool same_node(PlaceId a, PlaceId b) const { return cluster_.node_of(a) == cluster_.node_of(b); }
  /// Longest start of a message among those that the bytes of `place` stand for.
  Seconds latency(PlaceId place, const PortBytes& bytes) const;

  /// Calls use(number of the port, bytes) for every port that the bytes of `place` go through, bytes > 0.
  template <class Use>
  void for_each_port(PlaceId place, const PortBytes& b, Use use) const {
    const auto both = [&](i32 out_port, Bytes out, Bytes in) {
      if (out > 0) use(out_port, out);
      if (in > 0) use(out_port + 1, in);
    };
    const NodeId node = cluster_.node_of(place);
    both(net_port(place), b.net_out, b.net_in);
    if (place < cluster_.num_devices()) {
      both(first_local_ + 2 * place, b.local_out, b.local_in);
      both(first_host_link_ + 2 * place, b.host_out, b.host_in);
      return;
    }
    both(first_shared_ + 3 * node, b.host_in, b.host_out);
    if (b.host_in + b.host_out > 0) use(first_shared_ + 3 * node + 2, b.host_in + b.host_out);
  }

 private:
  /// The part of a node's bandwidth that is left to devices without NICs of their own. If nothing is left it
  /// is all of it: no step of a valid plan asks then, but moves between plans do.
  double shared_part(NodeId node) const;

  const Cluster& cluster_;
  std::vector<i64> nics_;    // [device] empty = none
  std::vector<i64> shared_;  // [node] NICs that no device has; empty = all
  i32 num_nodes_, first_local_, first_host_link_, first_shared_, first_nic_;
};

}  // namespace hetermoe
