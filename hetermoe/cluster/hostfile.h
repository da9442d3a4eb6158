#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "hetermoe/cluster/cluster.h"

// The file that mpirun and its like take, a line per host, with the type of its devices beside their number:
//
//   # new machines
//   n1 slots=2 type=A40
//   n2 slots=4 type=V100
namespace hetermoe {

/// A line of a hostfile.
struct Host {
  std::string name;
  i32 slots = 1;      ///< devices, and processes that a launcher starts there
  std::string type;   ///< of all its devices, a name of the catalogue; empty = not said
  std::string where;  ///< "hosts:3"
};

/// A file is a hostfile unless its name ends in .yaml, .yml or .json.
bool is_hostfile(const std::filesystem::path& path);

/// `where` is the name of the file, for errors. Throws ConfigError with the line.
std::vector<Host> parse_hostfile(const std::string& text, const std::string& where);
std::vector<Host> read_hostfile(const std::filesystem::path& path);  ///< IoError when it cannot be read

/// The hosts as text that launchers understand: names and slots without types.
std::string launcher_hostfile(const std::vector<Host>& hosts);

/// Makes a cluster with one node for each host, in the order of the hosts. Links have the values that a
/// cluster file without them gets. Throws ConfigError when a host has no type.
Cluster cluster_of_hosts(const std::vector<Host>& hosts, const std::string& name);

}  // namespace hetermoe
