#include "hetermoe/cli/inspect_cluster.h"

#include <iostream>

#include "hetermoe/base/words.h"
#include "hetermoe/cost/hiding.h"
#include "hetermoe/report/table.h"

namespace hetermoe {

Json cluster_json(const Cluster& cluster, const std::optional<ModelConfig>& model) {
  Json devices = Json::array();
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const Device& device = cluster.devices[static_cast<std::size_t>(d)];
    const DeviceType& type = cluster.type_of(d);
    devices.push_back({{"device", d},
                       {"name", cluster.device_name(d)},
                       {"type", type.name},
                       {"node", cluster.nodes[static_cast<std::size_t>(device.node)].name},
                       {"speed", device.speed},
                       {"memory_gib", type.memory_gib},
                       {"memory_gb_s", type.memory_gb_s},
                       {"fp16_tflops", type.fp16_tflops},
                       {"bf16_tflops", type.bf16_tflops},
                       {"fp32_tflops", type.fp32_tflops},
                       {"attention_kernel", name_of(type.attention_kernel)},
                       {"compute_capability", type.compute_capability}});
  }
  Json nodes = Json::array();
  for (const Node& node : cluster.nodes) {
    nodes.push_back({{"name", node.name},
                     {"network_bytes_s", node.network},
                     {"nics", node.nics},
                     {"latency_s", node.latency},
                     {"peer_s", node.peer},
                     {"local_bytes_s", node.local},
                     {"local_latency_s", node.local_latency},
                     {"local_peer_s", node.local_peer},
                     {"host", write_value(node.host)}});
  }
  return {{"name", cluster.name},
          {"devices", devices},
          {"nodes", nodes},
          {"hiding", hiding_json(cluster, model)}};
}

namespace {

void print_hiding(const Cluster& cluster, const std::optional<ModelConfig>& model) {
  std::vector<std::string> header = {
      "rows through", "of devices", "node", "computing", "hidden by experts wider than", "with fp8_row"};
  const bool has_experts = model && model->num_moe_layers() > 0;
  if (has_experts) header.push_back("R of " + model->name);
  Table table(header);
  for (const LinkHiding& link : hiding_links(cluster)) {
    std::vector<std::string> cells = {link.link == "inside" ? "links inside" : "the network",
                                      link.devices,
                                      link.node,
                                      link.type.empty() ? "all" : link.type,
                                      format_digits(link.width, 4),
                                      format_digits(link.width / 2, 4)};
    if (has_experts) cells.push_back(format_digits(link.of(*model), 3));
    table.add_row(cells);
  }
  if (table.num_rows() == 0) return;
  std::cout
      << "\n"
      << table.str()
      << "expert width (moe_intermediate_size) at which experts compute for as long as their rows travel "
         "in 16 bits, by data sheets\n";
  if (has_experts)
    std::cout << fmt::format("R: how many times as long as their rows travel experts of width {} compute\n",
                             model->expert_hidden);
}

}  // namespace

void print_cluster(const Cluster& cluster, const std::optional<ModelConfig>& model) {
  std::cout << fmt::format("cluster {}: {} in {}\n\n", cluster.name, counted(cluster.num_devices(), "device"),
                           counted(cluster.nodes.size(), "node"));
  Table devices(
      {"device", "node", "year", "memory", "bandwidth", "fp16", "bf16", "fp32", "attention", "speed"});
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const Device& device = cluster.devices[static_cast<std::size_t>(d)];
    const DeviceType& type = cluster.type_of(d);
    const auto tflops = [](double value) { return value > 0 ? format_digits(value, 3) + " TFLOP/s" : "-"; };
    devices.add_row({cluster.device_name(d), cluster.nodes[static_cast<std::size_t>(device.node)].name,
                     std::to_string(type.year), format_bytes(type.memory_bytes()),
                     format_digits(type.memory_gb_s, 4) + " GB/s", tflops(type.fp16_tflops),
                     tflops(type.bf16_tflops), tflops(type.fp32_tflops), name_of(type.attention_kernel),
                     format_factor(device.speed)});
  }
  std::cout << devices.str()
            << "speed: factor of the cluster file on that of the type; a slow card has less than 1\n\n";
  Table nodes({"node", "network", "latency", "inside", "latency inside"});
  for (const Node& node : cluster.nodes) {
    const std::string nics = node.nics > 1 ? fmt::format(" in {} NICs", node.nics) : "";
    nodes.add_row({node.name, format_digits(node.network * 8e-9, 4) + " Gbit/s" + nics,
                   format_seconds(node.latency), format_digits(node.local * 1e-9, 4) + " GB/s",
                   format_seconds(node.local_latency)});
  }
  std::cout << nodes.str();
  print_hiding(cluster, model);
  Table hosts({"host", "memory", "bandwidth", "link", "all links", "latency"});
  for (const Node& node : cluster.nodes) {
    if (!node.host) continue;
    const auto rate = [](double gb_s) { return format_digits(gb_s, 4) + " GB/s"; };
    hosts.add_row({node.name, format_bytes(node.host->memory_bytes()), rate(node.host->memory_gb_s),
                   rate(node.host->link_gb_s), rate(node.host->shared_link_gb_s),
                   format_seconds(node.host->link_latency_us * 1e-6)});
  }
  if (hosts.num_rows() > 0) std::cout << "\n" << hosts.str();
}

}  // namespace hetermoe
