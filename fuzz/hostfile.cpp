#include "hetermoe/cluster/hostfile.h"

#include "fuzz/target.h"

// A hostfile of mpirun with device types.
namespace hetermoe::fuzz {
namespace {

void run(const std::string& input) {
  const std::vector<Host> hosts = parse_hostfile(input, "hosts");
  parse_hostfile(launcher_hostfile(hosts), "written");
  to_json(cluster_of_hosts(hosts, "hosts"));
}

std::vector<std::string> seeds() {
  return {"# new machines\nn1 slots=2 type=A40\nn2 slots=4 type=V100\n",
          "10.0.0.1 slots=8 type=H100\n\n10.0.0.2   slots=1\ttype=v100 # old\n", "host\n"};
}

}  // namespace

extern const Target kHostfile{"hostfile", run, seeds};

}  // namespace hetermoe::fuzz
