#include "hetermoe/cluster/network.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace hetermoe {
namespace {

/// Two nodes of 2 and 1 devices; the first has a host.
Cluster two_nodes() {
  Cluster cluster;
  cluster.types.resize(1);
  cluster.devices = {{0, 0}, {0, 0}, {0, 1}};
  cluster.nodes.resize(2);
  cluster.nodes[0] = {"a", 10e9, 5e-6, 100e9, 1e-6};
  cluster.nodes[1] = {"b", 20e9, 7e-6, 200e9, 2e-6};
  cluster.nodes[0].host =
      NodeHost{.memory_gib = 64, .memory_gb_s = 90, .link_gb_s = 30, .shared_link_gb_s = 50};
  return cluster;
}

TEST(Network, EveryPortHasItsNumber) {
  const Cluster cluster = two_nodes();
  const Network network(cluster);
  ASSERT_EQ(network.num_ports(), 2 * 2 + 2 * 3 + 2 * 3 + 3 * 2 + 2 * 3);
  std::set<std::pair<PortKind, i32>> owners;
  for (i32 number = 0; number < network.num_ports(); ++number) {
    const Port port = network.port(number);
    EXPECT_EQ(network.number(port), number);
    owners.insert({port.kind, port.owner});
  }
  EXPECT_EQ(owners.size(), 2U + 3U + 3U + 2U + 2U + 3U);
  EXPECT_THROW(network.port(network.num_ports()), InternalError);
}

TEST(Network, BandwidthsAreThoseOfNodesAndHosts) {
  const Cluster cluster = two_nodes();
  const Network network(cluster);
  EXPECT_EQ(network.bandwidth({PortKind::kNode, 1, true}), 20e9);
  EXPECT_EQ(network.bandwidth({PortKind::kLocal, 2, false}), 200e9);  // device 2 is on node 1
  EXPECT_EQ(network.bandwidth({PortKind::kHostLink, 1, true}), 30e9);
  EXPECT_EQ(network.bandwidth({PortKind::kHostShared, 0, false}), 50e9);
  EXPECT_EQ(network.bandwidth({PortKind::kHostMemory, 0, false}), 90e9);
}

std::map<i32, Bytes> uses(const Network& network, PlaceId place, const PortBytes& bytes) {
  std::map<i32, Bytes> used;
  network.for_each_port(place, bytes, [&](i32 port, Bytes amount) { used[port] += amount; });
  return used;
}

TEST(Network, BytesGoThroughPortsOfTheirDevicesNodesAndHosts) {
  const Cluster cluster = two_nodes();
  const Network network(cluster);
  PortBytes from, to;
  add_sent(from, to, 7, network.same_node(1, 2));
  add_sent(from, to, 3, network.same_node(1, 0));
  const auto number = [&](PortKind kind, i32 owner, bool in) { return network.number({kind, owner, in}); };
  EXPECT_EQ(uses(network, 1, from), (std::map<i32, Bytes>{{number(PortKind::kNode, 0, false), 7},
                                                          {number(PortKind::kLocal, 1, false), 3}}));
  EXPECT_EQ(uses(network, 0, {.local_in = 3}),
            (std::map<i32, Bytes>{{number(PortKind::kLocal, 0, true), 3}}));
  const PlaceId host = 3;
  EXPECT_EQ(uses(network, host, {.host_out = 4, .host_in = 5}),
            (std::map<i32, Bytes>{{number(PortKind::kHostShared, 0, true), 5},
                                  {number(PortKind::kHostShared, 0, false), 4},
                                  {number(PortKind::kHostMemory, 0, false), 9}}));
  EXPECT_TRUE(uses(network, 0, {}).empty());
}

TEST(Network, ADeviceWithNicsOfItsOwnLeavesThoseOfTheNode) {
  Cluster cluster = two_nodes();
  cluster.nodes[0].nics = 4;
  const Network network(cluster, {0, 3, 0});
  EXPECT_EQ(network.bandwidth({PortKind::kNic, 1, false}), 0.75 * 10e9);
  EXPECT_EQ(network.bandwidth({PortKind::kNode, 0, true}), 0.25 * 10e9) << "what is left";
  EXPECT_EQ(network.bandwidth({PortKind::kNode, 1, true}), 20e9) << "nobody has any there";
  const PortBytes bytes{.net_out = 5, .net_in = 6, .local_out = 7};
  const auto number = [&](PortKind kind, i32 owner, bool in) { return network.number({kind, owner, in}); };
  EXPECT_EQ(uses(network, 1, bytes), (std::map<i32, Bytes>{{number(PortKind::kNic, 1, false), 5},
                                                           {number(PortKind::kNic, 1, true), 6},
                                                           {number(PortKind::kLocal, 1, false), 7}}));
  EXPECT_EQ(uses(network, 0, bytes), (std::map<i32, Bytes>{{number(PortKind::kNode, 0, false), 5},
                                                           {number(PortKind::kNode, 0, true), 6},
                                                           {number(PortKind::kLocal, 0, false), 7}}));
  EXPECT_EQ(Network(cluster, {1, 3, 0}).bandwidth({PortKind::kNode, 0, true}), 10e9)
      << "nothing is left: moves between plans take the whole";
}

TEST(Network, AMessageStartsAsItsFarthestBytesDo) {
  const Cluster cluster = two_nodes();
  const Network network(cluster);
  EXPECT_EQ(network.latency(2, {.net_out = 1, .local_out = 1}), 7e-6);
  EXPECT_EQ(network.latency(0, {.local_in = 1}), 1e-6);
  EXPECT_DOUBLE_EQ(network.latency(0, {.host_in = 1}), 10e-6);
  EXPECT_EQ(network.latency(0, {}), 0);
}

}  // namespace
}  // namespace hetermoe
