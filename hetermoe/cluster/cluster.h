#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/fields.h"
#include "hetermoe/base/types.h"

namespace hetermoe {

enum class Dtype { kFp64, kFp32, kBf16, kFp16 };
template <>
struct EnumNames<Dtype> {
  static const std::vector<std::string>& names();
};  // fp64 fp32 bf16 fp16
Bytes bytes_of(Dtype dtype);

/// Best attention kernel that a device type can run. flash: fused, the score matrix never leaves the chip.
/// mem_efficient: fused but bandwidth hungry (xFormers style). plain: scores go through memory.
enum class AttentionKernel { kFlash, kMemEfficient, kPlain };
template <>
struct EnumNames<AttentionKernel> {
  static const std::vector<std::string>& names();
};

/// Figures of one kind of device, from its data sheet: configs/devices/*.yaml, where each figure has its
/// source beside it.
struct DeviceType {
  std::string name;                         ///< "V100", "A40", ...
  std::string description;                  ///< full product name
  std::string source;                       ///< where the figures come from
  i32 year = 0;                             ///< of release
  double compute_capability = 0;            ///< CUDA; 0 = not a CUDA device
  double memory_gib = 0;                    ///< device memory
  double memory_gb_s = 0;                   ///< memory bandwidth, 1e9 bytes per second
  double fp64_tflops = 0, fp32_tflops = 0;  ///< dense peak, 1e12 FLOP/s
  double bf16_tflops = 0, fp16_tflops = 0;  ///< dense matrix units with fp32 accumulation; 0 = not supported
  i32 num_sms = 0;                          ///< streaming multiprocessors (CPU: cores)
  double l2_mib = 0;                        ///< last-level cache
  AttentionKernel attention_kernel = AttentionKernel::kPlain;
  double gemm_efficiency = 0;  ///< share of the peak that large GEMMs reach; 0 = the cost model's default
  double attention_efficiency = 0;  ///< share of the peak that the fused attention kernel reaches, likewise
  std::string efficiency_source;    ///< what both agree with that was measured or published; empty = nothing
  std::string profile;              ///< optional file of measured times that override the roofline
  double tdp_w = 0;                 ///< power limit, W; 0 = not known
  double price_per_hour = 0;        ///< of one device, in any unit of money; 0 = not known

  FlopsPerSecond peak(Dtype dtype) const;  ///< see rated(); never 0
  /// The dtype whose rate is taken: fp16 stands in where bf16 is missing and the reverse, fp32 for both.
  Dtype rated(Dtype dtype) const;
  Bytes memory_bytes() const { return memory_gib * 1024 * 1024 * 1024; }
  template <class V>
  void fields(V& v) {
    v("name", name, "short name, as used in clusters");
    v("description", description, "full product name", text_of_lines());
    v("source", source, "where the figures come from", text_of_lines());
    v("year", year, "year of release");
    v("compute_capability", compute_capability, "CUDA compute capability, 0 = not a CUDA device",
      at_least(0));
    v("memory_gib", memory_gib, "device memory, GiB", above(0));
    v("memory_gb_s", memory_gb_s, "memory bandwidth, GB/s", above(0));
    v("fp64_tflops", fp64_tflops, "dense fp64 peak, TFLOP/s", at_least(0));
    v("fp32_tflops", fp32_tflops, "dense fp32 peak, TFLOP/s", above(0));
    v("bf16_tflops", bf16_tflops, "dense bf16 peak, TFLOP/s, 0 = not supported", at_least(0));
    v("fp16_tflops", fp16_tflops, "dense fp16 peak with fp32 accumulation, TFLOP/s, 0 = not supported",
      at_least(0));
    v("num_sms", num_sms, "streaming multiprocessors (CPU: cores)", at_least(1));
    v("l2_mib", l2_mib, "last-level cache, MiB", at_least(0));
    v("attention_kernel", attention_kernel, "best attention kernel that runs here");
    v("gemm_efficiency", gemm_efficiency, "share of the peak that large GEMMs reach, 0 = default",
      between(0, 1));
    v("attention_efficiency", attention_efficiency,
      "share of the peak that the fused attention kernel reaches forward, causal half counted, 0 = default",
      between(0, 1));
    v("efficiency_source", efficiency_source,
      "what the efficiencies agree with that was measured or published", text_of_lines());
    v("profile", profile, "file of measured times that override the roofline");
    v("tdp_w", tdp_w, "power limit of the card, W; 0 = not known", at_least(0));
    v("price_per_hour", price_per_hour,
      "what one device costs for an hour, in any unit of money; 0 = not known", at_least(0));
  }
};

struct Device {
  i32 type = 0;  ///< index into Cluster::types
  NodeId node = 0;
  double speed = 1;      ///< factor on its type's speed; a slow card has less than 1
  DeviceId number = -1;  ///< in the cluster that this one is a part of; -1: it is whole
};

/// Main memory and processor of a machine, which may keep and update what devices have no room for.
/// configs/clusters and docs/offload.md; the defaults are those of a server with PCIe 4.0 x16.
struct NodeHost {
  double memory_gib = 0;         ///< main memory that training may use
  double memory_gb_s = 100;      ///< its bandwidth, 1e9 bytes per second
  double fp32_tflops = 1;        ///< of all cores, for the optimizer
  double link_gb_s = 32;         ///< between it and one device, per direction
  double shared_link_gb_s = 64;  ///< of all its devices together, per direction
  double link_latency_us = 10;   ///< of one copy

  Bytes memory_bytes() const { return memory_gib * 1024 * 1024 * 1024; }
  bool operator==(const NodeHost&) const = default;
  template <class V>
  void fields(V& v) {
    v("memory_gib", memory_gib, "main memory that training may use, GiB", above(0));
    v("memory_gb_s", memory_gb_s, "bandwidth of main memory, GB/s", above(0));
    v("fp32_tflops", fp32_tflops, "fp32 peak of all cores, TFLOP/s", above(0));
    v("link_gb_s", link_gb_s, "link between the host and one device, GB/s per direction", above(0));
    v("shared_link_gb_s", shared_link_gb_s, "links of all devices together, GB/s per direction", above(0));
    v("link_latency_us", link_latency_us, "latency of a copy between host and device, us", at_least(0));
  }
};

/// A machine: its devices share its network ports (uplink and downlink, each with the full bandwidth), but
/// for those that a plan gives to single devices.
struct Node {
  std::string name;
  BytesPerSecond network = 0;  ///< of all its NICs together, per direction, bytes/s
  Seconds latency = 0;         ///< of a message to another node
  BytesPerSecond local = 0;    ///< between devices of the node, per device and direction
  Seconds local_latency = 0;
  /// Time that each peer adds to a transfer: on another node (calibrated on O1), on the same (assumed). See
  /// docs/cost-model.md.
  Seconds peer = 17e-6, local_peer = 3e-6;
  std::optional<NodeHost> host = {};  ///< none: its main memory is not used
  i64 nics = 1;                       ///< equal network ports, which a plan may give away
};

struct Cluster {
  std::string name;
  std::vector<DeviceType> types;
  std::vector<Device> devices;  ///< in the order of the file: node by node
  std::vector<Node> nodes;

  i32 num_devices() const { return static_cast<i32>(devices.size()); }
  NodeId node_of(PlaceId place) const {
    return place < num_devices() ? devices[static_cast<std::size_t>(place)].node : place - num_devices();
  }
  /// Memory of a device, or of a host; 0 = the node has no host.
  Bytes memory_bytes(PlaceId place) const;
  /// The host of a place that is a host; its node must have one.
  const NodeHost& host_of(PlaceId place) const {
    return *nodes[static_cast<std::size_t>(node_of(place))].host;
  }
  const DeviceType& type_of(DeviceId device) const {
    return types[static_cast<std::size_t>(devices[static_cast<std::size_t>(device)].type)];
  }
  std::vector<DeviceId> devices_of_type(i32 type) const;
  /// "4 A40, 4 V100, 4 A40": the types of the devices in their order.
  std::string types_text() const;
  std::string device_name(PlaceId place) const;  ///< "V100#3": type and DeviceId; "host of node0"
};

/// dtypes: [device] of what each computes. "V100 has no bf16 products: its times are those of fp16"; empty =
/// every device has the products that it is asked for.
std::string borrowed_rates(const Cluster& cluster, const std::vector<Dtype>& dtypes);

/// Nodes and types stay, and devices keep their names.
Cluster without(const Cluster& cluster, const std::vector<DeviceId>& idle);

/// A name of configs/clusters (o1, demo, ...), a YAML file or a hostfile (hostfile.h). Throws ConfigError.
Cluster load_cluster(const std::string& name_or_path);
Cluster parse_cluster(const Json& yaml, const std::string& where);
Json to_json(const Cluster& cluster);  ///< round-trips through parse_cluster
std::vector<std::string> known_clusters();

/// The device catalogue (configs/devices). Names are equal whatever their case. Throws ConfigError with the
/// nearest name.
const DeviceType& catalogue_device(const std::string& name, const std::string& where);
std::vector<std::string> known_device_types();

}  // namespace hetermoe
