#include "hetermoe/train/session/ranks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/comm/transports.h"
#include "hetermoe/report/table.h"
#include "hetermoe/train/session/session.h"

namespace hetermoe {
namespace {

/// Drivers report less than the data sheet: they keep some memory, and error correction takes its part.
constexpr double kLeastMemory = 0.85, kMostMemory = 1.1;

/// Exact: the memory is that of the type. Otherwise more of it serves as well.
enum class Fit { kExact, kAtLeast };

bool fits(const RankGpu& gpu, const WantedGpu& wanted, Fit fit) {
  const bool other_chip = gpu.capability > 0 && wanted.capability > 0 && gpu.capability != wanted.capability;
  if (other_chip || gpu.memory < kLeastMemory * wanted.memory) return false;
  return fit == Fit::kAtLeast || gpu.memory <= kMostMemory * wanted.memory;
}

/// Finds ranks for devices, each rank once, by augmenting paths.
class Matching {
 public:
  Matching(const std::vector<RankGpu>& found, const std::vector<WantedGpu>& wanted, Fit fit)
      : found_(found), wanted_(wanted), fit_(fit), device_of_(found.size(), -1) {}

  /// Gives the wanted devices of these numbers ranks out of `ranks`, which have none yet. Gives none and
  /// returns false when that cannot be.
  bool place(const std::vector<i32>& devices, const std::vector<i32>& ranks) {
    const std::vector<i32> before = device_of_;
    for (const i32 device : devices) {
      std::vector<bool> tried(found_.size(), false);
      if (augment(device, ranks, tried)) continue;
      device_of_ = before;
      return false;
    }
    return true;
  }
  std::vector<i32> free_ranks() const {
    std::vector<i32> free;
    for (i32 r = 0; r < static_cast<i32>(device_of_.size()); ++r) {
      if (device_of_[idx(r)] < 0) free.push_back(r);
    }
    return free;
  }
  std::vector<i32> rank_of_devices() const {
    std::vector<i32> ranks(wanted_.size(), -1);
    for (i32 r = 0; r < static_cast<i32>(device_of_.size()); ++r) {
      if (device_of_[idx(r)] >= 0) ranks[idx(device_of_[idx(r)])] = r;
    }
    return ranks;
  }

 private:
  bool augment(i32 device, const std::vector<i32>& ranks, std::vector<bool>& tried) {
    for (const bool displaces : {false, true}) {  // who has a rank keeps it where that can be
      for (const i32 rank : ranks) {
        i32& holder = device_of_[idx(rank)];
        if ((holder >= 0) != displaces || tried[idx(rank)]) continue;
        if (!fits(found_[idx(rank)], wanted_[idx(device)], fit_)) continue;
        tried[idx(rank)] = true;
        if (displaces && !augment(holder, ranks, tried)) continue;
        holder = device;
        return true;
      }
    }
    return false;
  }

  const std::vector<RankGpu>& found_;
  const std::vector<WantedGpu>& wanted_;
  Fit fit_;
  std::vector<i32> device_of_;  // [rank] position in wanted_, -1 = free
};

bool keeps_order(const std::vector<RankGpu>& found, const std::vector<WantedGpu>& wanted, Fit fit) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!fits(found[i], wanted[i], fit)) return false;
  }
  return true;
}

/// Puts the devices of each node onto ranks of one host.
bool place_by_node(Matching& matching, const std::vector<RankGpu>& found,
                   const std::vector<WantedGpu>& wanted) {
  std::map<NodeId, std::vector<i32>> nodes;
  for (std::size_t i = 0; i < wanted.size(); ++i) nodes[wanted[i].node].push_back(static_cast<i32>(i));
  for (const auto& [node, devices] : nodes) {
    std::vector<std::string> hosts;  // in rank order
    std::map<std::string, std::vector<i32>> free;
    for (const i32 rank : matching.free_ranks()) {
      const std::string& host = found[idx(rank)].host;
      if (free[host].empty()) hosts.push_back(host);
      free[host].push_back(rank);
    }
    const bool placed = std::any_of(hosts.begin(), hosts.end(), [&, &of_node = devices](const auto& host) {
      return matching.place(of_node, free[host]);
    });
    if (!placed) return false;
  }
  return true;
}

std::string capability_text(i32 capability) {
  return capability > 0 ? fmt::format(", compute capability {}.{}", capability / 10, capability % 10) : "";
}

[[noreturn]] void refuse(const std::vector<RankGpu>& found, const std::vector<WantedGpu>& wanted) {
  std::vector<std::string> have, need;
  for (std::size_t r = 0; r < found.size(); ++r) {
    have.push_back(fmt::format("rank {}: {} ({}{}) on {}", r, found[r].name, format_bytes(found[r].memory),
                               capability_text(found[r].capability), found[r].host));
  }
  for (const WantedGpu& one : wanted) {
    need.push_back(fmt::format("device {}: {} ({}{})", one.device, one.name, format_bytes(one.memory),
                               capability_text(one.capability)));
  }
  fail<ConfigError>("cluster",
                    "the GPUs of the ranks are not those that the plan needs:\n  got {}\n  expected {}\n"
                    "Correct the cluster file, or start the ranks on hosts that have these GPUs.",
                    fmt::join(have, "; "), fmt::join(need, "; "));
}

/// In the order of nodes, which may differ in size.
std::vector<i32> a_rank_for_each_node(const std::vector<DeviceId>& working, const Cluster& cluster) {
  std::map<NodeId, i32> ranks;
  for (const DeviceId device : working) ranks[cluster.devices[idx(device)].node] = 0;
  i32 next = 0;
  for (auto& [node, rank] : ranks) rank = next++;
  std::vector<i32> rank_of(idx(cluster.num_devices()), kNoRank);
  for (const DeviceId device : working) rank_of[idx(device)] = ranks[cluster.devices[idx(device)].node];
  return rank_of;
}

bool is_like(const RankGpu& a, const RankGpu& b) { return a.name == b.name && a.capability == b.capability; }

}  // namespace

std::vector<DeviceId> working_devices(const Plan& plan) {
  const std::vector<std::string> roles = roles_of(plan);
  std::vector<DeviceId> devices = devices_of(plan);
  std::erase_if(devices, [&](DeviceId device) { return roles[idx(device)] == "idle"; });
  return devices;
}

std::vector<i32> ranks_of_devices(const Plan& plan, const Cluster& cluster, i32 num_ranks) {
  const std::vector<const Plan*> plans = {&plan};
  return ranks_of_devices(plans, cluster, num_ranks);
}

std::vector<i32> ranks_of_devices(std::span<const Plan* const> plans, const Cluster& cluster, i32 num_ranks) {
  std::set<DeviceId> used;
  for (const Plan* plan : plans) {
    for (const DeviceId device : working_devices(*plan)) used.insert(device);
  }
  const std::vector<DeviceId> working(used.begin(), used.end());
  const auto num_busy = [](const Plan& plan, const std::vector<i32>& rank_of) {
    std::set<i32> busy;
    for (const DeviceId device : working_devices(plan)) busy.insert(rank_of[idx(device)]);
    return static_cast<i32>(busy.size());
  };
  const std::vector<i32> by_node = a_rank_for_each_node(working, cluster);
  if (std::ranges::all_of(plans, [&](const Plan* plan) { return num_busy(*plan, by_node) == num_ranks; }))
    return by_node;
  std::vector<i32> rank_of = spread_working_devices(working, cluster.num_devices(), num_ranks);
  for (std::size_t p = 0; p < plans.size(); ++p) {
    const i32 busy = num_busy(*plans[p], rank_of);
    if (busy == num_ranks) continue;
    fail<ConfigError>(
        p == 0 ? "plan" : "train.changes",
        "plan {} of {} gives only {} of {} processes a device, expected all: a device stays with "
        "its process through all plans. Start fewer processes",
        p + 1, plans.size(), busy, num_ranks);
  }
  return rank_of;
}

std::vector<i32> assign_ranks(const std::vector<RankGpu>& found, const std::vector<WantedGpu>& wanted) {
  HM_CHECK(found.size() >= wanted.size(), "{} ranks for {} devices", found.size(), wanted.size());
  std::vector<i32> all(wanted.size()), ranks(found.size());
  std::iota(all.begin(), all.end(), 0);
  std::iota(ranks.begin(), ranks.end(), 0);
  for (const Fit fit : {Fit::kExact, Fit::kAtLeast}) {
    if (keeps_order(found, wanted, fit)) return all;
    Matching by_node(found, wanted, fit);
    if (place_by_node(by_node, found, wanted)) return by_node.rank_of_devices();
    Matching anywhere(found, wanted, fit);
    if (anywhere.place(all, ranks)) return anywhere.rank_of_devices();
  }
  refuse(found, wanted);
}

std::vector<i32> assign_gpus(const std::vector<RankGpu>& found, const std::vector<WantedGpu>& wanted,
                             i32 first) {
  const auto other = std::ranges::find_if(found, [&](const RankGpu& gpu) { return !is_like(gpu, found[0]); });
  if (other != found.end()) {
    if (wanted.size() <= found.size()) return assign_ranks(found, wanted);
    fail<ConfigError>("run.device",
                      "a process has {} of two kinds ({}, {}) for {}: expected a GPU for each device. Start "
                      "more processes, or name one GPU: --run.device cuda:0",
                      counted(found.size(), "GPU"), found[0].name, other->name,
                      counted(wanted.size(), "device"));
  }
  std::vector<i32> gpus;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    gpus.push_back((first + static_cast<i32>(i)) % static_cast<i32>(found.size()));
  return gpus;
}

std::vector<WantedGpu> wanted_gpus(const Plan& plan, const Cluster& cluster) {
  std::vector<WantedGpu> wanted;
  for (const DeviceId device : devices_of(plan)) {
    const DeviceType& type = cluster.type_of(device);
    wanted.push_back({.device = device,
                      .node = cluster.devices[idx(device)].node,
                      .name = cluster.device_name(device),
                      .capability = static_cast<i32>(std::lround(10 * type.compute_capability)),
                      .memory = type.memory_bytes()});
  }
  return wanted;
}

std::vector<RankGpu> gather_gpus(const Processes& processes, const RankGpu& mine) {
  const Json told = {
      {"host", mine.host}, {"name", mine.name}, {"capability", mine.capability}, {"memory", mine.memory}};
  std::vector<RankGpu> all;
  for (const std::string& text : processes.gather(told.dump())) {
    const Json one = Json::parse(text);
    all.push_back({.host = one.at("host"),
                   .name = one.at("name"),
                   .capability = one.at("capability"),
                   .memory = one.at("memory")});
  }
  return all;
}

}  // namespace hetermoe
