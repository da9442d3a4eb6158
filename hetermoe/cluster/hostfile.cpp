#include "hetermoe/cluster/hostfile.h"

#include <algorithm>
#include <sstream>

#include "hetermoe/base/numbers.h"
#include "hetermoe/cluster/device_types.h"

namespace hetermoe {
namespace {

constexpr i64 kMaxSlots = 65536;

[[noreturn]] void refuse(const std::string& word, const Host& host) {
  fail<ConfigError>(host.where,
                    "got \"{}\", expected a line such as \"n1 slots=2 type=A40\". (A file whose name ends "
                    "in .yaml or .json is read as a cluster file.)",
                    word);
}

/// Launchers take a word that begins with "-" for an option of theirs.
void check_name(const Host& host) {
  if (!host.name.starts_with('-') && is_printable(host.name)) return;
  fail<ConfigError>(host.where,
                    "got host \"{}\", expected a name that does not begin with - and has no "
                    "control characters",
                    host.name);
}

/// The name as the catalogue writes it.
std::string type_of_host(const std::string& name, const std::string& where) {
  if (const DeviceType* type = find_catalogue_device(name)) return type->name;
  refuse_device_type(name, where, known_device_types(),
                     "A hostfile names types of the catalogue. A cluster file (.yaml)");
}

void read_word(const std::string& word, Host& host) {
  const std::size_t equal = std::min(word.find('='), word.size());
  const std::string key = word.substr(0, equal), value = word.substr(std::min(equal + 1, word.size()));
  if (key == "slots") {
    const std::optional<i64> slots = whole_number(value);
    if (!slots || *slots < 1 || *slots > kMaxSlots)
      fail<ConfigError>(host.where, "slots: got \"{}\", expected a number from 1 to {}", value, kMaxSlots);
    host.slots = static_cast<i32>(*slots);
  } else if (key == "type") {
    host.type = type_of_host(value, host.where);
  } else {
    refuse(word, host);
  }
}

}  // namespace

bool is_hostfile(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  std::error_code code;
  return std::filesystem::is_regular_file(path, code) && extension != ".yaml" && extension != ".yml" &&
         extension != ".json";
}

std::vector<Host> parse_hostfile(const std::string& text, const std::string& where) {
  std::vector<Host> hosts;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    Host host;
    host.where = fmt::format("{}:{}", where, number);
    if (!(words >> host.name)) continue;
    if (host.name.find_first_of("={[") != std::string::npos || host.name.ends_with(':'))
      refuse(host.name, host);
    check_name(host);
    for (std::string word; words >> word;) read_word(word, host);
    for (const Host& earlier : hosts) {
      if (earlier.name == host.name)
        fail<ConfigError>(host.where, "host {} is there twice, first in {}", host.name, earlier.where);
    }
    hosts.push_back(host);
  }
  if (hosts.empty()) fail<ConfigError>(where, "no hosts, expected lines such as \"n1 slots=2 type=A40\"");
  return hosts;
}

std::vector<Host> read_hostfile(const std::filesystem::path& path) {
  return parse_hostfile(read_text(path), path.string());
}

std::string launcher_hostfile(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& host : hosts) text += fmt::format("{} slots={}\n", host.name, host.slots);
  return text;
}

Cluster cluster_of_hosts(const std::vector<Host>& hosts, const std::string& name) {
  Json nodes = Json::array();
  for (const Host& host : hosts) {
    if (host.type.empty()) {
      fail<ConfigError>(host.where,
                        "host {} has no type, expected what its devices are, such as {} slots={} type=A40",
                        host.name, host.name, host.slots);
    }
    nodes.push_back({{"name", host.name}, {"devices", {fmt::format("{} x{}", host.type, host.slots)}}});
  }
  return parse_cluster({{"name", name}, {"nodes", nodes}}, hosts[0].where + " ");
}

}  // namespace hetermoe
