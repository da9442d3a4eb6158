#include "hetermoe/cluster/assumed_links.h"

#include <fmt/ranges.h>

#include <filesystem>

#include "hetermoe/base/index.h"
#include "hetermoe/base/paths.h"
#include "hetermoe/cluster/cluster_file.h"
#include "hetermoe/cluster/hostfile.h"

namespace hetermoe {
namespace {

/// Of the nodes that the file lists, which state what.
struct Stated {
  bool network = true, local = true;
};

Stated stated_in(const std::filesystem::path& path) {
  if (is_hostfile(path)) return {false, false};
  ClusterFile file;
  read_fields(read_yaml(path), file, path.string() + " ");
  Stated stated;
  for (const NodeEntry& node : file.nodes) {
    stated.network = stated.network && (node.links.network_gbit_s || file.links.network_gbit_s);
    stated.local = stated.local && (node.links.local_gb_s || file.links.local_gb_s);
  }
  return stated;
}

}  // namespace

std::string assumed_links(const std::string& name_or_path) {
  const Stated stated = stated_in(find_config(name_or_path, "clusters", "yaml"));
  const Cluster cluster = load_cluster(name_or_path);
  std::vector<i64> devices(cluster.nodes.size(), 0);
  bool several = false;  // devices on one node
  for (const Device& device : cluster.devices) several = ++devices[idx(device.node)] > 1 || several;
  std::vector<std::string> assumed, keys;
  if (!stated.network && cluster.nodes.size() > 1) {
    assumed.push_back(fmt::format("{:g} Gbit/s of network a node", kDefaultNetworkGbitS));
    keys.push_back("network_gbit_s");
  }
  if (!stated.local && several) {
    assumed.push_back(fmt::format("{:g} GB/s between devices of a node", kDefaultLocalGbS));
    keys.push_back("local_gb_s");
  }
  if (keys.empty()) return "";
  return fmt::format("Links assumed, as {} does not state them: {} ({} of a cluster file)", cluster.name,
                     fmt::join(assumed, ", "), fmt::join(keys, ", "));
}

}  // namespace hetermoe
