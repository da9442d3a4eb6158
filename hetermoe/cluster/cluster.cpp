#include "hetermoe/cluster/cluster.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/base/paths.h"
#include "hetermoe/cluster/cluster_file.h"
#include "hetermoe/cluster/device_types.h"
#include "hetermoe/cluster/hostfile.h"

namespace hetermoe {
namespace {

constexpr i64 kMaxDevices = 65536;
constexpr double kBytesPerGbit = 1e9 / 8, kBytesPerGb = 1e9, kUsPerSecond = 1e6;

std::string child(const std::string& where, const std::string& key) {
  return where + (where.ends_with(' ') ? "" : ".") + key;
}

// ---- reading ----

/// "A40" or "A40 x2".
DeviceEntry device_from_text(const std::string& text, const std::string& where) {
  DeviceEntry entry;
  const std::size_t space = text.rfind(' ');
  if (space == std::string::npos) {
    entry.type = text;
    return entry;
  }
  entry.type = text.substr(0, text.find_last_not_of(' ', space) + 1);
  const std::string factor = text.substr(space + 1);
  const char* end = factor.data() + factor.size();
  i64 count = 0;
  bool valid = factor.starts_with('x');
  if (valid) {
    const auto [rest, code] = std::from_chars(factor.data() + 1, end, count);
    valid = code == std::errc() && rest == end;
  }
  if (!valid) {
    fail<ConfigError>(
        where, "got \"{}\", expected a device type such as \"A40\", or \"A40 x2\" for two of them", text);
  }
  read_value(Json(count), entry.count, where, between(1, kMaxDevices));
  return entry;
}

DeviceEntry read_device_entry(const RawEntry& raw) {
  if (raw.json.is_string()) return device_from_text(raw.json.get<std::string>(), raw.where);
  if (!raw.json.is_object()) {
    detail::wrong_type(raw.where, raw.json, "a device type such as A40, \"A40 x2\", or {type, count, speed}");
  }
  DeviceEntry entry;
  read_fields(raw.json, entry, raw.where);
  if (entry.type.empty()) fail<ConfigError>(raw.where, "no type: expected {{type: A40, count: 2}}");
  return entry;
}

std::string optional_text(const Json& json, const char* key, const std::string& where) {
  std::string text;
  if (const auto found = json.find(key); found != json.end()) read_value(*found, text, child(where, key));
  return text;
}

/// A file that gives other rates has to say who measured them.
void drop_source(const Json& figures, DeviceType& type) {
  if (figures.contains("efficiency_source")) return;
  for (const char* rate : {"memory_gb_s", "fp32_tflops", "bf16_tflops", "fp16_tflops", "attention_kernel",
                           "gemm_efficiency", "attention_efficiency"})
    if (figures.contains(rate)) type.efficiency_source.clear();
}

/// The types that a file defines itself: from scratch, like another type, or a catalogue type with other
/// figures.
class FileTypes {
 public:
  explicit FileTypes(const std::vector<RawEntry>& entries) {
    for (const RawEntry& entry : entries) add(entry);
  }

  const std::vector<DeviceType>& all() const { return types_; }

  /// Types of the file hide those of the catalogue.
  const DeviceType& get(const std::string& name, const std::string& where) const {
    if (const DeviceType* type = find_type(types_, name)) return *type;
    if (const DeviceType* type = find_catalogue_device(name)) return *type;
    std::vector<std::string> known = known_device_types();
    for (const DeviceType& type : types_) known.push_back(type.name);
    refuse_device_type(name, where, known, "A cluster file");
  }

 private:
  void add(const RawEntry& entry) {
    if (!entry.json.is_object()) detail::wrong_type(entry.where, entry.json, "a mapping");
    const std::string name = optional_text(entry.json, "name", entry.where);
    const std::string like = optional_text(entry.json, "like", entry.where);
    if (name.empty() || name.find(' ') != std::string::npos) {
      fail<ConfigError>(child(entry.where, "name"), "got \"{}\", expected a name without spaces", name);
    }
    if (find_type(types_, name)) {
      fail<ConfigError>(child(entry.where, "name"), "device type \"{}\" is given twice", name);
    }
    DeviceType type;
    if (!like.empty()) {
      type = get(like, child(entry.where, "like"));
    } else if (const DeviceType* known = find_catalogue_device(name)) {
      type = *known;
    }
    Json figures = entry.json;
    figures.erase("like");
    check_complete(figures, type, name, entry.where);
    read_fields(figures, type, entry.where);
    drop_source(figures, type);
    types_.push_back(std::move(type));
  }

  std::vector<DeviceType> types_;
};

/// Turns the entries of a file into devices and nodes.
class ClusterBuilder {
 public:
  ClusterBuilder(const ClusterFile& file, const std::string& where)
      : file_(file), where_(where), types_(file.device_types) {
    cluster_.name = file.name;
    cluster_.types = types_.all();
  }

  Cluster build() {
    for (std::size_t i = 0; i < file_.nodes.size(); ++i) {
      add_nodes(file_.nodes[i], child(where_, fmt::format("nodes[{}]", i)));
    }
    if (cluster_.devices.empty()) {
      fail<ConfigError>(child(where_, "nodes"),
                        "the cluster has no devices at all: expected a list of nodes, such as "
                        "nodes: [{{name: a, devices: [A40 x2]}}]");
    }
    drop_unused_types();
    return std::move(cluster_);
  }

 private:
  void add_nodes(const NodeEntry& entry, const std::string& where) {
    if (entry.devices.empty())
      fail<ConfigError>(child(where, "devices"), "the node has no devices: expected [A40 x2]");
    const std::vector<Device> devices = devices_of(entry);
    if (num_devices() + entry.count * static_cast<i64>(devices.size()) > kMaxDevices) {
      fail<ConfigError>(where, "more than {} devices in one cluster", kMaxDevices);
    }
    const std::string name = entry.name.empty() ? "node" : entry.name;
    for (i32 i = 0; i < entry.count; ++i) {
      const bool numbered = entry.count > 1 || entry.name.empty();
      const i64 number = entry.name.empty() ? static_cast<i64>(cluster_.nodes.size()) : i;
      add_node(numbered ? fmt::format("{}{}", name, number) : name, entry, devices, where);
    }
  }

  void add_node(const std::string& name, const NodeEntry& entry, std::vector<Device> devices,
                const std::string& where) {
    if (!node_names_.insert(name).second) {
      fail<ConfigError>(child(where, "name"),
                        "a node named \"{}\" exists already; with a count above 1 the number is "
                        "appended to the name",
                        name);
    }
    const LinkEntry &links = entry.links, &common = file_.links;
    const auto value = [](const std::optional<double>& own, const std::optional<double>& shared,
                          double fallback) { return own ? *own : shared.value_or(fallback); };
    Node node;
    node.name = name;
    node.network = value(links.network_gbit_s, common.network_gbit_s, kDefaultNetworkGbitS) * kBytesPerGbit;
    node.latency = value(links.latency_us, common.latency_us, kDefaultLatencyUs) / kUsPerSecond;
    node.local = value(links.local_gb_s, common.local_gb_s, kDefaultLocalGbS) * kBytesPerGb;
    node.local_latency =
        value(links.local_latency_us, common.local_latency_us, kDefaultLocalLatencyUs) / kUsPerSecond;
    if (links.peer_us || common.peer_us) node.peer = value(links.peer_us, common.peer_us, 0) / kUsPerSecond;
    if (links.local_peer_us || common.local_peer_us)
      node.local_peer = value(links.local_peer_us, common.local_peer_us, 0) / kUsPerSecond;
    node.host = entry.host ? entry.host : file_.host;
    node.nics = links.nics ? *links.nics : common.nics.value_or(node.nics);
    for (Device& device : devices) device.node = static_cast<NodeId>(cluster_.nodes.size());
    cluster_.devices.insert(cluster_.devices.end(), devices.begin(), devices.end());
    cluster_.nodes.push_back(std::move(node));
  }

  std::vector<Device> devices_of(const NodeEntry& entry) {
    std::vector<Device> devices;
    for (const RawEntry& raw : entry.devices) {
      const DeviceEntry device = read_device_entry(raw);
      const i32 type = index_of(types_.get(device.type, raw.where));
      if (device.count + static_cast<i64>(devices.size()) > kMaxDevices) {
        fail<ConfigError>(raw.where, "more than {} devices in one node", kMaxDevices);
      }
      devices.insert(devices.end(), static_cast<std::size_t>(device.count), Device{type, 0, device.speed});
    }
    return devices;
  }

  i32 index_of(const DeviceType& type) {
    if (const DeviceType* known = find_type(cluster_.types, type.name)) {
      return static_cast<i32>(known - cluster_.types.data());
    }
    cluster_.types.push_back(type);
    return static_cast<i32>(cluster_.types.size()) - 1;
  }

  void drop_unused_types() {
    std::vector<i32> new_index(cluster_.types.size(), -1);
    for (const Device& device : cluster_.devices) new_index[static_cast<std::size_t>(device.type)] = 0;
    std::vector<DeviceType> used;
    for (std::size_t i = 0; i < new_index.size(); ++i) {
      if (new_index[i] < 0) continue;
      new_index[i] = static_cast<i32>(used.size());
      used.push_back(cluster_.types[i]);
    }
    cluster_.types = std::move(used);
    for (Device& device : cluster_.devices) device.type = new_index[static_cast<std::size_t>(device.type)];
  }

  i64 num_devices() const { return static_cast<i64>(cluster_.devices.size()); }

  const ClusterFile& file_;
  const std::string& where_;
  FileTypes types_;
  Cluster cluster_;
  std::set<std::string> node_names_;
};

// ---- writing ----

/// The shortest number that reading turns back into `value`: to_json(parse(to_json(c))) must not drift.
template <class Read>
double number_that_reads_as(double value, double guess, Read read) {
  // strtod, because std::stod throws at numbers below the smallest normal one.
  const double rounded = std::strtod(fmt::format("{:.12g}", guess).c_str(), nullptr);
  for (const double candidate : {rounded, guess, std::nextafter(guess, 0.0)}) {
    if (read(candidate) == value) return candidate;
  }
  return std::nextafter(guess, guess * 2);
}

double scaled_up(double value, double unit) {  // reading multiplies by `unit`
  return number_that_reads_as(value, value / unit, [unit](double x) { return x * unit; });
}

double scaled_down(double value, double unit) {  // reading divides by `unit`
  return number_that_reads_as(value, value * unit, [unit](double x) { return x / unit; });
}

Json device_run(const std::string& type, i32 count, double speed) {
  if (speed != 1) return write_fields(DeviceEntry{type, count, speed});
  return count == 1 ? type : fmt::format("{} x{}", type, count);
}

/// The entries that describe the devices of each node. Equal devices in a row share one entry.
std::vector<Json> devices_of_nodes(const Cluster& cluster) {
  std::vector<Json> runs(cluster.nodes.size(), Json::array());
  const std::vector<Device>& devices = cluster.devices;
  for (std::size_t i = 0; i < devices.size();) {
    std::size_t end = i + 1;
    while (end < devices.size() && devices[end].node == devices[i].node &&
           devices[end].type == devices[i].type && devices[end].speed == devices[i].speed) {
      ++end;
    }
    runs[idx(devices[i].node)].push_back(device_run(cluster.type_of(static_cast<DeviceId>(i)).name,
                                                    static_cast<i32>(end - i), devices[i].speed));
    i = end;
  }
  return runs;
}

}  // namespace

Cluster parse_cluster(const Json& yaml, const std::string& where) {
  ClusterFile file;
  read_fields(yaml, file, where);
  return ClusterBuilder(file, where).build();
}

Cluster load_cluster(const std::string& name_or_path) {
  const std::filesystem::path path = find_config(name_or_path, "clusters", "yaml");
  if (is_hostfile(path)) return cluster_of_hosts(read_hostfile(path), printable(path.stem().string()));
  Cluster cluster = parse_cluster(read_yaml(path), path.string() + " ");
  if (cluster.name.empty()) cluster.name = printable(path.stem().string());
  return cluster;
}

Json to_json(const Cluster& cluster) {
  Json out = Json::object();
  out["name"] = cluster.name;
  out["device_types"] = write_value(cluster.types);
  out["nodes"] = Json::array();
  std::vector<Json> devices = devices_of_nodes(cluster);
  for (std::size_t i = 0; i < cluster.nodes.size(); ++i) {
    const Node& node = cluster.nodes[i];
    Json entry = Json::object();
    entry["name"] = node.name;
    entry["devices"] = std::move(devices[i]);
    entry["network_gbit_s"] = scaled_up(node.network, kBytesPerGbit);
    entry["latency_us"] = scaled_down(node.latency, kUsPerSecond);
    entry["local_gb_s"] = scaled_up(node.local, kBytesPerGb);
    entry["local_latency_us"] = scaled_down(node.local_latency, kUsPerSecond);
    entry["peer_us"] = scaled_down(node.peer, kUsPerSecond);
    entry["local_peer_us"] = scaled_down(node.local_peer, kUsPerSecond);
    if (node.nics != 1) entry["nics"] = node.nics;
    if (node.host) entry["host"] = write_fields(*node.host);
    out["nodes"].push_back(std::move(entry));
  }
  return out;
}

std::vector<std::string> known_clusters() { return config_names("clusters", "yaml"); }

std::vector<DeviceId> Cluster::devices_of_type(i32 type) const {
  std::vector<DeviceId> out;
  for (DeviceId id = 0; id < num_devices(); ++id) {
    if (devices[static_cast<std::size_t>(id)].type == type) out.push_back(id);
  }
  return out;
}

Bytes Cluster::memory_bytes(PlaceId place) const {
  if (place < num_devices()) return type_of(place).memory_bytes();
  const std::optional<NodeHost>& host = nodes[idx(node_of(place))].host;
  return host ? host->memory_bytes() : 0;
}

std::string Cluster::types_text() const {
  std::string text;
  for (std::size_t first = 0, end = 0; first < devices.size(); first = end) {
    while (end < devices.size() && devices[end].type == devices[first].type) ++end;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", end - first,
                        type_of(static_cast<DeviceId>(first)).name);
  }
  return text;
}

std::string Cluster::device_name(PlaceId place) const {
  if (place >= num_devices()) return "host of " + nodes[idx(node_of(place))].name;
  const DeviceId number = devices[idx(place)].number;
  return fmt::format("{}#{}", type_of(place).name, number >= 0 ? number : place);
}

Cluster without(const Cluster& cluster, const std::vector<DeviceId>& idle) {
  Cluster part = cluster;
  const std::set<DeviceId> out(idle.begin(), idle.end());
  part.devices.clear();
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    if (out.contains(d)) continue;
    part.devices.push_back(cluster.devices[idx(d)]);
    if (part.devices.back().number < 0) part.devices.back().number = d;
  }
  return part;
}

}  // namespace hetermoe
