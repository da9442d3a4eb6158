#include "hetermoe/planner/round_robin_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/measured.h"
#include "hetermoe/plan/backward_shares.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/planner/host_use.h"
#include "hetermoe/planner/memory_estimate.h"

namespace hetermoe {
namespace {

/// What the ops of a microbatch take on one device that computes all of a layer.
class Timer {
 public:
  Timer(const Plan& plan, const ModelConfig& model, const CostModel& cost, double sequences, DeviceId device)
      : plan_(plan), model_(model), cost_(cost) {
    work_.device = device;
    work_.seq_len = plan.seq_len;
    work_.sequences = sequences;
    work_.tokens = work_.rows = sequences * real(plan.seq_len);
    work_.copies = work_.rows * real(model.top_k);
    work_.experts = real(model.num_experts);
    work_.trains = true;
  }

  Seconds forward(i32 layer) { return pass(layer, Phase::kForward); }
  Seconds backward(i32 layer) {
    const bool apart = recomputes_apart(recompute_of(plan_, 0, layer), model_.is_moe(layer));
    return pass(layer, Phase::kBackward) + (apart ? pass(layer, Phase::kRecompute) : 0);
  }
  Seconds head() { return seconds({.kind = OpKind::kHead}); }

 private:
  Seconds pass(i32 layer, Phase phase) {
    const Seconds attention = seconds({.kind = OpKind::kAttention, .phase = phase, .layer = layer});
    if (!model_.is_moe(layer)) return attention;
    return attention + seconds({.kind = OpKind::kExperts, .phase = phase, .layer = layer});
  }
  Seconds seconds(const Op& op) {
    work_.op = op;
    return cost_.compute(work_);
  }

  const Plan& plan_;
  const ModelConfig& model_;
  const CostModel& cost_;
  ComputeWork work_;
};

/// Who takes which turn of which round.
class Dealer {
 public:
  Dealer(const Group& group, i64 round, i64 turns) : group_(group), round_(round), turns_(turns) {}

  /// Rows of the microbatches for a turn; a single one when they are equal.
  Shares rows(i64 turn) const {
    Shares rows;
    const auto count = static_cast<i64>(group_.devices.size());
    for (std::size_t m = 0; m < group_.microbatches.size(); ++m) {
      const i64 round = static_cast<i64>(m) / round_;
      const DeviceId device = group_.devices[idx((round * turns_ + turn) % count)];
      rows.push_back({{device, group_.microbatches[m]}});
    }
    if (std::all_of(rows.begin(), rows.end(), [&](const ShareRow& row) { return row == rows[0]; }))
      rows.resize(1);
    return rows;
  }

 private:
  const Group& group_;
  i64 round_, turns_;
};

/// [layer] the turn of a list that has it; `first` is the number of the first turn.
std::vector<i64> turn_of_layers(const std::vector<i64>& turns, i64 first) {
  std::vector<i64> out;
  for (const i64 layers : turns) {
    out.insert(out.end(), idx(layers), first);
    ++first;
  }
  return out;
}

/// All experts on every device that computes the layer.
void own_everything(LayerPlacement& layer) {
  std::set<DeviceId> devices;
  for (const Shares* shares : {&layer.attention, &layer.attention_backward}) {
    for (const ShareRow& row : *shares) devices.insert(row[0].device);
  }
  ExpertOwners owners;
  for (const DeviceId device : devices) owners.push_back({device, 1 / real(devices.size())});
  for (ExpertOwners& of_expert : layer.experts) of_expert = owners;
  if (!layer.experts.empty()) layer.experts_at = ExpertsAt::kSources;
}

/// Of a microbatch's rows from one device to another.
Seconds hop_seconds(const ModelConfig& model, const CostModel& cost, const Plan& plan, double sequences) {
  const std::vector<DeviceId>& devices = plan.groups[0].devices;
  if (devices.size() < 2) return 0;
  const Op op{.kind = OpKind::kMove, .phase = Phase::kForward};
  const Bytes bytes = wire_bytes(op, plan, model.hidden, sequences * real(plan.seq_len), 0);
  const PortBytes ends[] = {{.local_out = bytes}, {.local_in = bytes}};
  return cost.transfer({op, std::span(devices).first(2), ends}).seconds();
}

}  // namespace

TurnTimes expected_turn_times(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                              double sequences) {
  const std::unique_ptr<CostModel> cost = make_cost(model, cluster, plan, load_profiles(cluster));
  TurnTimes times{std::vector<double>(idx(model.num_layers) + 1, 0), {}};
  times.backward = times.forward;
  times.hop = hop_seconds(model, *cost, plan, sequences);
  for (const DeviceId device : plan.groups[0].devices) {
    Timer timer(plan, model, *cost, sequences, device);
    const auto raise = [](double& to, Seconds seconds) { to = std::max(to, seconds); };
    for (i32 l = 0; l < static_cast<i32>(model.num_layers); ++l) {
      raise(times.forward[idx(l)], timer.forward(l));
      raise(times.backward[idx(l)], timer.backward(l));
    }
    raise(times.backward.back(), timer.head());
  }
  return times;
}

void deal_turns(Plan& plan, const TurnSplit& split) {
  Group& group = plan.groups[0];
  const auto num_forward = static_cast<i64>(split.forward.size()),
             num_layers = static_cast<i64>(group.layers.size());
  const i64 round = plan.window > 0 ? plan.window : static_cast<i64>(group.microbatches.size());
  const Dealer dealer(group, round, split.num_turns());
  const std::vector<i64> forward = turn_of_layers(split.forward, 0);
  const std::vector<i64> backward = turn_of_layers(split.backward, num_forward + 1);
  plan.order = OrderPolicy::kRoundRobin;
  plan.turn_lengths = split.lengths;
  group.embed = dealer.rows(0);
  group.head = dealer.rows(num_forward);
  for (std::size_t l = 0; l < group.layers.size(); ++l) {
    LayerPlacement& layer = group.layers[l];
    const bool fused = l >= forward.size();
    layer.recompute = fused ? Recompute::kOff : Recompute::kResend;
    layer.attention = dealer.rows(fused ? num_forward : forward[l]);
    layer.attention_backward = {};
    if (!fused) {
      Shares rows = dealer.rows(backward[forward.size() - 1 - l]);
      if (rows != layer.attention) layer.attention_backward = std::move(rows);
    }
    own_everything(layer);
  }
  // Of what lies on hosts a device has room for the turn that it computes and for the next.
  i64 longest = std::min(split.fused - 1, num_layers);
  for (const std::vector<i64>* turns : {&split.forward, &split.backward}) {
    for (const i64 layers : *turns) longest = std::max(longest, layers);
  }
  plan.slots.attention = plan.slots.experts = static_cast<i32>(2 * std::max<i64>(1, longest));
}

namespace {

void deal_rounds(Plan& plan, const Rounds& rounds) {
  plan.window = static_cast<i32>(rounds.round);
  deal_turns(plan, rounds.split);
}

/// With so much on hosts, where there are any.
bool has_room(HostUse use, Plan plan, const ModelConfig& model, const Cluster& cluster) {
  if (has_hosts(cluster)) keep_on_hosts(use, model, cluster, plan);
  return overfilled_device(estimate_memory(plan, model), cluster).empty();
}

}  // namespace

Plan make_roundpipe(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request,
                    Plan base) {
  Group& group = base.groups[0];
  std::set<NodeId> nodes;
  for (const DeviceId device : group.devices) nodes.insert(cluster.node_of(device));
  if (nodes.size() > 1) {
    fail<ConfigError>(
        "strategy roundpipe",
        "devices {} are on {} nodes of cluster {}, expected one: turns go to every device, with "
        "the weights of one host. Name devices of one node, or use pp_ep",
        fmt::join(group.devices, ", "), nodes.size(), cluster.name);
  }
  if (!request.attention_weights.empty() || !request.expert_weights.empty() || !request.balancer.empty())
    fail<ConfigError>("strategy roundpipe",
                      "devices take turns: weights of devices and balancers mean nothing");
  base.dtype.assign(base.dtype.size(), request.dtype);
  for (LayerPlacement& layer : group.layers) layer.recompute = Recompute::kResend;
  const double largest = real(*std::max_element(group.microbatches.begin(), group.microbatches.end()));
  const std::vector<Rounds> ranked = ranked_rounds(expected_turn_times(base, model, cluster, largest),
                                                   {.devices = static_cast<i64>(group.devices.size()),
                                                    .microbatches = request.microbatches,
                                                    .round = std::max(0, request.window),
                                                    .drains = request.staleness == 0});
  for (const HostUse use : {HostUse::kAll, HostUse::kAllSaved}) {
    for (const Rounds& rounds : ranked) {
      deal_rounds(base, rounds);
      if (has_room(use, base, model, cluster)) return base;
    }
  }
  deal_rounds(base, ranked.front());
  return base;
}

std::string round_warning(const Plan& plan) {
  if (plan.order != OrderPolicy::kRoundRobin || plan.groups.empty()) return "";
  const Group& group = plan.groups[0];
  const auto devices = static_cast<i64>(group.devices.size()),
             microbatches = static_cast<i64>(group.microbatches.size());
  const i64 round = plan.window > 0 ? std::min<i64>(plan.window, microbatches) : microbatches;
  if (round >= devices) return "";
  return fmt::format(
      "rounds of {} microbatches leave {:.0f} % of the time of {} devices idle, even with turns of equal "
      "length. Rounds of {} would leave {:.0f} %: set plan.window, and enough train.microbatches",
      round, 100 * idle_share(devices, num_turns(group), microbatches, round), devices, devices,
      100 * idle_share(devices, num_turns(group), std::max(microbatches, devices), devices));
}

}  // namespace hetermoe
