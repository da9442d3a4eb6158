#include "hetermoe/cluster/assumed_links.h"

#include <gtest/gtest.h>

#include "hetermoe/cluster/cluster.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

TEST(AssumedLinks, AreSaidWhereNobodyStatesThem) {
  const WorkFolder folder;
  const auto assumed = [&](const char* name, const std::string& text) {
    return assumed_links(folder.file(name, text));
  };
  const std::string both = assumed("hosts", "a slots=8 type=H100\nb slots=8 type=H100\n");
  EXPECT_EQ(
      both,
      "Links assumed, as hosts does not state them: 100 Gbit/s of network a node, 20 GB/s between devices "
      "of a node (network_gbit_s, local_gb_s of a cluster file)");
  const std::string network = assumed("n.yaml", "{local_gb_s: 450, nodes: [{count: 2, devices: [H100 x8]}]}");
  EXPECT_NE(network.find("100 Gbit/s"), network.npos);
  EXPECT_EQ(network.find("20 GB/s"), network.npos);
  const std::string local = assumed("l.yaml", "{nodes: [{devices: [H100 x8]}]}");
  EXPECT_EQ(local.find("100 Gbit/s"), local.npos) << "one node has no network";
  EXPECT_NE(local.find("20 GB/s"), local.npos);
  EXPECT_EQ(assumed("one.yaml", "{nodes: [{devices: [H100]}]}"), "");
  EXPECT_EQ(assumed("own.yaml", "{nodes: [{count: 2, devices: [T4 x2], network_gbit_s: 10, local_gb_s: 5}]}"),
            "");
}

TEST(AssumedLinks, OfShippedClustersAreStatedWhereTheyMatter) {
  EXPECT_EQ(assumed_links("demo"), "");
  EXPECT_EQ(assumed_links("h100-v100"), "");
}

}  // namespace
}  // namespace hetermoe
