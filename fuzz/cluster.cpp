#include "hetermoe/cluster/cluster.h"
#include "fuzz/target.h"

// A cluster file in YAML.
namespace hetermoe::fuzz {
namespace {

void run(const std::string& input) {
  const Cluster cluster = parse_cluster(parse_yaml(input, "cluster.yaml"), "cluster.yaml");
  const std::string written = to_json(cluster).dump();
  expect_reads_back(written,
                    [&] { return to_json(parse_cluster(parse_json(written, "written"), "written")).dump(); });
}

std::vector<std::string> seeds() { return config_texts("clusters", "yaml"); }

}  // namespace

extern const Target kCluster{"cluster", run, seeds};

}  // namespace hetermoe::fuzz
