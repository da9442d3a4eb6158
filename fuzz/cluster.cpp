#include "hetermoe/cluster/cluster.h"
#include "fuzz/target.h"

// A cluster file in YAML.
namespace hetermoe::fuzz {
namespace {

void run(const std::string& input) {
  const Cluster cluster = parse_cluster(parse_yaml(input, "cluster.yaml"), "cluster.yaml");
  const Json written = to_json(cluster);
  expect_same(written.dump(), to_json(parse_cluster(written, "written")).dump(), "a cluster");
}

std::vector<std::string> seeds() { return config_texts("clusters", "yaml"); }

}  // namespace

extern const Target kCluster{"cluster", run, seeds};

}  // namespace hetermoe::fuzz
