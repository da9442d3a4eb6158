#include "hetermoe/planner/search/node_stages.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "hetermoe/balance/balancers.h"
#include "hetermoe/base/index.h"
#include "hetermoe/planner/estimate/lane_bound.h"
#include "hetermoe/planner/estimate/layer_split.h"
#include "hetermoe/planner/strategies/strategies.h"

namespace hetermoe {
namespace {

constexpr std::size_t kMostNodes = 8;           ///< of a cluster
constexpr std::size_t kMostPermuted = 3;        ///< nodes of a group that are tried in every order
constexpr i32 kFewOnNodes = 64;                 ///< of a cluster
constexpr i64 kMostOnDevice = 8;                ///< of a microbatch on each device
constexpr std::size_t kFewDevices = 8;          ///< of a node whose sequences are moved one by one
constexpr auto kWeighedWith = Recompute::kOff;  ///< what stages are weighed with: nothing takes less

/// Devices of a node by class, in the order of advantage in attention.
using NodeDevices = std::vector<std::vector<DeviceId>>;

/// A stage on a node for microbatches of so many sequences.
struct NodeStage {
  std::vector<DeviceId> attention;
  std::vector<double> weights;  ///< [attention] sequences of each
  LayerOwners owners;           ///< of each layer with experts
  Seconds layer = 0, head = 0;  ///< of the busiest device, one microbatch
  std::size_t busiest = 0;      ///< number among the devices of the node
  i64 room = 0;                 ///< layers whose experts its devices can hold
};

enum class Spread { kBest, kAll };  ///< attention on as many classes as is fastest, or on all

class NodePipelines {
 public:
  NodePipelines(const Rates& rates, Seconds most) : rates_(rates), request_(rates.request()), most_(most) {}

  std::vector<std::pair<Seconds, Plan>> all() {
    list_nodes();
    const i64 nodes = static_cast<i64>(
        std::accumulate(nodes_of_kind_.begin(), nodes_of_kind_.end(), std::size_t{0},
                        [](std::size_t sum, const auto& kind) { return sum + kind.second.size(); }));
    const bool mixed = std::any_of(nodes_of_kind_.begin(), nodes_of_kind_.end(), [](const auto& kind) {
      return std::count(kind.first.begin(), kind.first.end(), 0) + 1 < static_cast<i64>(kind.first.size());
    });
    if (!mixed || nodes > static_cast<i64>(kMostNodes) || request_.cluster.num_devices() > kFewOnNodes)
      return {};
    i64 common = 0;
    for (const auto& [kind, own] : nodes_of_kind_) common = std::gcd(common, static_cast<i64>(own.size()));
    for (i64 groups = 1; groups <= std::min(common, request_.sequences); ++groups)
      if (common % groups == 0 && nodes / groups >= 2 && nodes / groups <= request_.model.num_layers)
        add(groups);
    std::stable_sort(out_.begin(), out_.end(), [](auto& a, auto& b) { return a.first < b.first; });
    return std::move(out_);
  }

 private:
  /// [class] devices on the node: what nodes of a kind have in common.
  using Kind = std::vector<i64>;

  void list_nodes() {
    std::map<NodeId, NodeDevices> nodes;
    for (std::size_t c = 0; c < rates_.num_classes(); ++c) {
      for (const DeviceId device : rates_.classes()[c].devices) {
        NodeDevices& node = nodes[request_.cluster.devices[idx(device)].node];
        node.resize(rates_.num_classes());
        node[c].push_back(device);
      }
    }
    for (auto& [id, node] : nodes) {
      Kind kind;
      for (const auto& devices : node) kind.push_back(static_cast<i64>(devices.size()));
      nodes_of_kind_[kind].push_back(std::move(node));
    }
  }

  /// Every order of the nodes of a group; of many by kind, one way and the other.
  void add(i64 groups) {
    std::vector<const Kind*> order;
    for (const auto& [kind, own] : nodes_of_kind_) order.insert(order.end(), own.size() / idx(groups), &kind);
    std::sort(order.begin(), order.end());
    const auto add_order = [&] {
      for (i64 sequences = 1; sequences <= kMostOnDevice * most_on_node(); sequences *= 2)
        for (const Spread spread : {Spread::kBest, Spread::kAll}) add(groups, order, sequences, spread);
    };
    if (order.size() > kMostPermuted) {
      add_order();
      std::reverse(order.begin(), order.end());
      add_order();
      return;
    }
    do {
      add_order();
    } while (std::next_permutation(order.begin(), order.end()));
  }

  i64 most_on_node() const {
    i64 most = 0;
    for (const auto& [kind, own] : nodes_of_kind_)
      most = std::max(most, std::accumulate(kind.begin(), kind.end(), i64{0}));
    return most;
  }

  /// order: [stage] kind of its node. With microbatches of about so many sequences.
  void add(i64 groups, const std::vector<const Kind*>& order, i64 sequences, Spread spread) {
    const std::vector<i64> of_group =
        proportional_split(request_.sequences, std::vector<double>(idx(groups), 1));
    const i64 microbatches =
        std::min(request_.limits.max_microbatches, (of_group.back() + sequences - 1) / sequences);
    if (microbatches < 2) return;
    Plan plan = blank_plan(request_, kWeighedWith);
    plan.order = OrderPolicy::kOneFOneB, plan.window = 2;
    plan.strategy = "planned";
    plan.shard_optimizer = request_.limits.shard_optimizer;
    std::map<const Kind*, std::size_t> next;
    Seconds bound = 0;
    for (const i64 own : of_group) {
      std::vector<NodeStage> stages;
      for (const Kind* kind : order)
        stages.push_back(stage_of(nodes_of_kind_.at(*kind)[next[kind]++], sequences, spread, order.size()));
      const std::vector<i64> layers = layers_of(stages);
      if (layers.empty()) return;
      plan.groups.push_back(group_of(stages, layers, own, microbatches));
      bound = std::max(bound, bound_of(stages, layers, plan.groups.back().microbatches, sequences));
    }
    if (bound >= most_) return;
    settle_homes(request_, plan);
    for (const Recompute recompute : {Recompute::kOff, Recompute::kAhead}) {
      plan.recompute = recompute;
      const Seconds lanes = std::max(bound, lane_bound(rates_, plan));
      if (lanes < most_) out_.emplace_back(lanes, plan);
    }
  }

  NodeStage stage_of(const NodeDevices& node, i64 sequences, Spread spread, std::size_t stages) const {
    const auto present = static_cast<std::size_t>(
        std::count_if(node.begin(), node.end(), [](const auto& devices) { return !devices.empty(); }));
    std::optional<NodeStage> best;
    const bool all = spread == Spread::kAll || request_.model.num_moe_layers() == 0;
    for (std::size_t classes = all ? present : 1; classes <= present; ++classes) {
      NodeStage stage = stage_with(node, classes, sequences, stages);
      if (!best || stage.layer < best->layer) best = std::move(stage);
    }
    return *std::move(best);
  }

  /// With attention on the first so many of the classes that the node has: by speed, then one sequence after
  /// another to whom the busiest of them delays less.
  NodeStage stage_with(const NodeDevices& node, std::size_t classes, i64 sequences,
                       std::size_t stages) const {
    std::vector<std::size_t> class_of;
    std::vector<DeviceId> devices, attention;
    std::vector<double> speeds;
    for (std::size_t c = 0; c < node.size(); ++c) {
      class_of.insert(class_of.end(), node[c].size(), c);
      devices.insert(devices.end(), node[c].begin(), node[c].end());
      if (node[c].empty() || classes == 0) continue;
      --classes;
      attention.insert(attention.end(), node[c].begin(), node[c].end());
      speeds.insert(speeds.end(), node[c].size(), 1 / rates_.attention(c, 1, kWeighedWith).sum());
    }
    std::vector<i64> shares(devices.size(), 0);
    for (std::size_t i = 0; const Share& share : make_shares(attention, sequences, speeds))
      shares[i++] = share.sequences;
    const StageDevicesOfNode own{devices, class_of, stages, sequences};
    NodeStage best = stage_of_shares(own, shares);
    for (bool faster = devices.size() <= kFewDevices; std::exchange(faster, false);) {
      const std::size_t from = best.busiest;
      for (std::size_t to = 0; to < attention.size() && shares[from] > 0; ++to) {
        std::vector<i64> moved = shares;
        --moved[from], ++moved[to];
        NodeStage next = stage_of_shares(own, moved);
        if (next.layer >= best.layer) continue;
        best = std::move(next), shares = std::move(moved), faster = true;
        break;
      }
    }
    return best;
  }

  struct StageDevicesOfNode {
    const std::vector<DeviceId>& devices;
    const std::vector<std::size_t>& class_of;  ///< [devices]
    std::size_t stages;                        ///< of the pipeline
    i64 sequences;                             ///< of a microbatch
  };

  /// Experts are where the last device then finishes first.
  NodeStage stage_of_shares(const StageDevicesOfNode& own, const std::vector<i64>& shares) const {
    NodeStage out;
    const double copies = real(own.sequences * request_.seq_len * request_.model.top_k);
    const double experts = real(request_.model.num_experts),
                 run = real(request_.model.num_layers) / real(own.stages);
    const Bytes expert = real(rates_.counts().expert) * rates_.state_bytes(UnitPart::kExperts, 1);
    BalanceInput input;
    input.load = even_load(1, request_.model.num_experts);
    for (std::size_t i = 0; i < own.devices.size(); ++i) {
      const std::size_t c = own.class_of[i];
      BalanceDevice device{.id = own.devices[i], .node = request_.cluster.devices[idx(own.devices[i])].node};
      if (experts > 0)
        device.unit_s = std::max(1e-12, rates_.experts(c, copies / experts, 1, kWeighedWith).sum());
      device.room = static_cast<i64>(rates_.usable_memory(c) / expert / std::max(1.0, run));
      if (shares[i] > 0) {
        device.busy = rates_.attention(c, real(shares[i]), kWeighedWith).sum();
        out.head = std::max(out.head, rates_.head(c, real(shares[i])));
        out.attention.push_back(device.id), out.weights.push_back(real(shares[i]));
      }
      input.devices.push_back(device);
    }
    if (request_.model.num_moe_layers() > 0) out.owners = find_balancer("level_by_device").place(input)[0];
    std::map<DeviceId, i64> owned;
    for (const auto& owners : out.owners) ++owned[owners[0].device];
    out.room = request_.model.num_layers;
    for (std::size_t i = 0; i < input.devices.size(); ++i) {
      const BalanceDevice& device = input.devices[i];
      const i64 count = owned[device.id];
      const Seconds busy = device.busy + real(count) * device.unit_s;
      if (busy > out.layer) out.layer = busy, out.busiest = i;
      if (count > 0)
        out.room = std::min(out.room,
                            static_cast<i64>(rates_.usable_memory(own.class_of[i]) / expert / real(count)));
    }
    return out;
  }

  /// Empty where experts have no room.
  std::vector<i64> layers_of(const std::vector<NodeStage>& stages) const {
    const auto count = static_cast<i64>(stages.size());
    return split_layers(request_.model.num_layers, count, [&](const LayerRun& run) -> std::optional<double> {
      const NodeStage& stage = stages[idx(run.stage)];
      if (run.count > stage.room) return {};
      return real(run.count) * stage.layer + (run.stage + 1 == count ? stage.head : 0);
    });
  }

  /// The busiest device of a stage computes all microbatches after the first has come through the stages
  /// before. Fewer sequences than a stage was made for take at least their part of its time.
  static Seconds bound_of(const std::vector<NodeStage>& stages, const std::vector<i64>& layers,
                          const std::vector<i64>& microbatches, i64 sequences) {
    const double all =
        real(std::accumulate(microbatches.begin(), microbatches.end(), i64{0})) / real(sequences);
    const double first = real(microbatches.back()) / real(sequences);
    Seconds before = 0, most = 0;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const Seconds own = real(layers[s]) * stages[s].layer + (s + 1 == stages.size() ? stages[s].head : 0);
      most = std::max(most, before + all * own);
      before += first * own;
    }
    return most;
  }

  Group group_of(const std::vector<NodeStage>& stages, const std::vector<i64>& layers, i64 sequences,
                 i64 microbatches) const {
    Group group;
    group.microbatches = proportional_split(sequences, std::vector<double>(idx(microbatches), 1));
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const Shares shares = make_share_rows(stages[s].attention, group.microbatches, stages[s].weights);
      if (s == 0) group.embed = shares;
      group.head = shares;
      for (i64 l = 0; l < layers[s]; ++l) {
        const auto layer = static_cast<i64>(group.layers.size());
        group.layers.push_back({.attention = shares,
                                .experts = request_.model.is_moe(layer) ? stages[s].owners : LayerOwners()});
      }
    }
    std::set<DeviceId> devices;
    for (const LayerPlacement& layer : group.layers) {
      add_devices(layer.attention, devices);
      for (const auto& owners : layer.experts) devices.insert(owners[0].device);
    }
    group.devices.assign(devices.begin(), devices.end());
    return group;
  }

  const Rates& rates_;
  const PlanRequest& request_;
  Seconds most_;
  std::map<Kind, std::vector<NodeDevices>> nodes_of_kind_;
  std::vector<std::pair<Seconds, Plan>> out_;
};

}  // namespace

std::vector<std::pair<Seconds, Plan>> node_pipelines(const Rates& rates, Seconds most) {
  return NodePipelines(rates, most).all();
}

}  // namespace hetermoe
