#include "hetermoe/balance/locality.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/balance/eplb.h"
#include "hetermoe/balance/swap_gain.h"
#include "hetermoe/base/index.h"
#include "hetermoe/base/json.h"
#include "hetermoe/routing/metrics.h"

namespace hetermoe {
namespace {

constexpr double kTiny = 1e-9;  ///< of copies: less is rounding

std::vector<double> load_of(const Usage& usage) {
  std::vector<double> load(usage[0].size(), 0);
  for (const std::vector<double>& of_group : usage) {
    for (std::size_t e = 0; e < load.size(); ++e) load[e] += of_group[e];
  }
  return load;
}

/// Adds one expert after another, each by the way that costs least: it may push experts on from group to
/// group until one has room.
class Transport {
 public:
  Transport(const Usage& usage, const std::vector<i64>& room)
      : usage_(usage), room_(room), of_(usage[0].size(), -1) {}

  std::vector<i32> run() {
    for (std::size_t e = 0; e < of_.size(); ++e) add(e);
    return of_;
  }

 private:
  /// Which expert of x goes to y most cheaply, and what usage that loses.
  std::pair<double, std::size_t> cheapest(std::size_t x, std::size_t y) const {
    std::pair<double, std::size_t> best{1e300, 0};
    for (std::size_t e = 0; e < of_.size(); ++e) {
      if (of_[e] != static_cast<i32>(x)) continue;
      best = std::min(best, std::pair{usage_[x][e] - usage_[y][e], e});
    }
    return best;
  }

  void add(std::size_t expert) {
    const std::size_t num = usage_.size();
    std::vector<double> cost(num);
    std::vector<i64> before(num, -1);  // group from which an expert is pushed here
    std::vector<std::vector<std::pair<double, std::size_t>>> push(num);
    for (std::size_t x = 0; x < num; ++x) {
      cost[x] = -usage_[x][expert];
      for (std::size_t y = 0; y < num; ++y)
        push[x].push_back(x == y ? std::pair{1e300, std::size_t{0}} : cheapest(x, y));
    }
    bool better = true;
    for (std::size_t round = 0; round < num && better; ++round) {
      better = false;
      for (std::size_t x = 0; x < num; ++x) {
        for (std::size_t y = 0; y < num; ++y) {
          if (cost[x] + push[x][y].first >= cost[y] - kTiny) continue;
          cost[y] = cost[x] + push[x][y].first;
          before[y] = static_cast<i64>(x);
          better = true;
        }
      }
    }
    std::size_t last = num;
    for (std::size_t g = 0; g < num; ++g) {
      if (room_[g] > 0 && (last == num || cost[g] < cost[last] - kTiny)) last = g;
    }
    HM_CHECK(last < num, "no room for an expert");
    --room_[last];
    while (before[last] >= 0) {
      const std::size_t from = idx(before[last]);
      of_[push[from][last].second] = static_cast<i32>(last);
      last = from;
    }
    of_[expert] = static_cast<i32>(last);
  }

  const Usage& usage_;
  std::vector<i64> room_;
  std::vector<i32> of_;  // [experts]
};

/// Swaps of two experts that keep within the cap.
class Swaps {
 public:
  Swaps(const Usage& usage, const std::vector<double>& speeds, double cap, std::vector<i32> group)
      : usage_(usage),
        speeds_(speeds),
        load_(load_of(usage)),
        group_(std::move(group)),
        of_group_(speeds.size(), 0) {
    for (std::size_t e = 0; e < load_.size(); ++e) of_group_[idx(group_[e])] += load_[e];
    const double mean =
        std::accumulate(load_.begin(), load_.end(), 0.0) / std::accumulate(speeds.begin(), speeds.end(), 0.0);
    most_ = cap * mean * (1 + kTiny);
  }

  /// Brings groups below the cap, at the least loss. False: no swap helps any more.
  bool repair() {
    for (std::size_t round = 0; round < 4 * load_.size(); ++round) {
      const std::size_t x = latest();
      if (time(x, 0) <= most_) return true;
      double best = 1e300;
      std::pair<std::size_t, std::size_t> swap{0, 0};
      for (std::size_t a = 0; a < load_.size(); ++a) {
        if (group_[a] != static_cast<i32>(x)) continue;
        for (std::size_t b = 0; b < load_.size(); ++b) {
          const std::size_t y = idx(group_[b]);
          const double moved = load_[a] - load_[b];
          if (y == x || moved <= 0 || time(y, moved) > std::max(most_, time(x, -moved))) continue;
          const double loss = -gain(a, b) / std::min(moved, (time(x, 0) - most_) * speeds_[x]);
          if (loss < best) best = loss, swap = {a, b};
        }
      }
      if (best == 1e300) return false;
      exchange(swap.first, swap.second);
    }
    return time(latest(), 0) <= most_;
  }

  void improve() {
    for (bool better = true; better;) {
      better = false;
      for (std::size_t a = 0; a < load_.size(); ++a) {
        for (std::size_t b = a + 1; b < load_.size(); ++b) {
          const std::size_t x = idx(group_[a]), y = idx(group_[b]);
          if (x == y || !swap_gains(usage_[x][a], usage_[y][a], usage_[x][b], usage_[y][b])) continue;
          const double moved = load_[a] - load_[b];
          if (time(x, -moved) > std::max(most_, time(x, 0)) || time(y, moved) > std::max(most_, time(y, 0)))
            continue;
          exchange(a, b);
          better = true;
        }
      }
    }
  }
  const std::vector<i32>& group() const { return group_; }

 private:
  double time(std::size_t group, double more) const { return (of_group_[group] + more) / speeds_[group]; }
  std::size_t latest() const {
    std::size_t latest = 0;
    for (std::size_t g = 1; g < speeds_.size(); ++g) latest = time(g, 0) > time(latest, 0) ? g : latest;
    return latest;
  }
  double gain(std::size_t a, std::size_t b) const {
    const std::size_t x = idx(group_[a]), y = idx(group_[b]);
    return usage_[y][a] + usage_[x][b] - usage_[x][a] - usage_[y][b];
  }
  void exchange(std::size_t a, std::size_t b) {
    of_group_[idx(group_[a])] += load_[b] - load_[a];
    of_group_[idx(group_[b])] += load_[a] - load_[b];
    std::swap(group_[a], group_[b]);
  }

  const Usage& usage_;
  const std::vector<double>& speeds_;
  std::vector<double> load_;
  std::vector<i32> group_;
  std::vector<double> of_group_;
  double most_ = 0;
};

}  // namespace

std::vector<std::vector<DeviceId>> device_groups(const std::string& text, const Cluster& cluster,
                                                 const std::vector<DeviceId>& devices) {
  std::vector<std::vector<DeviceId>> out;
  if (text == "node" || text == "device") {
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const bool same =
          text == "node" && i > 0 && cluster.node_of(devices[i]) == cluster.node_of(devices[i - 1]);
      if (!same) out.emplace_back();
      out.back().push_back(devices[i]);
    }
    return out;
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto wrong = [&](const std::string& why) {
    fail<ConfigError>("groups", "got {}, expected node, device or lists of devices, as [[0,1],[2,3]]: {}",
                      text, why);
  };
  if (!json.is_array() || json.empty()) wrong("that is no such list");
  std::vector<i64> seen(idx(cluster.num_devices()), 0);
  for (const Json& group : json) {
    if (!group.is_array() || group.empty()) wrong("a group is no list of devices");
    out.emplace_back();
    for (const Json& device : group) {
      if (!device.is_number_integer() || device.get<i64>() < 0 || device.get<i64>() >= cluster.num_devices())
        wrong(fmt::format("{} is no device of cluster {}", device.dump(), cluster.name));
      out.back().push_back(device.get<DeviceId>());
      if (++seen[idx(out.back().back())] > 1) wrong(fmt::format("device {} is in it twice", device.dump()));
    }
  }
  for (const DeviceId device : devices) {
    if (seen[idx(device)] == 0)
      wrong(fmt::format("device {} ({}) of the plan is in no group", device, cluster.device_name(device)));
  }
  return out;
}

void check_load_cap(const std::string& where, double cap) {
  if (cap == 0 || cap >= 1) return;
  fail<ConfigError>(
      where, "got {}, expected 0 (none) or at least 1, at which all device groups take equally long", cap);
}

double copies_outside(const Usage& usage, const std::vector<i32>& group) {
  double all = 0, home = 0;
  for (std::size_t g = 0; g < usage.size(); ++g) {
    for (std::size_t e = 0; e < group.size(); ++e) {
      all += usage[g][e];
      home += group[e] == static_cast<i32>(g) ? usage[g][e] : 0;
    }
  }
  return all - home;
}

std::vector<i32> place_greedy(const Usage& usage, const std::vector<i64>& room) {
  const std::vector<double> load = load_of(usage);
  std::vector<double> preference;
  for (std::size_t e = 0; e < load.size(); ++e) {
    double most = 0;
    for (const std::vector<double>& of_group : usage) most = std::max(most, of_group[e]);
    preference.push_back(real(usage.size()) * most - load[e]);
  }
  std::vector<std::size_t> order(load.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return preference[a] > preference[b]; });
  std::vector<i64> left = room;
  std::vector<i32> out(load.size(), 0);
  for (const std::size_t e : order) {
    std::size_t best = usage.size();
    for (std::size_t g = 0; g < usage.size(); ++g) {
      if (left[g] > 0 && (best == usage.size() || usage[g][e] > usage[best][e])) best = g;
    }
    HM_CHECK(best < usage.size(), "no room for an expert");
    --left[best];
    out[e] = static_cast<i32>(best);
  }
  return out;
}

std::vector<i32> place_exact(const Usage& usage, const std::vector<i64>& room) {
  return Transport(usage, room).run();
}

std::vector<i32> place_by_load(const Usage& usage, const std::vector<i64>& room,
                               const std::vector<double>& speeds) {
  std::vector<EplbDevice> groups;
  for (std::size_t g = 0; g < speeds.size(); ++g) groups.push_back({speeds[g], room[g]});
  std::vector<i32> out(usage[0].size(), 0);
  const std::vector<std::vector<ExpertId>> slots = weighted_eplb_slots(load_of(usage), groups);
  for (std::size_t g = 0; g < slots.size(); ++g) {
    for (const ExpertId e : slots[g]) out[idx(e)] = static_cast<i32>(g);
  }
  return out;
}

double group_ratio(const std::vector<double>& load, const std::vector<double>& speeds,
                   const std::vector<i32>& group) {
  std::vector<double> of_group(speeds.size(), 0);
  for (std::size_t e = 0; e < load.size(); ++e) of_group[idx(group[e])] += load[e];
  return time_ratio(of_group, speeds).value_or(1);
}

CappedPlacement place_capped(const Usage& usage, const std::vector<i64>& room,
                             const std::vector<double>& speeds, double cap) {
  const std::vector<double> load = load_of(usage);
  Swaps by_load(usage, speeds, cap, place_by_load(usage, room, speeds));
  CappedPlacement out{by_load.group(), group_ratio(load, speeds, by_load.group()), true};
  out.capped = out.ratio <= cap * (1 + kTiny);
  by_load.improve();
  out.group = by_load.group();
  Swaps exact(usage, speeds, cap, place_exact(usage, room));
  if (exact.repair()) {
    exact.improve();
    out.capped = true;
    if (copies_outside(usage, exact.group()) < copies_outside(usage, out.group) - kTiny)
      out.group = exact.group();
  }
  out.ratio = group_ratio(load, speeds, out.group);
  return out;
}

std::vector<i64> group_room(i64 num_experts, const std::vector<double>& speeds) {
  return slots_by_speed(speeds, std::vector<i64>(speeds.size(), num_experts), num_experts);
}

/// With no groups or nobody's usage known, as lpt.
std::vector<LayerOwners> place_locality(const BalanceInput& input) {
  if (input.usage.empty() || input.device_groups.size() < 2) return find_balancer("lpt").place(input);
  const std::vector<BalanceDevice> owning = owning_devices(input);
  std::vector<std::vector<BalanceDevice>> devices;
  std::vector<double> speeds;
  for (const std::vector<DeviceId>& group : input.device_groups) {
    devices.emplace_back();
    double speed = 0;
    for (const BalanceDevice& device : owning) {
      if (std::find(group.begin(), group.end(), device.id) == group.end()) continue;
      devices.back().push_back(device);
      speed += device.speed();
    }
    speeds.push_back(std::max(speed, kTiny));
  }
  std::vector<LayerOwners> out;
  for (const Usage& usage : input.usage) {
    const auto num_experts = static_cast<i64>(usage[0].size());
    const std::vector<i64> room = group_room(num_experts, speeds);
    const std::vector<i32> group = input.load_cap > 0
                                       ? place_capped(usage, room, speeds, input.load_cap).group
                                       : place_exact(usage, room);
    const std::vector<double> load = load_of(usage);
    out.emplace_back(usage[0].size());
    for (std::size_t g = 0; g < devices.size(); ++g) {
      std::vector<std::size_t> experts;
      BalanceInput inside = input;
      inside.devices = devices[g];
      inside.load = {{}};
      for (std::size_t e = 0; e < group.size(); ++e) {
        if (group[e] != static_cast<i32>(g)) continue;
        experts.push_back(e);
        inside.load[0].push_back(load[e]);
      }
      if (experts.empty()) continue;
      const LayerOwners owners = find_balancer("lpt").place(inside)[0];
      for (std::size_t i = 0; i < experts.size(); ++i) out.back()[experts[i]] = owners[i];
    }
  }
  return out;
}

}  // namespace hetermoe
