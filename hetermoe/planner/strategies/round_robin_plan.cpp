#include "hetermoe/planner/strategies/round_robin_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/measured.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/plan/backward_shares.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/plan/turns.h"
#include "hetermoe/planner/estimate/host_use.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {
namespace {

/// What the ops of a microbatch take on one device that computes all of a layer.
class Timer {
 public:
  Timer(const Plan& plan, const ModelConfig& model, const CostModel& cost, const TrainedShares& trained,
        double sequences, DeviceId device)
      : plan_(plan), model_(model), cost_(cost), trained_(trained) {
    work_.device = device;
    work_.seq_len = plan.seq_len;
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
  Seconds head() { return seconds({.kind = OpKind::kHead}, UnitPart::kHead); }

 private:
  Seconds pass(i32 layer, Phase phase) {
    const Seconds attention =
        seconds({.kind = OpKind::kAttention, .phase = phase, .layer = layer}, UnitPart::kAttention);
    if (!model_.is_moe(layer)) return attention;
    return attention +
           seconds({.kind = OpKind::kExperts, .phase = phase, .layer = layer}, UnitPart::kExperts);
  }
  Seconds seconds(const Op& op, UnitPart part) {
    work_.op = op;
    work_.frozen = trained_.mean(part).frozen;
    return cost_.compute(work_);
  }

  const Plan& plan_;
  const ModelConfig& model_;
  const CostModel& cost_;
  const TrainedShares& trained_;
  ComputeWork work_;
};

/// Who takes which turn of which round.
class Dealer {
 public:
  /// The plan's window is that of the rounds.
  Dealer(const Plan& plan, const Rounds& rounds)
      : group_(plan.groups[0]),
        dealt_(rounds.dealt),
        turns_(rounds.split.num_turns()),
        round_(round_of(plan, group_)) {
    if (!dealt_.empty()) return;
    const auto microbatches = static_cast<i64>(group_.microbatches.size()),
               devices = static_cast<i64>(group_.devices.size());
    const i64 all = (microbatches + round_ - 1) / round_ * turns_;
    for (i64 i = 0; i < all; ++i) dealt_.push_back(i % devices);
  }

  /// Rows of the microbatches for a turn; a single one when they are equal.
  Shares rows(i64 turn) const {
    Shares rows;
    for (std::size_t m = 0; m < group_.microbatches.size(); ++m) {
      const i64 round = static_cast<i64>(m) / round_;
      rows.push_back({{group_.devices[idx(dealt_[idx(round * turns_ + turn)])], group_.microbatches[m]}});
    }
    if (std::all_of(rows.begin(), rows.end(), [&](const ShareRow& row) { return row == rows[0]; }))
      rows.resize(1);
    return rows;
  }

  /// In some round the turn is on another device than the one before it. Else both are one turn.
  bool changes_device(i64 turn) const {
    for (std::size_t i = idx(turn); i < dealt_.size(); i += idx(turns_))
      if (turn > 0 && dealt_[i] != dealt_[i - 1]) return true;
    return false;
  }

 private:
  const Group& group_;
  std::vector<i64> dealt_;  // [round * turns + turn] number of the device
  i64 turns_, round_;
};

/// As a plan has them: of each turn, or of each device all turns. Turns that follow each other on one device
/// in all rounds are one.
std::vector<double> plan_lengths(const Dealer& dealer, const Rounds& rounds) {
  std::vector<std::vector<Seconds>> lists = rounds.lengths;
  if (lists.empty() || std::all_of(lists.begin(), lists.end(), [&](const auto& l) { return l == lists[0]; }))
    lists = {rounds.split.lengths};
  std::vector<double> lengths;
  for (const std::vector<Seconds>& list : lists) {
    for (std::size_t turn = 0; turn < list.size(); ++turn) {
      if (turn == 0 || dealer.changes_device(static_cast<i64>(turn)))
        lengths.push_back(list[turn]);
      else
        lengths.back() += list[turn];
    }
  }
  return lengths;
}

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

std::vector<double> mean(const std::vector<LayerTimes>& devices, std::vector<double> LayerTimes::*pass) {
  std::vector<double> sums((devices[0].*pass).size(), 0);
  for (const LayerTimes& device : devices)
    for (std::size_t l = 0; l < sums.size(); ++l) sums[l] += (device.*pass)[l];
  for (double& sum : sums) sum /= real(devices.size());
  return sums;
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

/// Of the weights of each layer and of the head, from the host to every device at the same time.
std::vector<double> fetch_seconds(const ModelConfig& model, const Cluster& cluster, const CostModel& cost,
                                  const Plan& plan) {
  const DeviceId device = plan.groups[0].devices[0];
  const DeviceId ends[] = {device, cluster.num_devices() + cluster.node_of(device)};
  const Network network(cluster);
  const auto seconds = [&](i64 parameters) {
    const Bytes bytes = real(parameters) * bytes_of(plan.dtype[idx(device)]);
    const PortBytes ports[] = {{.host_in = bytes}, {.host_out = bytes}};
    const TransferCost copy = cost.transfer({{.kind = OpKind::kFetch, .device = device}, ends, ports});
    double longest = 0;
    for (const PortLoad& load : copy.loads) {
      const bool shared = network.port(load.port).kind != PortKind::kHostLink;
      longest = std::max(longest, load.seconds * (shared ? real(plan.groups[0].devices.size()) : 1));
    }
    return copy.latency + longest;
  };
  std::vector<double> fetch;
  for (i64 l = 0; l < model.num_layers; ++l) {
    const LayerWeights weights = layer_weights(model, l);
    fetch.push_back(seconds(weights.attention_part() + weights.experts));
  }
  fetch.push_back(seconds(count_parameters(model).embedding));
  return fetch;
}

}  // namespace

TurnTimes expected_turn_times(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                              double sequences, const TrainedShares& trained) {
  const std::unique_ptr<CostModel> cost = make_cost(model, cluster, plan, load_profiles(cluster));
  TurnTimes times;
  times.hop = hop_seconds(model, *cost, plan, sequences);
  if (has_hosts(cluster)) times.fetch = fetch_seconds(model, cluster, *cost, plan);
  for (const DeviceId device : plan.groups[0].devices) {
    Timer timer(plan, model, *cost, trained, sequences, device);
    LayerTimes& layers = times.of_devices.emplace_back();
    for (i32 l = 0; l < static_cast<i32>(model.num_layers); ++l) {
      layers.forward.push_back(timer.forward(l));
      layers.backward.push_back(timer.backward(l));
    }
    layers.forward.push_back(0);
    layers.backward.push_back(timer.head());
  }
  times.forward = mean(times.of_devices, &LayerTimes::forward);
  times.backward = mean(times.of_devices, &LayerTimes::backward);
  return times;
}

void deal_turns(Plan& plan, const Rounds& rounds) {
  const TurnSplit& split = rounds.split;
  Group& group = plan.groups[0];
  const auto num_forward = static_cast<i64>(split.forward.size()),
             num_layers = static_cast<i64>(group.layers.size());
  plan.window = static_cast<i32>(rounds.round);
  const Dealer dealer(plan, rounds);
  const std::vector<i64> forward = turn_of_layers(split.forward, 0);
  const std::vector<i64> backward = turn_of_layers(split.backward, num_forward + 1);
  plan.order = OrderPolicy::kRoundRobin;
  if (plan.queue_binding == QueueBinding::kDirection) plan.queue_binding = QueueBinding::kPhase;
  plan.turn_lengths = plan_lengths(dealer, rounds);
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

/// The turn that computes and one layer more: the next turn's weights come as this one's last microbatch
/// leaves them. Less room, and time where a layer takes longer to come than to compute.
void save_slots(Plan& plan) {
  if (plan.slots.attention > 2) plan.slots.attention = plan.slots.experts = plan.slots.attention / 2 + 1;
}

/// What plan.offload says.
using HostEntries = std::vector<std::string>;

/// More on hosts costs time on links that the expected step leaves out: a cut that needs it must be this
/// much shorter.
constexpr double kWorthMoreOnHosts = 0.95;

/// Which of many ways to deal the turns have room.
class RoomForRounds {
 public:
  /// `uses`: of hosts, the least first.
  RoomForRounds(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                const TrainedShares& trained, std::vector<HostEntries> uses)
      : plan_(plan), model_(model), cluster_(cluster), trained_(trained), uses_(std::move(uses)) {}

  struct Found {
    const Rounds* rounds;
    VisitSlots slots;
  };
  /// The fastest that has, with as little on hosts as that takes; none = nothing has.
  std::optional<Found> best(const std::vector<Rounds>& ranked) {
    const std::set<Turns> hopeful = hopeful_turns(ranked);
    std::optional<Found> best;
    for (const bool saves_slots : {false, true}) {
      for (const HostEntries& use : uses_) {
        const Seconds limit =
            best ? kWorthMoreOnHosts * best->rounds->step : std::numeric_limits<double>::infinity();
        if (const Rounds* rounds = first(ranked, hopeful, limit, use, saves_slots))
          best = Found{rounds, plan_.slots};
      }
    }
    return best;
  }

 private:
  using Turns = std::pair<std::vector<i64>, std::vector<i64>>;

  static Turns turns_of_split(const Rounds& rounds) { return {rounds.split.forward, rounds.split.backward}; }

  /// Of which the shortest round has room with as little on devices as can be: of most there is none.
  std::set<Turns> hopeful_turns(const std::vector<Rounds>& ranked) {
    std::map<Turns, const Rounds*> shortest;
    for (const Rounds& rounds : ranked) {
      const Rounds*& least = shortest[turns_of_split(rounds)];
      if (least == nullptr || rounds.round < least->round) least = &rounds;
    }
    std::set<Turns> hopeful;
    for (const auto& [turns, rounds] : shortest)
      if (has_room(*rounds, uses_.back(), true)) hopeful.insert(turns);
    return hopeful;
  }

  /// Of steps below `limit`; null = none. `plan_` is then dealt so.
  const Rounds* first(const std::vector<Rounds>& ranked, const std::set<Turns>& hopeful, Seconds limit,
                      const HostEntries& use, bool saves_slots) {
    std::map<Turns, i64> too_long;  // a longer round of the same turns needs more
    for (const Rounds& rounds : ranked) {
      if (rounds.step >= limit) return nullptr;
      const Turns turns = turns_of_split(rounds);
      const auto known = too_long.find(turns);
      if (!hopeful.contains(turns) || (known != too_long.end() && rounds.round >= known->second)) continue;
      if (has_room(rounds, use, saves_slots)) return &rounds;
      too_long[turns] = rounds.round;
    }
    return nullptr;
  }

  /// `plan_` is then dealt so.
  bool has_room(const Rounds& rounds, const HostEntries& use, bool saves_slots) {
    deal_turns(plan_, rounds);
    if (saves_slots) save_slots(plan_);
    Plan kept = plan_;
    offload(kept, model_, cluster_, use, "plan.offload");
    return overfilled_device(estimate_memory(kept, model_, {}, trained_), cluster_).empty();
  }

  Plan plan_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  const TrainedShares& trained_;
  std::vector<HostEntries> uses_;
};

/// The fastest cut with room for what the plan will keep on hosts; else for what it might keep there.
std::optional<RoomForRounds::Found> best_with_room(const Plan& plan, const ModelConfig& model,
                                                   const Cluster& cluster, const StrategyRequest& request,
                                                   const std::vector<Rounds>& ranked) {
  const auto best = [&](std::vector<HostEntries> uses) {
    return RoomForRounds(plan, model, cluster, request.trained, std::move(uses)).best(ranked);
  };
  std::optional<RoomForRounds::Found> found;
  if (!request.offload.empty() || !has_hosts(cluster)) found = best({request.offload});
  if (!found && has_hosts(cluster))
    found = best({offload_entries(HostUse::kAll), offload_entries(HostUse::kAllSaved)});
  return found;
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
        "the weights of one host. Name devices of one node, or use pp-ep",
        fmt::join(group.devices, ", "), nodes.size(), cluster.name);
  }
  if (!request.attention_weights.empty() || !request.expert_weights.empty() || !request.balancer.empty())
    fail<ConfigError>("strategy roundpipe",
                      "devices take turns: weights of devices and balancers mean nothing");
  for (LayerPlacement& layer : group.layers) layer.recompute = Recompute::kResend;
  Plan asked = base;  // whose time and memory is asked for
  asked.dtype.assign(base.dtype.size(), request.dtype);
  asked.wire_forward = asked.wire_backward = wire_of(request.dtype);
  const double largest = real(*std::max_element(group.microbatches.begin(), group.microbatches.end()));
  const std::vector<Rounds> ranked =
      ranked_rounds(expected_turn_times(asked, model, cluster, largest, request.trained),
                    {.devices = static_cast<i64>(group.devices.size()),
                     .microbatches = request.microbatches,
                     .round = std::max(0, request.window),
                     .drains = request.staleness == 0});
  const auto found = best_with_room(asked, model, cluster, request, ranked);
  deal_turns(base, found ? *found->rounds : ranked.front());
  if (found) base.slots = found->slots;
  return base;
}

namespace {

/// A smaller difference of idle shares may not show in whole percent.
constexpr double kIdleWorthSaying = 0.01;

}  // namespace

std::string round_warning(const Plan& plan) {
  if (!traits_of(plan.order).has_rounds || plan.groups.empty()) return "";
  const Group& group = plan.groups[0];
  const auto devices = static_cast<i64>(group.devices.size()),
             microbatches = static_cast<i64>(group.microbatches.size());
  const i64 round = round_of(plan, group), turns = static_cast<i64>(turns_of(plan, group).size());
  const bool differ = static_cast<i64>(plan.turn_lengths.size()) > turns;  // then idle ones may be slow ones
  if (round >= devices || differ) return "";
  const double idle = idle_share(devices, turns, microbatches, round),
               advised = idle_share(devices, turns, std::max(microbatches, devices), devices);
  // With few turns short rounds run side by side, and rounds of all devices can leave more of them idle.
  if (advised > idle - kIdleWorthSaying) return "";
  return fmt::format(
      "rounds of {} microbatches leave {:.0f} % of the time of {} devices idle, even with turns of equal "
      "length. Rounds of {} would leave {:.0f} %: set plan.window, and enough train.microbatches",
      round, 100 * idle, devices, devices, 100 * advised);
}

}  // namespace hetermoe
