#include "hetermoe/planner/estimate/estimate.h"

#include <algorithm>
#include <cmath>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"

// The step of a sketch in closed form: per layer the busiest lane or, with too few microbatches in flight,
// the chain attention - dispatch - experts - combine. It ranks sketches; only the simulator judges.
namespace hetermoe {
namespace {

constexpr double kGroupsPort = 2.5;  ///< load of a port that two groups share in unequal parts

/// Whether groups of so many devices of a class end within nodes.
bool shares_nodes(double of_group, double per_node, double groups) {
  return groups > 1 && std::fmod(std::max(of_group, per_node), std::min(of_group, per_node)) > 0;
}

/// One direction of a layer for one microbatch.
struct LayerTime {
  Seconds attention = 0, experts = 0;  ///< of the slowest device
  Seconds lane = 0;                    ///< of the busiest compute lane
  Seconds port = 0;                    ///< of the busiest port
  Seconds transfer = 0;                ///< one exchange, alone
};

class GroupEstimate {
 public:
  GroupEstimate(const Rates& rates, const Sketch& sketch, const SketchGroup& group,
                const std::vector<Part>& parts)
      : rates_(rates), sketch_(sketch), group_(group), parts_(parts), model_(rates.request().model) {
    one_node_ = rates.on_one_node(group.first, group.count);
    microbatch_ = real(group.sequences) / real(group.microbatches);
    in_window_ =
        real(sketch.window > 0 ? std::min<i64>(sketch.window, group.microbatches) : group.microbatches);
  }

  GroupTime run() {
    LayerTime forward, backward;
    transfers(forward);
    backward = forward;
    const double trips = backward_exchanges(sketch_.recompute);
    backward.port *= trips, backward.transfer *= trips;
    Seconds head = 0;
    for (const Part& part : parts_) {
      add(part, forward, backward);
      if (part.attention) head = std::max(head, rates_.head(part.cls, part.most));
    }
    const double in_window = in_window_;
    const double windows = real(group_.microbatches) / in_window;
    const double layers = real(model_.num_layers);
    GroupTime time;
    const Seconds last_backward = layers * layer(backward, in_window);
    time.hides = std::max(0.0, last_backward - layers * in_window * backward.port);
    time.step = windows * (layers * layer(forward, in_window) + last_backward);
    if (in_window > 1)
      time.step += windows * (chain(forward) - forward.lane + chain(backward) - backward.lane);
    time.step += real(group_.microbatches) * head;
    return time;
  }

 private:
  void add(const Part& part, LayerTime& forward, LayerTime& backward) const {
    LayerCost attention, experts, fullest;
    if (part.attention) {
      // Some device has whole sequences more than the mean in a window.
      const double in_one = std::max(1.0, part.sequences);
      const double share = std::ceil(in_window_ * part.sequences - 1e-9) / in_window_ / in_one;
      attention = rates_.attention(part.cls, in_one, sketch_.recompute);
      attention = {attention.forward * share, attention.backward * share};
      fullest = rates_.attention(part.cls, std::max(1.0, part.most), sketch_.recompute);
    }
    if (part.owned > 0) {
      const double copies =
          microbatch_ * real(rates_.request().seq_len * model_.top_k) * part.owned / real(model_.num_experts);
      experts = rates_.experts(part.cls, copies, std::max(1.0, part.owned), sketch_.recompute);
    }
    forward.attention = std::max(forward.attention, fullest.forward);
    backward.attention = std::max(backward.attention, fullest.backward);
    forward.experts = std::max(forward.experts, experts.forward);
    backward.experts = std::max(backward.experts, experts.backward);
    forward.lane = std::max(forward.lane, attention.forward + experts.forward);
    backward.lane = std::max(backward.lane, attention.backward + experts.backward);
  }

  /// Devices of a class that this group has on one node, spread evenly, and what they do together.
  struct OnNode {
    double devices = 0, groups = 1;  ///< groups: that share the node's port
    double tokens = 0;               ///< of a microbatch, whose attention is there
    double rows = 0;                 ///< per token, that go to experts there
  };

  OnNode on_node(std::size_t cls) const {
    const double of_group = real(group_.count[cls]), per_node = rates_.classes()[cls].per_node;
    OnNode node;
    node.devices = std::min(per_node, of_group);
    if (of_group > 0)
      node.groups =
          std::clamp(std::floor(per_node / of_group), 1.0, std::max(1.0, real(sketch_.groups.size())));
    // Groups that end within a node share its port with the next one, and some with the larger part of it.
    if (shares_nodes(of_group, per_node, real(sketch_.groups.size()))) node.groups = kGroupsPort;
    for (const Part& part : parts_) {
      if (part.cls != cls) continue;
      const double there = node.devices * part.count / of_group;
      // Some node has one device with attention more than others, and whole sequences of each microbatch.
      node.tokens += whole(std::ceil(there - 1e-9) * part.sequences);
      node.rows += there * rates_.hit(part.owned);
    }
    return node;
  }

  /// Tokens of so many sequences of a microbatch, rounded up to whole ones.
  double whole(double sequences) const {
    return std::min(microbatch_, std::ceil(sequences - 1e-9)) * real(rates_.request().seq_len);
  }

  void transfers(LayerTime& out) const {
    double rows = 0, devices = 0;  // rows per token, all owners
    for (const Part& part : parts_) {
      rows += part.count * rates_.hit(part.owned);
      devices += part.count;
    }
    if (devices <= 1) return;
    const Bytes row = row_bytes(model_, bytes_of(rates_.request().dtype));
    const double tokens = microbatch_ * real(rates_.request().seq_len);
    Seconds busiest = 0, latency = 0, exchange = 0;
    const auto add = [&](double sent, double received, BytesPerSecond rate, double groups, Seconds wait) {
      if (sent + received <= 0) return;
      exchange = std::max(exchange, std::max(sent, received) * row / rate);
      busiest = std::max(busiest, groups * (sent + received) * row / rate);
      latency = std::max(latency, wait);
    };
    Seconds peers = 0;
    for (const Part& part : parts_) {
      const DeviceClass& cls = rates_.classes()[part.cls];
      const double mine = rates_.hit(part.owned), own = whole(part.sequences);
      OnNode node{.devices = devices, .tokens = tokens, .rows = rows};
      if (!one_node_) {
        node = on_node(part.cls);
        add(node.tokens * (rows - node.rows), (tokens - node.tokens) * node.rows, cls.port, node.groups,
            cls.latency);
      }
      add(own * (node.rows - mine), (node.tokens - own) * mine, cls.local, 1, cls.latency);
      peers = std::max(peers, peer_seconds(cls, devices, node.devices));
    }
    const Seconds each = latency + peers;
    out.transfer = exchange + each;
    out.port = busiest + each;
  }

  Seconds chain(const LayerTime& t) const {
    const double parts = sketch_.chunks;
    const Seconds trip = 2 * t.transfer + t.experts;
    return t.attention + trip / parts + (parts - 1) / parts * std::max(t.transfer, t.experts);
  }
  Seconds layer(const LayerTime& t, double in_window) const {
    return std::max(in_window * std::max(t.lane, t.port), chain(t));
  }

  const Rates& rates_;
  const Sketch& sketch_;
  const SketchGroup& group_;
  const std::vector<Part>& parts_;
  const ModelConfig& model_;
  bool one_node_ = false;  ///< all devices of the group
  double microbatch_ = 0;  ///< sequences of one
  double in_window_ = 1;   ///< microbatches in flight
};

/// Groups that are alike, one after another.
struct Kind {
  double groups = 0;
  std::vector<Part> parts;
  GroupTime time;
};

/// Reduction of replicated state, of which the backward pass of the last window hides what the ports have
/// time for, the optimizer and, where it is sharded, the weights that replicas tell each other.
class EndOfStep {
 public:
  EndOfStep(const Rates& rates, const std::vector<Kind>& kinds, bool sharded)
      : rates_(rates),
        kinds_(kinds),
        sharded_(sharded),
        moe_layers_(rates.moe_layers()),
        used_(rates.num_classes(), 0) {
    for (const Kind& kind : kinds) {
      groups_ += kind.groups;
      for (const Part& part : kind.parts) {
        sources_ += part.attention ? kind.groups * part.count : 0;
        owners_ += part.owned > 0 ? part.count : 0;
        used_[part.cls] += static_cast<i64>(kind.groups * part.count);
      }
    }
    // Groups take the devices of a class one after another.
    one_node_ = rates.on_one_node(std::vector<i64>(used_.size(), 0), used_);
  }

  Seconds run() const {
    const Bytes gradient = state_bytes_of(rates_.request()).gradients,
                weight = bytes_of(rates_.request().dtype);
    const Bytes sent = rates_.request().wire_reduce == WireReduce::kBf16 ? std::min(gradient, 2.0) : gradient;
    Seconds hidden = kinds_.front().time.hides, reduce = 0, update = 0, gather = 0;
    for (const Kind& kind : kinds_) {
      hidden = std::min(hidden, kind.time.hides);
      reduce = std::max(reduce, exchange(kind, sharded_ ? sent : sent + gradient));
      if (sharded_) gather = std::max(gather, exchange(kind, weight));
      for (const Part& part : kind.parts) update = std::max(update, rates_.update(part.cls, updated(part)));
    }
    // States follow each other: while one is told, the next is updated.
    const double layers = real(rates_.request().model.num_layers);
    const Seconds end = std::max(update, gather) + std::min(update, gather) / layers;
    return std::max(0.0, reduce - hidden) + reduce / layers + end;
  }

 private:
  double experts_of(const Part& part) const {
    return rates_.trained_of(UnitPart::kExperts, part.owned * moe_layers_ * real(rates_.counts().expert));
  }

  /// Parameters that a device of the part updates.
  double updated(const Part& part) const {
    const double attention = part.attention ? rates_.trained_attention() : 0;
    if (!sharded_) return attention + experts_of(part);
    return attention / std::max(1.0, sources_) + experts_of(part) / groups_;
  }

  /// Replicas of each state tell each other `bytes` for every parameter: the busiest port and the slowest
  /// device. A class's devices of a kind are spread evenly over their
  /// nodes; what devices of one node send each other does not use its port.
  Seconds exchange(const Kind& kind, Bytes bytes) const {
    std::vector<double> devices(rates_.num_classes(), 0);
    std::vector<Bytes> of_node = devices;
    std::vector<Seconds> inside = devices;
    for (const Part& part : kind.parts) devices[part.cls] += part.count;
    Seconds slowest = 0;
    for (const Part& part : kind.parts) {
      const DeviceClass& cls = rates_.classes()[part.cls];
      const double here = one_node_ ? real(used_[part.cls]) : std::min(cls.per_node, real(used_[part.cls]));
      const double mean = here * part.count / devices[part.cls], on_node = std::ceil(mean - 1e-9);
      const double replicas = std::max(1.0, std::floor(here / devices[part.cls]));
      const double attention = part.attention ? rates_.attention_parameters() : 0;
      const double sources_here = one_node_ ? sources_ : std::max(1.0, mean);
      const StateExchange shared = state_exchange(cls, bytes * attention, sources_, sources_here);
      const StateExchange own = state_exchange(cls, bytes * experts_of(part), groups_, replicas);
      of_node[part.cls] += shared.port + on_node / replicas * own.port;
      inside[part.cls] = std::max(inside[part.cls], shared.inside + own.inside);
      slowest = std::max(slowest, messages(kind, part, sources_here, replicas));
    }
    for (std::size_t c = 0; c < of_node.size(); ++c) {
      const DeviceClass& cls = rates_.classes()[c];
      const double load = devices[c] > 0 && shares_nodes(devices[c], cls.per_node, groups_) ? kGroupsPort : 1;
      slowest = std::max(slowest, inside[c] + (one_node_ ? 0 : load * of_node[c] / cls.port));
    }
    return slowest;
  }

  /// Every state is reduced on its own. Groups that place experts differently cut them into more states.
  Seconds messages(const Kind& kind, const Part& part, double sources_here, double replicas) const {
    const DeviceClass& cls = rates_.classes()[part.cls];
    // In two levels a device has one peer for each other node.
    const auto each = [&](double holders, double here) {
      return cls.latency + peer_seconds(cls, here + holders / here - 1, here);
    };
    Seconds sum = 0;
    if (part.attention && sources_ > 1)
      sum += real(rates_.request().model.num_layers) * each(sources_, sources_here);
    if (part.owned <= 0 || groups_ <= 1) return sum;
    double own = 0;
    for (const Part& of_group : kind.parts) own += of_group.owned > 0 ? of_group.count : 0;
    const double experts = real(rates_.request().model.num_experts);
    const double states = std::min(part.owned, 1 + (owners_ - own) * part.owned / experts);
    return sum + moe_layers_ * std::max(1.0, states) * each(groups_, std::min(replicas, groups_));
  }

  const Rates& rates_;
  const std::vector<Kind>& kinds_;
  bool sharded_;  ///< the optimizer, over the replicas of each state
  double moe_layers_, groups_ = 0;
  std::vector<i64> used_;  ///< [class] devices of all groups
  bool one_node_ = false;  ///< all of them
  double sources_ = 0;     ///< devices with attention, of all groups
  double owners_ = 0;      ///< devices with experts, of one group of each kind
};

}  // namespace

GroupTime estimate_group(const Rates& rates, const Sketch& sketch, const SketchGroup& group,
                         std::size_t groups, std::optional<Shortage>& shortage) {
  const std::vector<Part> parts = split_work(rates, sketch, group, groups, shortage);
  if (shortage) return {};
  return GroupEstimate(rates, sketch, group, parts).run();
}

Estimate estimate(const Rates& rates, const Sketch& sketch) {
  Estimate out;
  std::vector<Kind> kinds;
  for (std::size_t g = 0; g < sketch.groups.size(); ++g) {
    const SketchGroup& group = sketch.groups[g];
    if (g > 0 && alike(group, sketch.groups[g - 1])) {
      ++kinds.back().groups;
      continue;
    }
    kinds.push_back({1, split_work(rates, sketch, group, sketch.groups.size(), out.shortage), {}});
    if (!out.feasible()) return out;
    kinds.back().time = GroupEstimate(rates, sketch, group, kinds.back().parts).run();
    out.step = std::max(out.step, kinds.back().time.step);
  }
  out.step += EndOfStep(rates, kinds, sketch.shard_optimizer).run();
  return out;
}

}  // namespace hetermoe
