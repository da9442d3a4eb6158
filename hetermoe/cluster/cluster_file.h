#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/fields.h"
#include "hetermoe/cluster/cluster.h"

// The cluster file as a person writes it. Names of types are looked up and counts are unfolded later.
namespace hetermoe {

/// A value whose form is settled later (it may be a text or a mapping), with its place in the file for error
/// texts.
struct RawEntry {
  Json json;
  std::string where;
};
template <>
inline void read_fields<RawEntry>(const Json& json, RawEntry& out, const std::string& where) {
  out = {json, where};
}
template <>
inline Json write_fields<RawEntry>(const RawEntry& value) {
  return value.json;
}

/// Factors beyond these are slips of the hand, and their products leave the range of numbers.
inline constexpr double kMinSpeed = 1e-6, kMaxSpeed = 1e6;

/// The long form of an entry of a node's `devices`; "A40" and "A40 x2" are its short forms.
struct DeviceEntry {
  std::string type;
  i32 count = 1;
  double speed = 1;
  template <class V>
  void fields(V& v) {
    v("type", type, "device type: a name of the catalogue or of device_types");
    v("count", count, "equal devices", between(1, 65536));
    v("speed", speed, "factor on the type's speed; a slow card has less than 1",
      between(kMinSpeed, kMaxSpeed));
  }
};

/// No real link comes near these bounds. They keep bytes per second and seconds finite, and rates above 0.
inline constexpr double kMinRate = 1e-9, kMaxRate = 1e9;  ///< Gbit/s and GB/s
inline constexpr double kMaxLatencyUs = 1e9;

/// Port and local links; absent values come from the cluster, then from the defaults below.
struct LinkEntry {
  std::optional<double> network_gbit_s, latency_us, local_gb_s, local_latency_us, peer_us, local_peer_us;
  std::optional<i64> nics;
  template <class V>
  void fields(V& v) {
    v("network_gbit_s", network_gbit_s, "network port of a node, Gbit/s per direction, shared by its devices",
      between(kMinRate, kMaxRate));
    v("nics", nics,
      "equal network ports (NICs) of a node, which have network_gbit_s together; `plan.nics` gives them away",
      between(1, 65536));
    v("latency_us", latency_us, "latency of a message to another node, us", between(0, kMaxLatencyUs));
    v("local_gb_s", local_gb_s, "link between devices of a node, GB/s per device and direction",
      between(kMinRate, kMaxRate));
    v("local_latency_us", local_latency_us, "latency of a message inside a node, us",
      between(0, kMaxLatencyUs));
    v("peer_us", peer_us, "what a transfer takes longer for each peer on another node, us",
      between(0, kMaxLatencyUs));
    v("local_peer_us", local_peer_us, "what a transfer takes longer for each peer on the same node, us",
      between(0, kMaxLatencyUs));
  }
};

struct NodeEntry {
  std::string name;
  i32 count = 1;
  std::vector<RawEntry> devices;
  LinkEntry links;
  std::optional<NodeHost> host;
  template <class V>
  void fields(V& v) {
    v("name", name, "name of the node; with a count above 1 its number is appended");
    v("count", count, "equal nodes", between(1, 65536));
    v("devices", devices, "list of \"A40\", \"A40 x2\" or {type, count, speed}");
    v("host", host, "main memory that devices may use, and the links to it: {memory_gib, link_gb_s, ...}");
    links.fields(v);
  }
};

struct ClusterFile {
  std::string name;
  LinkEntry links;
  std::optional<NodeHost> host;
  std::vector<RawEntry> device_types;
  std::vector<NodeEntry> nodes;
  template <class V>
  void fields(V& v) {
    v("name", name, "name of the cluster");
    links.fields(v);
    v("host", host, "host of the nodes that do not describe their own");
    v("device_types", device_types,
      "types of this file's own, or catalogue types with other figures: {name, like, figures...}");
    v("nodes", nodes, "nodes in order; devices are numbered node by node");
  }
};

/// 100 Gbit/s network with RDMA, PCIe 4 x16 inside a node.
inline constexpr double kDefaultNetworkGbitS = 100, kDefaultLatencyUs = 10;
inline constexpr double kDefaultLocalGbS = 20, kDefaultLocalLatencyUs = 5;

}  // namespace hetermoe
