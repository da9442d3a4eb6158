#include "hetermoe/planner/round_robin_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/measured.h"
#include "hetermoe/plan/backward_shares.h"
#include "hetermoe/plan/recompute.h"

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

}  // namespace

TurnTimes expected_turn_times(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                              double sequences) {
  const std::unique_ptr<CostModel> cost = make_cost(model, cluster, plan, load_profiles(cluster));
  TurnTimes times{std::vector<double>(idx(model.num_layers) + 1, 0), {}};
  times.backward = times.forward;
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
  const i64 devices = static_cast<i64>(group.devices.size()), microbatches = request.microbatches;
  if (request.window < 0)
    base.window = static_cast<i32>(std::min(microbatches, std::max(devices, (microbatches + 1) / 2)));
  for (LayerPlacement& layer : group.layers) layer.recompute = Recompute::kResend;
  const double largest = real(*std::max_element(group.microbatches.begin(), group.microbatches.end()));
  deal_turns(base, split_turns(expected_turn_times(base, model, cluster, largest), devices, microbatches));
  return base;
}

namespace {

/// Of a round: one, and one more wherever shares change on the way to the head and back.
i64 num_turns(const Group& group) {
  i64 turns = 1;
  for (std::size_t l = 0; l < group.layers.size(); ++l) {
    const bool last = l + 1 == group.layers.size();
    const auto row = [](const Shares& shares) -> const ShareRow& { return share_row(shares, 0); };
    turns += row(group.layers[l].attention) != row(last ? group.head : group.layers[l + 1].attention);
    turns += row(backward_shares(group.layers[l])) !=
             row(last ? group.head : backward_shares(group.layers[l + 1]));
  }
  return turns;
}

}  // namespace

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
