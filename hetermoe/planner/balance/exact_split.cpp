#include "hetermoe/planner/balance/exact_split.h"

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
  Flow(const std::vector<i64>& copies, const std::vector<std::vector<i32>>& hosts,
       const std::vector<i64>& speeds, i64 num, i64 den)
      : hosts_(hosts) {
    for (std::size_t e = 0; e < copies.size(); ++e) {
      left_.push_back(copies[e] * den);
      sent_.emplace_back(hosts[e].size(), 0);
    }
    for (const i64 speed : speeds) room_.push_back(speed * num);
    on_host_.resize(speeds.size());
    for (std::size_t e = 0; e < hosts.size(); ++e) {
      for (std::size_t h = 0; h < hosts[e].size(); ++h) on_host_[idx(hosts[e][h])].push_back({e, h});
    }
  }

  /// Sends all that can be sent. True = nothing is left.
  bool run() {
    for (std::size_t e = 0; e < left_.size(); ++e) {  // most needs no detour
      for (std::size_t h = 0; h < hosts_[e].size(); ++h)
        send(e, h, std::min(left_[e], room_[idx(hosts_[e][h])]));
    }
    while (augment()) {
    }
    return std::all_of(left_.begin(), left_.end(), [](i64 left) { return left == 0; });
  }
  /// After run(): experts from which a search for room starts or comes along.
  const std::vector<bool>& short_of_room() const { return seen_; }
  const std::vector<std::vector<i64>>& sent() const { return sent_; }

 private:
  struct Place {
    std::size_t expert, host;
  };

  void send(std::size_t expert, std::size_t host, i64 amount) {
    left_[expert] -= amount;
    sent_[expert][host] += amount;
    room_[idx(hosts_[expert][host])] -= amount;
  }

  /// One shortest way from an expert with copies left over full hosts to one with room. False = there is
  /// none.
  bool augment() {
    seen_.assign(left_.size(), false);
    std::vector<Place> from_expert(room_.size(), {left_.size(), 0});  // by which place a host was reached
    std::vector<i32> from_host(left_.size(), -1);                     // -1: it has copies left
    std::vector<std::size_t> queue;
    for (std::size_t e = 0; e < left_.size(); ++e) {
      if (left_[e] > 0) queue.push_back(e), seen_[e] = true;
    }
    for (std::size_t next = 0; next < queue.size(); ++next) {
      const std::size_t e = queue[next];
      for (std::size_t h = 0; h < hosts_[e].size(); ++h) {
        const i32 host = hosts_[e][h];
        if (from_expert[idx(host)].expert < left_.size()) continue;
        from_expert[idx(host)] = {e, h};
        if (room_[idx(host)] > 0) return push(host, from_expert, from_host);
        for (const Place& other : on_host_[idx(host)]) {
          if (seen_[other.expert] || sent_[other.expert][other.host] == 0) continue;
          seen_[other.expert] = true;
          from_host[other.expert] = host;
          queue.push_back(other.expert);
        }
      }
    }
    return false;
  }

  i64& sent_to(std::size_t expert, i32 host) {
    const auto at = std::find(hosts_[expert].begin(), hosts_[expert].end(), host) - hosts_[expert].begin();
    return sent_[expert][static_cast<std::size_t>(at)];
  }

  bool push(i32 last, const std::vector<Place>& from_expert, const std::vector<i32>& from_host) {
    i64 amount = room_[idx(last)];
    std::size_t e = from_expert[idx(last)].expert;
    for (; from_host[e] >= 0; e = from_expert[idx(from_host[e])].expert)
      amount = std::min(amount, sent_to(e, from_host[e]));
    amount = std::min(amount, left_[e]);
    left_[e] -= amount;
    room_[idx(last)] -= amount;
    for (i32 host = last; host >= 0;) {
      const Place& place = from_expert[idx(host)];
      sent_[place.expert][place.host] += amount;
      host = from_host[place.expert];
      if (host >= 0) sent_to(place.expert, host) -= amount;
    }
    return true;
  }

  const std::vector<std::vector<i32>>& hosts_;
  std::vector<i64> left_, room_;             // [experts], [devices]
  std::vector<std::vector<i64>> sent_;       // [experts][hosts]
  std::vector<std::vector<Place>> on_host_;  // [devices]
  std::vector<bool> seen_;                   // [experts]
};

}  // namespace

ExactSplit exact_split(const std::vector<i64>& copies, const std::vector<std::vector<i32>>& hosts,
                       const std::vector<i64>& speeds) {
  const i64 all_copies = std::accumulate(copies.begin(), copies.end(), i64{0});
  const i64 all_speeds = std::accumulate(speeds.begin(), speeds.end(), i64{0});
  HM_CHECK(all_copies < (i64{1} << 62) / std::max<i64>(1, all_speeds), "{} copies at speeds of {}",
           all_copies, all_speeds);
  ExactSplit out;
  std::vector<bool> needs_more(copies.size(), true);
  while (true) {
    std::vector<bool> counted(speeds.size(), false);
    i64 num = 0, den = 0;
    for (std::size_t e = 0; e < copies.size(); ++e) {
      if (!needs_more[e]) continue;
      num += copies[e];
      for (const i32 host : hosts[e]) {
        if (!counted[idx(host)]) den += speeds[idx(host)];
        counted[idx(host)] = true;
      }
    }
    const i64 divisor = std::max<i64>(1, std::gcd(num, den));
    out.num = num / divisor;
    out.den = std::max<i64>(1, den / divisor);
    Flow flow(copies, hosts, speeds, out.num, out.den);
    const bool enough = flow.run();
    out.copies = flow.sent();
    if (enough) return out;
    needs_more = flow.short_of_room();
  }
}

}  // namespace hetermoe
