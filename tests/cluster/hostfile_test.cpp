#include "hetermoe/cluster/hostfile.h"

#include <gtest/gtest.h>

#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

std::string hosts_error(const std::string& text) {
  return error_of<ConfigError>([&] { cluster_of_hosts(parse_hostfile(text, "hosts"), "hosts"); });
}

TEST(Hostfile, IsAClusterWithANodePerHost) {
  const WorkFolder folder;
  const std::string text =
      "# two kinds of machines\n"
      "\n"
      "new slots=2 type=A40\n"
      "  old-1   type=v100 slots=3  # names of types have no case\n"
      "old-2 type=V100\r\n";
  for (const char* name : {"hosts", "mine.txt", "mine.hosts"}) {
    const Cluster cluster = load_cluster(folder.file(name, text));
    EXPECT_EQ(cluster.name, std::filesystem::path(name).stem());
    ASSERT_EQ(cluster.num_devices(), 6);
    std::string devices;
    for (DeviceId d = 0; d < 6; ++d) {
      const NodeId node = cluster.devices[static_cast<std::size_t>(d)].node;
      devices += cluster.nodes[static_cast<std::size_t>(node)].name + " " + cluster.device_name(d) + "\n";
    }
    EXPECT_EQ(devices, "new A40#0\nnew A40#1\nold-1 V100#2\nold-1 V100#3\nold-1 V100#4\nold-2 V100#5\n");
  }
}

TEST(Hostfile, HasTheLinksOfAClusterFileThatSaysNothingOfThem) {
  const Cluster hosts = cluster_of_hosts(parse_hostfile("n1 slots=2 type=A40\nn2 type=T4", "h"), "x");
  const Cluster file = parse_cluster(
      parse_yaml("{name: x, nodes: [{name: n1, devices: [A40 x2]}, {name: n2, devices: [T4]}]}", "c"), "c ");
  EXPECT_EQ(to_json(hosts), to_json(file));
}

TEST(Hostfile, YamlAndJsonFilesAreClusterFiles) {
  const WorkFolder folder;
  for (const char* name : {"c.yaml", "c.yml", "c.json"})
    EXPECT_EQ(load_cluster(folder.file(name, "{nodes: [{devices: [A40]}]}")).num_devices(), 1) << name;
}

TEST(Hostfile, ErrorsNameTheLine) {
  EXPECT_TRUE(hosts_error("n1 type=A40\nn2 type=V10\n").starts_with("[hosts:2] unknown device type \"V10\""))
      << hosts_error("n1 type=A40\nn2 type=V10\n");
  EXPECT_TRUE(
      hosts_error("n1 type=Mine")
          .ends_with(" A hostfile names types of the catalogue. A cluster file (.yaml) may describe its "
                     "own: device_types: [{name: Mine, like: A10, memory_gib: 24}] (docs/tour.md)"))
      << hosts_error("n1 type=Mine");
  EXPECT_EQ(hosts_error("# x\nn1 slots=0 type=A40"),
            "[hosts:2] slots: got \"0\", expected a number from 1 to 65536");
  EXPECT_EQ(hosts_error("n1 slots=two"), "[hosts:1] slots: got \"two\", expected a number from 1 to 65536");
  EXPECT_EQ(hosts_error("n1 slots="), "[hosts:1] slots: got \"\", expected a number from 1 to 65536");
  EXPECT_EQ(hosts_error("n1 type=A40\n\nn2 type=A40\nn1 type=V100"),
            "[hosts:4] host n1 is there twice, first in hosts:1");
  EXPECT_EQ(hosts_error("n1 slots=2"),
            "[hosts:1] host n1 has no type, expected what its devices are, such as n1 slots=2 type=A40");
  EXPECT_EQ(hosts_error("# nobody\n"), "[hosts] no hosts, expected lines such as \"n1 slots=2 type=A40\"");
}

TEST(Hostfile, NamesThatALauncherOrATerminalWouldObeyAreRefused) {
  for (const std::string name : {"-oProxyCommand=x", "--hostfile", "-", "n\x1b[2J", "n\x7f"}) {
    const std::string error = hosts_error(name + " type=A40");
    EXPECT_TRUE(error.starts_with("[hosts:1] got ")) << error;
    EXPECT_EQ(error.find('\x1b'), std::string::npos) << error;
  }
  EXPECT_EQ(
      hosts_error("--hostfile type=A40"),
      "[hosts:1] got host \"--hostfile\", expected a name that does not begin with - and has no control "
      "characters");
  EXPECT_EQ(hosts_error("n-1 type=A40"), "no error");
}

TEST(Hostfile, AnythingElseIsNoHostfile) {
  for (const char* text : {"n1 slots=2 type=A40 gpus=4", "n1 2", "slots=2", "nodes:", "{nodes: []}"}) {
    EXPECT_TRUE(hosts_error(text).starts_with("[hosts:1] got \"")) << text << ": " << hosts_error(text);
    EXPECT_NE(hosts_error(text).find("expected a line such as \"n1 slots=2 type=A40\""), std::string::npos)
        << text;
  }
}

TEST(Hostfile, LaunchersGetNamesAndSlots) {
  EXPECT_EQ(launcher_hostfile(parse_hostfile("n1 slots=2 type=A40 # new\n\nn2 type=V100\nn3 slots=4\n", "h")),
            "n1 slots=2\nn2 slots=1\nn3 slots=4\n");
}

}  // namespace
}  // namespace hetermoe
