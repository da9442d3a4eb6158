#include "hetermoe/cluster/cluster.h"

#include <gtest/gtest.h>

#include <map>

#include "hetermoe/base/paths.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

Cluster parse(const std::string& yaml) { return parse_cluster(parse_yaml(yaml, "c.yaml"), "c.yaml "); }

std::string yaml_error(const std::string& yaml) {
  return error_of<ConfigError>([&] { parse(yaml); });
}

/// The long list of known names is left out of comparisons: it grows with the catalogue.
std::string without_known(std::string text) {
  const std::size_t begin = text.find(" Known: ");
  const std::size_t end = text.find(" Did you mean");
  if (begin != std::string::npos) text.erase(begin, end == std::string::npos ? end : end - begin);
  return text;
}

std::map<std::string, std::size_t> counts_by_type(const Cluster& cluster) {
  std::map<std::string, std::size_t> out;
  for (std::size_t i = 0; i < cluster.types.size(); ++i) {
    out[cluster.types[i].name] = cluster.devices_of_type(static_cast<i32>(i)).size();
  }
  return out;
}

TEST(Cluster, DevicesAreNumberedNodeByNode) {
  const Cluster cluster =
      parse("{name: mix, nodes: [{name: a, count: 2, devices: [T4, A40 x2]}, {devices: [T4]}]}");
  EXPECT_EQ(cluster.name, "mix");
  ASSERT_EQ(cluster.num_devices(), 7);
  std::vector<std::string> names;
  std::vector<NodeId> nodes;
  for (DeviceId id = 0; id < cluster.num_devices(); ++id) {
    names.push_back(cluster.device_name(id));
    nodes.push_back(cluster.devices[static_cast<std::size_t>(id)].node);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"T4#0", "A40#1", "A40#2", "T4#3", "A40#4", "A40#5", "T4#6"}));
  EXPECT_EQ(nodes, (std::vector<NodeId>{0, 0, 0, 1, 1, 1, 2}));
  EXPECT_EQ(cluster.devices_of_type(1), (std::vector<DeviceId>{1, 2, 4, 5}));
  EXPECT_EQ(cluster.nodes[0].name, "a0");
  EXPECT_EQ(cluster.nodes[1].name, "a1");
  EXPECT_EQ(cluster.nodes[2].name, "node2");
}

TEST(Cluster, LinksComeFromNodeThenClusterThenDefault) {
  const Cluster cluster = parse(
      "{network_gbit_s: 25, local_gb_s: 50, nodes: [{name: a, devices: [T4], network_gbit_s: 200, "
      "latency_us: 0}, "
      "{name: b, devices: [T4]}]}");
  EXPECT_EQ(cluster.nodes[0].network, 25e9);
  EXPECT_EQ(cluster.nodes[0].latency, 0);
  EXPECT_EQ(cluster.nodes[1].network, 3.125e9);
  EXPECT_EQ(cluster.nodes[1].latency, 10e-6);
  EXPECT_EQ(cluster.nodes[1].local, 50e9);
  EXPECT_EQ(cluster.nodes[1].local_latency, 5e-6);
}

TEST(Cluster, NicsShareTheRateOfTheirNode) {
  const Cluster cluster = parse(
      "{nics: 4, network_gbit_s: 100, nodes: [{name: a, devices: [T4]}, {name: b, devices: [T4], nics: 1}]}");
  EXPECT_EQ(cluster.nodes[0].nics, 4);
  EXPECT_EQ(cluster.nodes[0].network, 12.5e9) << "of all";
  EXPECT_EQ(cluster.nodes[1].nics, 1);
  EXPECT_EQ(to_json(cluster)["nodes"][0]["nics"], 4);
  EXPECT_FALSE(to_json(cluster)["nodes"][1].contains("nics"));
}

TEST(Cluster, DeviceEntriesMayBeMappingsWithSpeed) {
  const Cluster cluster = parse("{nodes: [{devices: [{type: a40, count: 2, speed: 0.75}, A40]}]}");
  ASSERT_EQ(cluster.num_devices(), 3);
  EXPECT_EQ(cluster.types.size(), 1U);
  EXPECT_EQ(cluster.devices[1].speed, 0.75);
  EXPECT_EQ(cluster.devices[2].speed, 1);
}

TEST(Cluster, FileTypesOverrideTheCatalogueOrStartFromAnotherType) {
  const Cluster cluster = parse(
      "device_types:\n"
      "  - {name: V100, memory_gib: 32}\n"
      "  - {name: V100-SXM, like: V100, fp16_tflops: 125}\n"
      "  - {name: Mine, memory_gib: 8, memory_gb_s: 100, fp32_tflops: 5, num_sms: 4}\n"
      "  - {name: Unused, like: T4}\n"
      "nodes: [{devices: [Mine, V100-SXM, V100, A40]}]");
  EXPECT_EQ(counts_by_type(cluster),
            (std::map<std::string, std::size_t>{{"V100", 1}, {"V100-SXM", 1}, {"Mine", 1}, {"A40", 1}}));
  EXPECT_EQ(cluster.type_of(2).memory_gib, 32);
  EXPECT_EQ(cluster.type_of(2).fp16_tflops, 112);
  EXPECT_EQ(cluster.type_of(1).memory_gib, 32) << "like refers to the file's own V100";
  EXPECT_EQ(cluster.type_of(1).fp16_tflops, 125);
  EXPECT_EQ(cluster.type_of(0).attention_kernel, AttentionKernel::kPlain);
  EXPECT_EQ(catalogue_device("V100", "t").memory_gib, 16) << "the catalogue itself stays";
}

TEST(Cluster, OtherRatesNeedASourceOfTheirOwn) {
  const Cluster cluster = parse(
      "device_types:\n"
      "  - {name: Larger, like: H100, memory_gib: 141}\n"
      "  - {name: Faster, like: H100, gemm_efficiency: 0.9}\n"
      "  - {name: Mine, like: H100, gemm_efficiency: 0.9, efficiency_source: my benchmark}\n"
      "nodes: [{devices: [Larger, Faster, Mine]}]");
  EXPECT_EQ(cluster.type_of(0).efficiency_source, catalogue_device("H100", "t").efficiency_source);
  EXPECT_EQ(cluster.type_of(1).efficiency_source, "");
  EXPECT_EQ(cluster.type_of(2).efficiency_source, "my benchmark");
}

TEST(Cluster, RoundTripIsExact) {
  std::vector<Cluster> clusters = {parse(
      "{name: odd, device_types: [{name: X, like: T4, year: 1999}], nodes: [{name: a, devices: [X, {type: "
      "A40, count: "
      "2, speed: 0.3}, A40, X x3], network_gbit_s: 0.7, latency_us: 0.1, local_gb_s: 3.3333333333333335, "
      "local_latency_us: 7.7, peer_us: 3.3, local_peer_us: 0.7}]}")};
  for (const std::string& name : known_clusters()) clusters.push_back(load_cluster(name));
  for (const Cluster& cluster : clusters) {
    const Json json = to_json(cluster);
    const Cluster again = parse_cluster(parse_json(json.dump(), "j"), "j ");
    EXPECT_EQ(to_json(again).dump(), json.dump()) << cluster.name;
    ASSERT_EQ(again.nodes.size(), cluster.nodes.size());
    for (std::size_t i = 0; i < cluster.nodes.size(); ++i) {
      EXPECT_EQ(again.nodes[i].name, cluster.nodes[i].name);
      EXPECT_EQ(again.nodes[i].network, cluster.nodes[i].network);
      EXPECT_EQ(again.nodes[i].latency, cluster.nodes[i].latency);
      EXPECT_EQ(again.nodes[i].local, cluster.nodes[i].local);
      EXPECT_EQ(again.nodes[i].local_latency, cluster.nodes[i].local_latency);
      EXPECT_EQ(again.nodes[i].peer, cluster.nodes[i].peer);
      EXPECT_EQ(again.nodes[i].local_peer, cluster.nodes[i].local_peer);
      EXPECT_EQ(again.nodes[i].nics, cluster.nodes[i].nics);
    }
    ASSERT_EQ(again.devices.size(), cluster.devices.size());
    for (std::size_t i = 0; i < cluster.devices.size(); ++i) {
      EXPECT_EQ(again.devices[i].type, cluster.devices[i].type);
      EXPECT_EQ(again.devices[i].node, cluster.devices[i].node);
      EXPECT_EQ(again.devices[i].speed, cluster.devices[i].speed);
    }
  }
}

TEST(Cluster, RoundTripIsExactForManyLinkSpeeds) {
  for (int i = 1; i < 2000; ++i) {
    const double value = 1.0 / i + i * 0.1;
    Json yaml = parse_yaml("{nodes: [{devices: [T4]}]}", "t");
    for (const char* key : {"network_gbit_s", "latency_us", "local_gb_s", "local_latency_us"})
      yaml[key] = value;
    const Node node = parse_cluster(yaml, "t ").nodes[0];
    const Node again = parse_cluster(to_json(parse_cluster(yaml, "t ")), "t ").nodes[0];
    ASSERT_EQ(again.network, node.network) << value;
    ASSERT_EQ(again.latency, node.latency) << value;
    ASSERT_EQ(again.local, node.local) << value;
    ASSERT_EQ(again.local_latency, node.local_latency) << value;
  }
}

TEST(Cluster, LatencyBelowTheSmallestNormalNumberReadsBack) {
  const Cluster cluster = parse("{nodes: [{devices: [T4], latency_us: 3e-310}]}");
  const Cluster again = parse(to_json(cluster).dump());
  EXPECT_EQ(again.nodes[0].latency, cluster.nodes[0].latency);
  EXPECT_GT(again.nodes[0].latency, 0);
}

TEST(ClusterErrors, LinkSpeedWhoseBytesPerSecondAreInfinite) {
  EXPECT_EQ(yaml_error("{nodes: [{devices: [T4], network_gbit_s: 1e308}]}"),
            "[c.yaml nodes[0].network_gbit_s] out of range: got 1e+308, expected 1e-09 to 1000000000");
}

TEST(Cluster, EveryOfManyNodesIsWrittenWithItsDevices) {
  const Cluster cluster = parse("{nodes: [{name: a, count: 65536, devices: [T4]}]}");
  const Json json = to_json(cluster);  // in one pass: a pass for each node took a minute
  ASSERT_EQ(json["nodes"].size(), 65536U);
  EXPECT_EQ(json["nodes"][65535]["devices"], Json::array({"T4"}));
}

TEST(Cluster, WrittenFormIsReadable) {
  const Json json = to_json(parse("{name: n, nodes: [{name: a, devices: [T4 x2, A40]}]}"));
  EXPECT_EQ(
      json["nodes"].dump(),
      R"([{"name":"a","devices":["T4 x2","A40"],"network_gbit_s":100.0,"latency_us":10.0,"local_gb_s":20.0,)"
      R"("local_latency_us":5.0,"peer_us":17.0,"local_peer_us":3.0}])");
  EXPECT_EQ(json["device_types"][0]["name"], "T4");
}

TEST(ClusterErrors, NoDevices) {
  EXPECT_EQ(
      yaml_error("{name: x}"),
      "[c.yaml nodes] the cluster has no devices at all: expected a list of nodes, such as nodes: [{name: a, "
      "devices: [A40 x2]}]");
  EXPECT_EQ(yaml_error("{nodes: []}"), yaml_error("{name: x}"));
  EXPECT_EQ(yaml_error("{nodes: [{name: a}]}"),
            "[c.yaml nodes[0].devices] the node has no devices: expected [A40 x2]");
  EXPECT_EQ(yaml_error("{nodes: [{devices: [T4]}, {devices: []}]}"),
            "[c.yaml nodes[1].devices] the node has no devices: expected [A40 x2]");
}

TEST(ClusterErrors, UnknownTypeNamesTheNearestAndSaysHowToDescribeIt) {
  const auto expect_starts = [](const char* yaml, const std::string& expected) {
    const std::string text = without_known(yaml_error(yaml));
    EXPECT_TRUE(text.starts_with(expected)) << text;
  };
  const std::string text = yaml_error("{nodes: [{devices: [T4, L40X]}]}");
  EXPECT_NE(text.find("RTX2080Ti"), std::string::npos) << text;
  EXPECT_NE(text.find("device_types: [{name: L40X, like: "), std::string::npos) << text;
  expect_starts("{nodes: [{devices: [T4, L40X]}]}",
                "[c.yaml nodes[0].devices[1]] unknown device type \"L40X\". Did you mean \"L40S\"?");
  expect_starts("{device_types: [{name: Mine, like: T4}], nodes: [{devices: [Mime x2]}]}",
                "[c.yaml nodes[0].devices[0]] unknown device type \"Mime\". Did you mean \"Mine\"?");
  expect_starts("{device_types: [{name: Mine, like: T44}], nodes: [{devices: [Mine]}]}",
                "[c.yaml device_types[0].like] unknown device type \"T44\". Did you mean \"T4\"?");
}

TEST(ClusterErrors, UnknownKeys) {
  EXPECT_EQ(without_known(yaml_error("{nodes: [{devices: [T4], netwrk_gbit_s: 1}]}")),
            "[c.yaml nodes[0]] unknown key \"netwrk_gbit_s\". Did you mean \"network_gbit_s\"?");
  const std::string top = without_known(yaml_error("{node: [{devices: [T4]}]}"));
  EXPECT_NE(top.find("unknown key \"node\". Did you mean \"nodes\"?"), std::string::npos) << top;
  EXPECT_EQ(without_known(yaml_error("{nodes: [{devices: [{type: T4, cuont: 2}]}]}")),
            "[c.yaml nodes[0].devices[0]] unknown key \"cuont\". Did you mean \"count\"?");
  EXPECT_EQ(without_known(yaml_error("{device_types: [{name: T4, memory_gb: 2}], nodes: [{devices: [T4]}]}")),
            "[c.yaml device_types[0]] unknown key \"memory_gb\". Did you mean \"memory_gib\"?");
}

TEST(ClusterErrors, NumbersOutOfRange) {
  const auto node = [](const std::string& rest) { return "{nodes: [{devices: [T4], " + rest + "}]}"; };
  EXPECT_EQ(yaml_error(node("network_gbit_s: 0")),
            "[c.yaml nodes[0].network_gbit_s] out of range: got 0, expected 1e-09 to 1000000000");
  EXPECT_EQ(yaml_error(node("local_gb_s: -3")),
            "[c.yaml nodes[0].local_gb_s] out of range: got -3, expected 1e-09 to 1000000000");
  EXPECT_EQ(yaml_error(node("latency_us: -1")),
            "[c.yaml nodes[0].latency_us] out of range: got -1, expected 0 to 1000000000");
  EXPECT_EQ(yaml_error(node("local_latency_us: -1")),
            "[c.yaml nodes[0].local_latency_us] out of range: got -1, expected 0 to 1000000000");
  EXPECT_EQ(yaml_error(node("count: 0")), "[c.yaml nodes[0].count] out of range: got 0, expected 1 to 65536");
  EXPECT_EQ(yaml_error("{network_gbit_s: -1, nodes: [{devices: [T4]}]}"),
            "[c.yaml network_gbit_s] out of range: got -1, expected 1e-09 to 1000000000");
  EXPECT_EQ(yaml_error("{nodes: [{devices: [T4 x0]}]}"),
            "[c.yaml nodes[0].devices[0]] out of range: got 0, expected 1 to 65536");
  EXPECT_EQ(yaml_error("{nodes: [{devices: [{type: T4, speed: 0}]}]}"),
            "[c.yaml nodes[0].devices[0].speed] out of range: got 0, expected 1e-06 to 1000000");
  EXPECT_EQ(yaml_error("{device_types: [{name: T4, memory_gib: 0}], nodes: [{devices: [T4]}]}"),
            "[c.yaml device_types[0].memory_gib] out of range: got 0, expected > 0");
}

TEST(ClusterErrors, TooManyDevices) {
  EXPECT_EQ(yaml_error("{nodes: [{count: 60000, devices: [T4 x60000]}]}"),
            "[c.yaml nodes[0]] more than 65536 devices in one cluster");
  EXPECT_EQ(yaml_error("{nodes: [{devices: [T4 x60000, T4 x60000]}]}"),
            "[c.yaml nodes[0].devices[1]] more than 65536 devices in one node");
  EXPECT_EQ(yaml_error("{nodes: [{devices: [T4 x99999999999999999999]}]}"),
            "[c.yaml nodes[0].devices[0]] got \"T4 x99999999999999999999\", expected a device type such as "
            "\"A40\", or "
            "\"A40 x2\" for two of them");
}

TEST(ClusterErrors, WrongForms) {
  EXPECT_EQ(yaml_error("{nodes: [{devices: T4}]}"),
            "[c.yaml nodes[0].devices] wrong type: got string \"T4\", expected a list");
  EXPECT_EQ(yaml_error("{nodes: [{devices: [4]}]}"),
            "[c.yaml nodes[0].devices[0]] wrong type: got integer 4, expected a device type such as A40, "
            "\"A40 x2\", or "
            "{type, count, speed}");
  EXPECT_EQ(yaml_error("{nodes: [{devices: [T4 2]}]}"),
            "[c.yaml nodes[0].devices[0]] got \"T4 2\", expected a device type such as \"A40\", or \"A40 "
            "x2\" for two of "
            "them");
  EXPECT_NE(yaml_error("{nodes: [{devices: [T4 x]}]}").find("got \"T4 x\", expected a device type"),
            std::string::npos);
  EXPECT_NE(yaml_error("{nodes: [{devices: [\"T4 \"]}]}").find("got \"T4 \", expected a device type"),
            std::string::npos);
  EXPECT_EQ(yaml_error("{nodes: [{devices: [{count: 2}]}]}"),
            "[c.yaml nodes[0].devices[0]] no type: expected {type: A40, count: 2}");
  EXPECT_NE(yaml_error("[T4]").find("wrong type: got array [\"T4\"], expected a mapping"), std::string::npos);
}

TEST(ClusterErrors, NamesGivenTwice) {
  EXPECT_EQ(yaml_error("{nodes: [{name: a, devices: [T4]}, {name: a, devices: [T4]}]}"),
            "[c.yaml nodes[1].name] a node named \"a\" exists already; with a count above 1 the number is "
            "appended to "
            "the name");
  EXPECT_EQ(yaml_error("{device_types: [{name: T4}, {name: t4}], nodes: [{devices: [T4]}]}"),
            "[c.yaml device_types[1].name] device type \"t4\" is given twice");
}

TEST(ClusterErrors, IncompleteTypes) {
  EXPECT_EQ(yaml_error(
                "{device_types: [{name: Mine, memory_gib: 8, memory_gb_s: 1, num_sms: 1}], nodes: [{devices: "
                "[Mine]}]}"),
            "[c.yaml device_types[0]] device type \"Mine\" has no fp32_tflops. Give memory_gib, memory_gb_s, "
            "fp32_tflops and num_sms, or name a similar type with \"like\"");
  EXPECT_EQ(yaml_error("{device_types: [{like: T4}], nodes: [{devices: [T4]}]}"),
            "[c.yaml device_types[0].name] got \"\", expected a name without spaces");
  EXPECT_EQ(yaml_error("{device_types: [{name: a x2, like: T4}], nodes: [{devices: [T4]}]}"),
            "[c.yaml device_types[0].name] got \"a x2\", expected a name without spaces");
}

TEST(NamedClusters, HoldTheDevicesTheyPromise) {
  using Counts = std::map<std::string, std::size_t>;
  const std::map<std::string, Counts> expected = {{"o1", {{"A40", 6}, {"V100", 6}}},
                                                  {"o2", {{"A40", 4}, {"V100", 8}}},
                                                  {"o3", {{"A40", 6}, {"V100", 3}}},
                                                  {"c1", {{"L40S", 2}, {"T4", 6}}},
                                                  {"c2", {{"L40S", 2}, {"T4", 8}}},
                                                  {"demo", {{"A40/1000", 2}, {"V100/1000", 2}}},
                                                  {"one", {{"CPU", 1}}},
                                                  {"demo3", {{"A40", 2}, {"V100", 2}, {"T4", 2}}},
                                                  {"h100-v100", {{"H100", 8}, {"V100", 16}}},
                                                  {"rtx4090x8", {{"RTX4090", 8}}},
                                                  {"a800x8", {{"A800", 8}}},
                                                  {"h800-16x8", {{"H800", 128}}},
                                                  {"rtx4090x4-rtx3090x4", {{"RTX4090", 4}, {"RTX3090", 4}}}};
  for (const auto& [name, counts] : expected) {
    const Cluster cluster = load_cluster(name);
    EXPECT_EQ(cluster.name, name);
    EXPECT_EQ(counts_by_type(cluster), counts) << name;
  }
  for (const std::string& name : known_clusters()) EXPECT_NO_THROW(load_cluster(name)) << name;
  EXPECT_EQ(load_cluster("o1").nodes.size(), 12U);
  EXPECT_EQ(load_cluster("o1").nodes[0].network, 6.25e9);  // half a port
  EXPECT_EQ(load_cluster("c1").nodes[0].network, 25e9);
  EXPECT_EQ(load_cluster("a800x8").nodes[0].local, 200e9);
  for (const char* name : {"rtx4090x8", "a800x8", "rtx4090x4-rtx3090x4"}) {
    const Cluster server = load_cluster(name);
    ASSERT_EQ(server.nodes.size(), 1U) << name;
    EXPECT_TRUE(server.nodes[0].host.has_value()) << name;
  }
}

TEST(NamedClusters, UnknownNameIsAnErrorWithTheNearest) {
  try {
    load_cluster("demo4");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("Did you mean \"demo"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace hetermoe
