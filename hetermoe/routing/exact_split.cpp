#include "hetermoe/routing/exact_split.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"

// No time is less than that of some set of experts on all their hosts together. A flow from experts to hosts
// either shows that the time tried is enough, or its cut names a set that needs more; that set's time is
// tried next. Times rise strictly, so it ends.
namespace hetermoe {
namespace {

/// Copies on their way to hosts with room.
class Flow {
 public:
  Flow(const std::vector<i64>& copies, const Hosts& hosts, std::size_t num_devices)
      : left_(copies), room_(num_devices, 0), begin_(hosts.size() + 1, 0), begin_on_(num_devices + 1, 0) {
    for (std::size_t e = 0; e < hosts.size(); ++e) {
      begin_[e + 1] = begin_[e] + hosts[e].size();
      for (const i32 host : hosts[e]) {
        expert_.push_back(e);
        host_.push_back(idx(host));
        ++begin_on_[idx(host) + 1];
      }
    }
    std::partial_sum(begin_on_.begin(), begin_on_.end(), begin_on_.begin());
    on_host_.resize(host_.size());
    std::vector<std::size_t> next = begin_on_;
    for (std::size_t i = 0; i < host_.size(); ++i) on_host_[next[host_[i]]++] = i;
    sent_.assign(host_.size(), 0);
    reached_by_.resize(num_devices);
    came_over_.resize(hosts.size());
  }

  void add_room(std::size_t device, i64 copies) { room_[device] += copies; }
  /// Sends all that can be sent, on top of what was sent before. True = nothing is left.
  bool run() {
    for (std::size_t e = 0; e < left_.size(); ++e) {  // most needs no detour
      for (std::size_t i = begin_[e]; i < begin_[e + 1] && left_[e] > 0; ++i)
        send(i, std::min(left_[e], room_[host_[i]]));
    }
    while (augment()) {
    }
    return std::all_of(left_.begin(), left_.end(), [](i64 left) { return left == 0; });
  }
  /// After run(): experts from which a search for room starts or comes along.
  bool is_short_of_room(std::size_t expert) const { return came_over_[expert] != kNotSeen; }
  std::vector<std::vector<i64>> sent() const {
    std::vector<std::vector<i64>> out(left_.size());
    for (std::size_t e = 0; e < left_.size(); ++e) {
      out[e].assign(sent_.begin() + static_cast<std::ptrdiff_t>(begin_[e]),
                    sent_.begin() + static_cast<std::ptrdiff_t>(begin_[e + 1]));
    }
    return out;
  }

 private:
  static constexpr std::size_t kNotSeen = SIZE_MAX, kStart = SIZE_MAX - 1;

  void send(std::size_t place, i64 amount) {
    left_[expert_[place]] -= amount;
    sent_[place] += amount;
    room_[host_[place]] -= amount;
  }

  /// One shortest way from an expert with copies left over full hosts to one with room. False = there is
  /// none.
  bool augment() {
    std::fill(reached_by_.begin(), reached_by_.end(), kNotSeen);
    std::fill(came_over_.begin(), came_over_.end(), kNotSeen);
    queue_.clear();
    for (std::size_t e = 0; e < left_.size(); ++e) {
      if (left_[e] > 0) queue_.push_back(e), came_over_[e] = kStart;
    }
    for (std::size_t next = 0; next < queue_.size(); ++next) {
      const std::size_t e = queue_[next];
      for (std::size_t i = begin_[e]; i < begin_[e + 1]; ++i) {
        const std::size_t host = host_[i];
        if (reached_by_[host] != kNotSeen) continue;
        reached_by_[host] = i;
        if (room_[host] > 0) return push(host);
        for (std::size_t j = begin_on_[host]; j < begin_on_[host + 1]; ++j) {
          const std::size_t other = on_host_[j];
          if (sent_[other] == 0 || came_over_[expert_[other]] != kNotSeen) continue;
          came_over_[expert_[other]] = other;
          queue_.push_back(expert_[other]);
        }
      }
    }
    return false;
  }

  bool push(std::size_t last) {
    i64 amount = room_[last];
    std::size_t place = reached_by_[last];
    for (std::size_t over; (over = came_over_[expert_[place]]) != kStart; place = reached_by_[host_[over]])
      amount = std::min(amount, sent_[over]);
    amount = std::min(amount, left_[expert_[place]]);
    left_[expert_[place]] -= amount;
    room_[last] -= amount;
    for (place = reached_by_[last];; place = reached_by_[host_[came_over_[expert_[place]]]]) {
      sent_[place] += amount;
      const std::size_t over = came_over_[expert_[place]];
      if (over == kStart) return true;
      sent_[over] -= amount;
    }
  }

  std::vector<i64> left_, room_;                 // [experts], [devices]
  std::vector<std::size_t> begin_;               // [experts + 1] of their places
  std::vector<std::size_t> expert_, host_;       // [places]
  std::vector<std::size_t> begin_on_, on_host_;  // [devices + 1], [places] places by host
  std::vector<i64> sent_;                        // [places]
  std::vector<std::size_t> reached_by_;          // [devices] the place by which a host was reached
  std::vector<std::size_t> came_over_;           // [experts] the place that would give copies back
  std::vector<std::size_t> queue_;
};

struct Time {
  i64 num = 0, den = 1;
  bool operator<(const Time& other) const { return num * other.den < other.num * den; }
};

/// Experts that need more time than was tried, on all their hosts together.
struct Crowd {
  i64 copies = 0, speed = 0;
  std::vector<std::size_t> devices;
};

template <class Belongs>
Crowd crowd_of(const std::vector<i64>& copies, const Hosts& hosts, const std::vector<i64>& speeds,
               const Belongs& belongs) {
  Crowd crowd;
  std::vector<bool> counted(speeds.size(), false);
  for (std::size_t e = 0; e < copies.size(); ++e) {
    if (!belongs(e)) continue;
    crowd.copies += copies[e];
    for (const i32 host : hosts[e]) {
      if (counted[idx(host)]) continue;
      counted[idx(host)] = true;
      crowd.speed += speeds[idx(host)];
      crowd.devices.push_back(idx(host));
    }
  }
  return crowd;
}

void check_size(const std::vector<i64>& copies, const std::vector<i64>& speeds) {
  const i64 all_copies = std::accumulate(copies.begin(), copies.end(), i64{0});
  const i64 all_speeds = std::accumulate(speeds.begin(), speeds.end(), i64{0});
  HM_CHECK(all_copies < (i64{1} << 62) / std::max<i64>(1, all_speeds), "{} copies at speeds of {}",
           all_copies, all_speeds);
}

i64 copies_in(const Time& time, i64 speed) { return speed * time.num / time.den; }

/// The least time, not before `from`, in which the crowd's devices end as many whole copies as it has.
Time enough_for(const Crowd& crowd, const std::vector<i64>& speeds, const Time& from) {
  Time time = std::max(from, Time{crowd.copies, std::max<i64>(1, crowd.speed)});
  std::vector<i64> ended;
  i64 missing = crowd.copies;
  for (const std::size_t d : crowd.devices) {
    ended.push_back(copies_in(time, speeds[d]));
    missing -= ended.back();
  }
  while (missing > 0) {  // on to the next moment at which a device ends a copy
    std::size_t first = 0;
    for (std::size_t i = 1; i < ended.size(); ++i) {
      const i64 speed = speeds[crowd.devices[i]], best = speeds[crowd.devices[first]];
      if ((ended[i] + 1) * best < (ended[first] + 1) * speed) first = i;
    }
    time = {++ended[first], speeds[crowd.devices[first]]};
    --missing;
  }
  return time;
}

}  // namespace

ExactSplit exact_split(const std::vector<i64>& copies, const Hosts& hosts, const std::vector<i64>& speeds) {
  check_size(copies, speeds);
  ExactSplit out;
  Crowd crowd = crowd_of(copies, hosts, speeds, [](std::size_t) { return true; });
  while (true) {
    const i64 divisor = std::max<i64>(1, std::gcd(crowd.copies, crowd.speed));
    out.num = crowd.copies / divisor;
    out.den = std::max<i64>(1, crowd.speed / divisor);
    std::vector<i64> parts;
    for (const i64 whole : copies) parts.push_back(whole * out.den);
    Flow flow(parts, hosts, speeds.size());
    for (std::size_t d = 0; d < speeds.size(); ++d) flow.add_room(d, speeds[d] * out.num);
    const bool enough = flow.run();
    if (enough) {
      out.copies = flow.sent();
      return out;
    }
    crowd = crowd_of(copies, hosts, speeds, [&](std::size_t e) { return flow.is_short_of_room(e); });
  }
}

WholeSplit whole_split(const std::vector<i64>& copies, const Hosts& hosts, const std::vector<i64>& speeds) {
  check_size(copies, speeds);
  Flow flow(copies, hosts, speeds.size());
  std::vector<i64> room(speeds.size(), 0);
  Time time;
  Crowd crowd = crowd_of(copies, hosts, speeds, [](std::size_t) { return true; });
  while (true) {
    time = enough_for(crowd, speeds, time);
    for (std::size_t d = 0; d < speeds.size(); ++d) {
      const i64 more = copies_in(time, speeds[d]) - room[d];
      flow.add_room(d, more);
      room[d] += more;
    }
    const bool enough = flow.run();
    if (enough) break;
    crowd = crowd_of(copies, hosts, speeds, [&](std::size_t e) { return flow.is_short_of_room(e); });
  }
  WholeSplit out;
  out.copies = flow.sent();
  const i64 divisor = std::max<i64>(1, std::gcd(time.num, time.den));
  out.num = time.num / divisor;
  out.den = time.den / divisor;
  return out;
}

}  // namespace hetermoe
