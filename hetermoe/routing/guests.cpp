#include "hetermoe/routing/guests.h"

#include <algorithm>
#include <tuple>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// A way to relieve a device: copies of an expert go over to another one.
struct Relief {
  i64 copies = 0;
  bool is_guest = false;  ///< the other device does not run the expert yet
  std::size_t expert = 0, to = 0;
};

class Greedy {
 public:
  Greedy(const Hosts& hosts, const WholeSplit& start, const std::vector<i64>& speeds, const GuestRoom& room)
      : speeds_(speeds),
        room_(room),
        num_devices_(speeds.size()),
        load_(num_devices_, 0),
        slots_(num_devices_, room.slots),
        runs_(hosts.size() * num_devices_, 0),
        copies_(hosts.size() * num_devices_, 0),
        hosts_(hosts) {
    for (std::size_t e = 0; e < hosts.size(); ++e) {
      for (std::size_t h = 0; h < hosts[e].size(); ++h) {
        const std::size_t device = idx(hosts[e][h]);
        runs_[e * num_devices_ + device] = 1;
        copies_[e * num_devices_ + device] = start.copies[e][h];
        load_[device] += start.copies[e][h];
      }
    }
  }

  void run() {
    for (std::size_t d = 0; d < num_devices_; ++d) {
      if (std::find(room_.nodes.begin(), room_.nodes.begin() + static_cast<std::ptrdiff_t>(d),
                    room_.nodes[d]) == room_.nodes.begin() + static_cast<std::ptrdiff_t>(d))
        level(room_.nodes[d]);
    }
  }
  const Hosts& hosts() const { return hosts_; }

 private:
  /// Moves that only shift copies between instances are left to the exact split when they come to nothing
  /// new for so long.
  static constexpr i64 kMostMovesWithoutGuest = 32;

  void level(NodeId node) {
    for (i64 moves = 0; moves < kMostMovesWithoutGuest; ++moves) {
      const std::size_t from = latest(node);
      const Relief best = best_relief(node, from);
      if (best.copies == 0) return;
      copies_[best.expert * num_devices_ + from] -= best.copies;
      copies_[best.expert * num_devices_ + best.to] += best.copies;
      load_[from] -= best.copies;
      load_[best.to] += best.copies;
      if (!best.is_guest) continue;
      moves = 0;
      runs_[best.expert * num_devices_ + best.to] = 1;
      --slots_[best.to];
      hosts_[best.expert].push_back(static_cast<i32>(best.to));
    }
  }

  std::size_t latest(NodeId node) const {
    std::size_t latest = num_devices_;
    for (std::size_t d = 0; d < num_devices_; ++d) {
      if (room_.nodes[d] != node) continue;
      if (latest == num_devices_ || load_[d] * speeds_[latest] > load_[latest] * speeds_[d]) latest = d;
    }
    return latest;
  }

  /// a is better than b.
  bool better(const Relief& a, const Relief& b) const {
    if (a.copies != b.copies) return a.copies > b.copies;
    if (a.is_guest != b.is_guest) return b.is_guest;
    const i64 end_a = (load_[a.to] + a.copies) * speeds_[b.to],
              end_b = (load_[b.to] + b.copies) * speeds_[a.to];
    return std::tuple(end_a, a.expert, a.to) < std::tuple(end_b, b.expert, b.to);
  }

  Relief best_relief(NodeId node, std::size_t from) const {
    Relief best;
    for (std::size_t to = 0; to < num_devices_; ++to) {
      if (to == from || room_.nodes[to] != node) continue;
      // So many that neither is later than `from` was.
      const i64 gap = (load_[from] * speeds_[to] - load_[to] * speeds_[from]) / (speeds_[from] + speeds_[to]);
      if (gap <= 0 || gap < best.copies) continue;
      const i64 least = room_.cost.empty() ? 1 : std::max<i64>(1, room_.cost[from]);
      for (std::size_t e = 0; e < hosts_.size(); ++e) {
        const i64 copies = std::min(gap, copies_[e * num_devices_ + from]);
        if (copies == 0 || copies < best.copies) continue;
        const bool is_guest = runs_[e * num_devices_ + to] == 0;
        if (is_guest && (slots_[to] == 0 || copies < least)) continue;
        const Relief relief = {copies, is_guest, e, to};
        if (better(relief, best)) best = relief;
      }
    }
    return best;
  }

  const std::vector<i64>& speeds_;
  const GuestRoom& room_;
  std::size_t num_devices_;
  std::vector<i64> load_, slots_;  // [devices]
  std::vector<char> runs_;         // [experts * devices]
  std::vector<i64> copies_;        // [experts * devices]
  Hosts hosts_;
};

/// Takes guests without copies out, and lists the others.
void tidy(GuestSplit& out, const Hosts& before) {
  for (std::size_t e = 0; e < before.size(); ++e) {
    for (std::size_t h = out.hosts[e].size(); h-- > before[e].size();) {
      if (out.split.copies[e][h] > 0) continue;
      out.hosts[e].erase(out.hosts[e].begin() + static_cast<std::ptrdiff_t>(h));
      out.split.copies[e].erase(out.split.copies[e].begin() + static_cast<std::ptrdiff_t>(h));
    }
    for (std::size_t h = before[e].size(); h < out.hosts[e].size(); ++h)
      out.guests.push_back({static_cast<i32>(e), out.hosts[e][0], out.hosts[e][h]});
  }
}

/// Every device ends earlier than the division without guests does, each guest's cost included.
bool is_earlier(const GuestSplit& with, const std::vector<i64>& speeds, const GuestRoom& room,
                const WholeSplit& without) {
  std::vector<i64> load(speeds.size(), 0);
  for (std::size_t e = 0; e < with.hosts.size(); ++e) {
    for (std::size_t h = 0; h < with.hosts[e].size(); ++h)
      load[idx(with.hosts[e][h])] += with.split.copies[e][h];
  }
  for (const Guest& guest : with.guests)
    load[idx(guest.to)] += room.cost.empty() ? 0 : room.cost[idx(guest.to)];
  for (std::size_t d = 0; d < speeds.size(); ++d) {
    if (load[d] * without.den >= speeds[d] * without.num) return false;
  }
  return true;
}

}  // namespace

GuestSplit split_with_guests(const std::vector<i64>& copies, const Hosts& hosts,
                             const std::vector<i64>& speeds, const GuestRoom& room) {
  HM_CHECK(room.nodes.size() == speeds.size(), "{} nodes for {} devices", room.nodes.size(), speeds.size());
  const WholeSplit without = whole_split(copies, hosts, speeds);
  Greedy greedy(hosts, without, speeds, room);
  greedy.run();
  GuestSplit out;
  out.hosts = greedy.hosts();
  out.split = whole_split(copies, out.hosts, speeds);
  tidy(out, hosts);
  if (out.guests.empty() || !is_earlier(out, speeds, room, without)) return {hosts, {}, without};
  return out;
}

}  // namespace hetermoe
