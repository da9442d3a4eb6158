#include "hetermoe/balance/reorder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "hetermoe/balance/balancers.h"
#include "hetermoe/balance/eplb.h"
#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"

// The cost of a microbatch is a smooth maximum of times, tau * log(sum exp(time / tau)), which also rewards
// what is not yet the latest; tau falls to 0, where it is the maximum. A swap changes two devices and two
// nodes of every microbatch and nothing else.
namespace hetermoe {
namespace {

constexpr double kFirstTau = 0.1;                         // of a microbatch's balanced time
constexpr double kFirstHeat = 0.02, kLastHeat = 0.00002;  // temperatures over the first cost

class Random {
 public:
  explicit Random(u64 seed) : state_(seed) {}
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  u64 next() { return splitmix64(++state_); }
  u64 state_;
};

/// Times of devices and nodes, microbatch after microbatch.
class Annealer {
 public:
  Annealer(const ReorderInput& input, std::vector<i32> owner)
      : in_(input),
        owner_(std::move(owner)),
        num_microbatches_(input.copies.size()),
        num_devices_(input.speeds.size()),
        rank_of_node_(input.speeds.size(), 0) {
    std::vector<NodeId> nodes = input.nodes;
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    num_nodes_ = input.node_weight > 0 || !input.ports.empty() ? nodes.size() : 0;
    node_speed_.assign(nodes.size(), 0);
    for (std::size_t d = 0; d < num_devices_; ++d) {
      rank_of_node_[d] = position<NodeId>(nodes, input.nodes[d]);
      node_speed_[rank_of_node_[d]] += input.speeds[d];
    }
    for (const NodePort& port : input.ports) {
      const auto at = std::lower_bound(nodes.begin(), nodes.end(), port.node);
      rank_of_port_.push_back(at != nodes.end() && *at == port.node
                                  ? static_cast<std::size_t>(at - nodes.begin())
                                  : nodes.size());
    }
    held_.resize(num_devices_);
    place_.resize(owner_.size());
    for (std::size_t e = 0; e < owner_.size(); ++e) {
      place_[e] = held_[idx(owner_[e])].size();
      held_[idx(owner_[e])].push_back(e);
    }
    const double speed = std::accumulate(input.speeds.begin(), input.speeds.end(), 0.0);
    copies_.reserve(num_microbatches_ * owner_.size());
    for (const std::vector<double>& copies : input.copies) {
      all_copies_.push_back(std::accumulate(copies.begin(), copies.end(), 0.0));
      balanced_.push_back(all_copies_.back() / speed);
      copies_.insert(copies_.end(), copies.begin(), copies.end());
    }
    device_time_.assign(num_microbatches_ * num_devices_, 0);
    node_time_.assign(num_microbatches_ * num_nodes_, 0);
    for (std::size_t m = 0; m < num_microbatches_; ++m) {
      for (std::size_t e = 0; e < owner_.size(); ++e) add(m, idx(owner_[e]), copies_[m * owner_.size() + e]);
    }
  }

  /// Of the owners as they are now.
  double plain_cost() const {
    double sum = 0;
    for (std::size_t m = 0; m < num_microbatches_; ++m) sum += cost_of(m, 0);
    return sum;
  }

  std::vector<i32> run() {
    Random random(in_.seed);
    cost_.assign(num_microbatches_, 0);
    new_cost_ = cost_;
    set_tau(kFirstTau);
    double plain = plain_cost();
    const double heat = plain;
    std::vector<i32> best = owner_;
    double best_cost = plain;
    for (i64 i = 0; i < in_.proposals; ++i) {
      const double done = real(i) / real(in_.proposals);
      if (i % 256 == 0 && i > 0) set_tau(kFirstTau * (1 - done));
      const std::size_t a = first_expert(random), b = random.below(owner_.size());
      if (owner_[a] == owner_[b]) continue;
      const double temperature = heat * kFirstHeat * std::pow(kLastHeat / kFirstHeat, done);
      swap(a, b);
      const double rise = rise_of_cost();
      if (rise > 0 && random.unit() >= std::exp(-rise / temperature)) {
        swap(a, b);
        continue;
      }
      cost_.swap(new_cost_);
      plain = plain_cost();
      if (plain < best_cost * (1 - 1e-12)) best_cost = plain, best = owner_;
    }
    return best;
  }

 private:
  void add(std::size_t m, std::size_t device, double copies) {
    device_time_[m * num_devices_ + device] += copies / in_.speeds[device];
    if (num_nodes_ == 0) return;
    const std::size_t node = rank_of_node_[device];
    node_time_[m * num_nodes_ + node] += copies / node_speed_[node];
  }

  void swap(std::size_t a, std::size_t b) {
    const std::size_t from = idx(owner_[a]), to = idx(owner_[b]);
    for (std::size_t m = 0; m < num_microbatches_; ++m) {
      const double more = copies_[m * owner_.size() + a] - copies_[m * owner_.size() + b];
      add(m, from, -more);
      add(m, to, more);
    }
    std::swap(owner_[a], owner_[b]);
    std::swap(held_[from][place_[a]], held_[to][place_[b]]);
    std::swap(place_[a], place_[b]);
  }

  static double largest(const double* values, std::size_t count) {
    return count == 0 ? 0 : *std::max_element(values, values + count);
  }
  static double smooth_largest(const double* values, std::size_t count, double tau) {
    const double top = largest(values, count);
    if (tau <= 0) return top;
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double below = (values[i] - top) / tau;
      if (below > -20) sum += std::exp(below);
    }
    return top + tau * std::log(std::max(sum, 1.0));
  }
  double cost_of(std::size_t m, double tau) const {
    double cost = smooth_largest(&device_time_[m * num_devices_], num_devices_, tau) + busiest_port(m);
    if (in_.node_weight > 0)
      cost += in_.node_weight * smooth_largest(&node_time_[m * num_nodes_], num_nodes_, tau);
    return cost;
  }
  /// Rows come in and go out at the same time: a port takes what its node's experts get from other nodes or
  /// what its tokens send to others, whichever is more.
  double busiest_port(std::size_t m) const {
    double busiest = 0;
    for (std::size_t p = 0; p < in_.ports.size(); ++p) {
      const NodePort& port = in_.ports[p];
      const std::size_t node = rank_of_port_[p];
      const double own =
          node < num_nodes_ ? node_time_[m * num_nodes_ + node] * node_speed_[node] : 0;  // copies
      const double in = (1 - port.tokens) * own, out = port.tokens * (all_copies_[m] - own);
      busiest = std::max(busiest, port.copy_s * std::max(in, out));
    }
    return busiest;
  }
  void set_tau(double part) {
    tau_ = part;
    for (std::size_t m = 0; m < num_microbatches_; ++m) cost_[m] = cost_of(m, tau_ * balanced_[m]);
  }
  /// Of the owners as they are now over those of cost_; fills new_cost_.
  double rise_of_cost() {
    double rise = 0;
    for (std::size_t m = 0; m < num_microbatches_; ++m) {
      new_cost_[m] = cost_of(m, tau_ * balanced_[m]);
      rise += new_cost_[m] - cost_[m];
    }
    return rise;
  }

  /// Mostly of the latest device of some microbatch.
  std::size_t first_expert(Random& random) {
    if (random.below(4) == 0) return random.below(owner_.size());
    const std::size_t m = random.below(num_microbatches_);
    const double* const times = &device_time_[m * num_devices_];
    const auto latest = static_cast<std::size_t>(std::max_element(times, times + num_devices_) - times);
    const std::vector<std::size_t>& held = held_[latest];
    return held.empty() ? random.below(owner_.size()) : held[random.below(held.size())];
  }

  const ReorderInput& in_;
  std::vector<i32> owner_;  // [experts]
  std::size_t num_microbatches_, num_devices_, num_nodes_ = 0;
  std::vector<std::size_t> rank_of_node_;        // [devices]
  std::vector<double> node_speed_;               // [nodes]
  std::vector<std::vector<std::size_t>> held_;   // [devices] experts
  std::vector<std::size_t> place_;               // [experts] in held_
  std::vector<double> copies_;                   // [microbatches * experts]
  std::vector<std::size_t> rank_of_port_;        // [ports] of its node; num_nodes_ = it owns nothing
  std::vector<double> all_copies_, balanced_;    // [microbatches] copies, seconds
  std::vector<double> device_time_, node_time_;  // [microbatches * devices], [microbatches * nodes]
  std::vector<double> cost_, new_cost_;          // [microbatches] smooth
  double tau_ = 0;
};

}  // namespace

double reorder_cost(const ReorderInput& input, const std::vector<i32>& owner) {
  return Annealer(input, owner).plain_cost();
}

std::vector<i32> reorder(const ReorderInput& input, const std::vector<i32>& start) {
  if (input.copies.empty() || input.speeds.size() < 2) return start;
  std::vector<i32> best = Annealer(input, start).run();
  return reorder_cost(input, best) < reorder_cost(input, start) ? best : start;
}

namespace {

constexpr double kNodeWeightWithGuests = 4;

std::vector<i32> device_numbers(const LayerOwners& owners, const std::vector<DeviceId>& devices) {
  std::vector<i32> out;
  for (const ExpertOwners& of_expert : owners)
    out.push_back(static_cast<i32>(position(devices, of_expert[0].device)));
  return out;
}

/// Each owner has room for as many experts of a layer as its speed says.
BalanceInput with_slots_by_speed(const BalanceInput& input, const std::vector<double>& speeds) {
  BalanceInput out = input;
  const auto layers = static_cast<i64>(input.load.size());
  std::vector<i64> most;
  for (const BalanceDevice& device : input.devices) {
    if (device.owns) most.push_back(device.room == kUnlimitedRoom ? kUnlimitedRoom : device.room / layers);
  }
  const std::vector<i64> slots = slots_by_speed(speeds, most, static_cast<i64>(input.load[0].size()));
  std::size_t at = 0;
  for (BalanceDevice& device : out.devices) {
    if (device.owns) device.room = slots[at++] * layers;
  }
  return out;
}

}  // namespace

std::vector<LayerOwners> place_relibra(const BalanceInput& input) {
  const std::vector<BalanceDevice> owning = owning_devices(input);
  std::vector<DeviceId> devices;
  ReorderInput of_layer;
  for (const BalanceDevice& device : owning) {
    devices.push_back(device.id);
    of_layer.speeds.push_back(device.speed());
    of_layer.nodes.push_back(device.node);
  }
  if (input.load.empty()) return {};
  of_layer.ports = input.ports;
  std::vector<LayerOwners> out = find_balancer("lpt").place(with_slots_by_speed(input, of_layer.speeds));
  const std::set<NodeId> nodes(of_layer.nodes.begin(), of_layer.nodes.end());
  const bool lends_inside = nodes.size() > 1 && nodes.size() < owning.size();
  of_layer.node_weight = lends_inside && input.guests > 0 ? kNodeWeightWithGuests : 0;
  for (std::size_t l = 0; l < out.size(); ++l) {
    of_layer.copies =
        input.microbatches.empty() ? std::vector<std::vector<double>>{input.load[l]} : input.microbatches[l];
    const std::vector<i32> owner = reorder(of_layer, device_numbers(out[l], devices));
    for (std::size_t e = 0; e < owner.size(); ++e)
      out[l][e] = {{.device = devices[idx(owner[e])], .share = 1}};
  }
  return out;
}

}  // namespace hetermoe
