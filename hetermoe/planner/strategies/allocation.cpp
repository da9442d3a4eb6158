#include "hetermoe/planner/strategies/allocation.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/measured.h"
#include "hetermoe/cost/memory_estimate.h"

namespace hetermoe {
namespace {

constexpr i64 kRadius = 2;  ///< devices by which neighbours of an allocation differ
constexpr double kSame = 1e-12;

bool is_less(double a, double b) { return a < b - kSame * std::abs(b); }

/// [m] speed of the first m devices in the order of advantage at attention, and of the others at experts.
struct Speeds {
  explicit Speeds(const AllocationInput& input) : attention(input.devices.size() + 1, 0), experts(attention) {
    const std::vector<std::size_t> order = by_advantage(input.devices);
    const std::size_t count = order.size();
    for (std::size_t i = 0; i < count; ++i) {
      attention[i + 1] = attention[i] + 1 / input.devices[order[i]].attention;
      experts[count - i - 1] = experts[count - i] + 1 / input.devices[order[count - i - 1]].experts;
    }
  }
  std::vector<double> attention, experts;
};

/// By the speeds of each role's devices.
Allocation allocation_by(const AllocationInput& input, double attention_speed, double expert_speed,
                         i64 attention, i64 nics) {
  const Seconds attend = 1 / attention_speed, compute = 1 / expert_speed, out = input.transfer / real(nics),
                back = input.transfer / real(input.nics - nics);
  return {.attention = attention,
          .experts = std::ssize(input.devices) - attention,
          .attention_nics = nics,
          .expert_nics = input.nics - nics,
          .attention_s = std::max(attend, out),
          .experts_s = std::max(compute, back),
          .slack = input.transfer > 0 ? std::min(attend / out, compute / back)
                                      : std::numeric_limits<double>::infinity(),
          .attention_travels = out > attend,
          .experts_travel = back > compute};
}

Allocation allocation_of(const AllocationInput& input, const Speeds& speeds, i64 attention, i64 nics) {
  return allocation_by(input, speeds.attention[idx(attention)], speeds.experts[idx(attention)], attention,
                       nics);
}

bool is_better(const Allocation& a, const Allocation& b) {
  if (is_less(a.seconds(), b.seconds()) || is_less(b.seconds(), a.seconds()))
    return a.seconds() < b.seconds();
  return is_less(b.slack, a.slack);
}

/// First and last number of devices with attention.
std::pair<i64, i64> range_of(const AllocationInput& input) {
  const i64 most = std::ssize(input.devices) - input.least_experts;
  return {input.least_attention, input.most_attention > 0 ? std::min(most, input.most_attention) : most};
}

/// Rows of a token go out to its owners and back, forward and backward: the larger of both directions.
Seconds transfer_seconds(const ModelConfig& model, const Cluster& cluster, const CostModel& cost,
                         const Plan& plan, i32 layer, double tokens) {
  const double half = std::max(1.0, real(cluster.num_devices()) / 2);
  const double rows = tokens * half * hit_chance(model, real(model.num_experts) / half);
  const auto bytes = [&](OpKind kind, Phase phase) {
    return wire_bytes({.kind = kind, .phase = phase, .layer = layer}, plan, model.hidden, rows,
                      tokens * real(model.top_k));
  };
  const Bytes out = bytes(OpKind::kDispatch, Phase::kForward) + bytes(OpKind::kCombine, Phase::kBackward),
              in = bytes(OpKind::kCombine, Phase::kForward) + bytes(OpKind::kDispatch, Phase::kBackward);
  const DeviceId first = 0;
  const PortBytes sent{.net_out = std::max(out, in)};
  const TransferCost transfer =
      cost.transfer({{.kind = OpKind::kDispatch, .layer = layer}, {&first, 1}, {&sent, 1}});
  return (transfer.seconds() - transfer.latency) * real(cluster.nodes[idx(cluster.node_of(first))].nics);
}

/// The last devices by advantage that have room for the state of all experts; 1 where not even all have.
i64 devices_for_experts(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                        const std::vector<std::size_t>& order) {
  const double parameters = real(model.num_moe_layers() * model.num_experts * expert_weights(model));
  double room = 0;
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto device = static_cast<DeviceId>(order[i]);
    room += usable_memory(cluster.type_of(device)) / state_bytes_of(plan, device).total();
    if (room >= parameters) return static_cast<i64>(order.size() - i);
  }
  return 1;
}

}  // namespace

Json to_json(const Allocation& allocation) {
  return {{"attention_devices", allocation.attention},
          {"expert_devices", allocation.experts},
          {"attention_s", allocation.attention_s},
          {"experts_s", allocation.experts_s},
          {"attention_bound", allocation.attention_travels ? "network" : "compute"},
          {"experts_bound", allocation.experts_travel ? "network" : "compute"}};
}

std::vector<std::size_t> by_advantage(const std::vector<AllocationInput::Device>& devices) {
  std::vector<std::size_t> order(devices.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return is_less(devices[a].attention * devices[b].experts, devices[b].attention * devices[a].experts);
  });
  return order;
}

Allocation allocation_of(const AllocationInput& input, i64 attention, i64 attention_nics) {
  return allocation_of(input, Speeds(input), attention, attention_nics);
}

Allocation allocate(const AllocationInput& input) {
  const Speeds speeds(input);
  const auto [first, last] = range_of(input);
  std::optional<Allocation> best;
  for (i64 attention = first; attention <= last; ++attention) {
    for (i64 nics = 1; nics < input.nics; ++nics) {
      const Allocation next = allocation_of(input, speeds, attention, nics);
      if (!best || is_better(next, *best)) best = next;
    }
  }
  HM_CHECK(best, "{} to {} devices with attention, {} ports", first, last, input.nics);
  return *best;
}

AllocationInput allocation_input(const ModelConfig& model, const Cluster& cluster, const CostModel& cost,
                                 const Plan& plan, double sequences) {
  AllocationInput input;
  i32 layer = 0;
  while (!model.is_moe(layer)) ++layer;
  ComputeWork work;
  work.op = {.layer = layer, .microbatch = 0};
  work.seq_len = plan.seq_len;
  work.tokens = sequences * real(plan.seq_len);
  work.copies = work.rows = work.merged_rows = work.tokens * real(model.top_k);
  work.experts = real(model.num_experts);
  const auto seconds = [&](OpKind kind) {
    work.op.kind = kind, work.op.phase = Phase::kForward;
    const Seconds forward = cost.compute(work);
    work.op.phase = Phase::kBackward;
    return forward + cost.compute(work);
  };
  std::map<std::tuple<i32, double, Dtype>, AllocationInput::Device> known;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const Device& device = cluster.devices[idx(d)];
    const auto [at, is_new] = known.try_emplace({device.type, device.speed, plan.dtype[idx(d)]});
    work.device = d;
    if (is_new) at->second = {seconds(OpKind::kAttention), seconds(OpKind::kExperts)};
    input.devices.push_back(at->second);
  }
  if (cluster.nodes.size() > 1) {
    input.transfer = transfer_seconds(model, cluster, cost, plan, layer, work.tokens);
    input.nics = std::accumulate(cluster.nodes.begin(), cluster.nodes.end(), i64{0},
                                 [](i64 sum, const Node& node) { return sum + node.nics; });
  }
  input.least_experts = devices_for_experts(model, cluster, plan, by_advantage(input.devices));
  return input;
}

void limit_by_groups(AllocationInput& input, i64 attention, i64 experts) {
  input.least_attention = attention;
  input.least_experts =
      std::clamp(input.least_experts, experts, static_cast<i64>(input.devices.size()) - attention);
}

void set_roles(StrategyRequest& request, AllocatedRoles split) {
  request.attention = std::move(split.roles.attention);
  request.attention_weights = std::move(split.attention_weights);
  request.experts = std::move(split.roles.experts);
  request.expert_weights = std::move(split.expert_weights);
}

AllocatedRoles roles_of(const AllocationInput& input, i64 attention) {
  std::vector<std::size_t> order = by_advantage(input.devices);
  const auto end = order.begin() + attention;
  // In the order of the cluster: neighbours in a list share nodes.
  std::sort(order.begin(), end);
  std::sort(end, order.end());
  AllocatedRoles out;
  for (auto at = order.begin(); at != order.end(); ++at) {
    const AllocationInput::Device& device = input.devices[*at];
    (at < end ? out.roles.attention : out.roles.experts).push_back(static_cast<DeviceId>(*at));
    (at < end ? out.attention_weights : out.expert_weights)
        .push_back(1 / (at < end ? device.attention : device.experts));
  }
  for (std::vector<double>* weights : {&out.attention_weights, &out.expert_weights})
    if (std::equal(weights->begin() + 1, weights->end(), weights->begin())) weights->clear();
  return out;
}

std::vector<i64> near_allocation(const AllocationInput& input) {
  const i64 best = allocate(input).attention;
  const auto [first, last] = range_of(input);
  std::vector<i64> near = {best};
  for (i64 away = 1; away <= kRadius; ++away) {
    if (best - away >= first) near.push_back(best - away);
    if (best + away <= last) near.push_back(best + away);
  }
  return near;
}

std::optional<Allocation> allocation_of_plan(const Plan& plan, const ModelConfig& model,
                                             const Cluster& cluster, const CostModel& cost) {
  if (plan.order != OrderPolicy::kTimed || plan.groups.empty() || model.num_moe_layers() == 0) return {};
  const Group& group = plan.groups[0];
  std::set<DeviceId> attention, experts;
  for (const LayerPlacement& layer : group.layers) {
    for (const ShareRow& row : layer.attention)
      for (const Share& share : row) attention.insert(share.device);
    for (const auto& owners : layer.experts)
      for (const ExpertOwner& owner : owners) experts.insert(owner.device);
  }
  if (attention.empty() || experts.empty()) return {};
  const double sequences = real(total_sequences(group)) / real(std::ssize(group.microbatches));
  const AllocationInput input = allocation_input(model, cluster, cost, plan, sequences);
  double attend = 0, compute = 0;
  for (const DeviceId d : attention) attend += 1 / input.devices[idx(d)].attention;
  for (const DeviceId d : experts) compute += 1 / input.devices[idx(d)].experts;
  std::optional<Allocation> best;
  for (i64 nics = 1; nics < input.nics; ++nics) {
    Allocation next = allocation_by(input, attend, compute, std::ssize(attention), nics);
    next.experts = std::ssize(experts);
    if (!best || is_better(next, *best)) best = next;
  }
  return best;
}

Roles allocated_roles(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  const Roles asked = roles_of(DeviceUse::kApart, cluster, {request.attention, request.experts});
  const bool is_said = !request.attention.empty() || !request.experts.empty() ||
                       !request.attention_weights.empty() || !request.expert_weights.empty() ||
                       !request.stage_attention.empty() || !request.stage_experts.empty();
  const bool are_equal =
      std::all_of(cluster.devices.begin(), cluster.devices.end(), [&](const Device& device) {
        return device.type == cluster.devices[0].type && device.speed == cluster.devices[0].speed;
      });
  const i64 devices = cluster.num_devices();
  const std::vector<i64> groups = request.depth_groups.empty()
                                      ? std::vector<i64>{std::clamp<i64>(devices / 2, 1, 2)}
                                      : request.depth_groups;
  if (is_said || !are_equal || model.num_moe_layers() == 0 || request.seq_len < 1 ||
      request.microbatches < 1 || groups.front() + groups.back() > devices)
    return asked;
  Plan plan;
  plan.seq_len = request.seq_len;
  plan.dtype.assign(cluster.devices.size(), request.dtype);
  plan.wire_forward = plan.wire_backward = wire_of(request.dtype);
  // A device without a sequence of a microbatch is idle.
  const i64 sequences = (request.sequences + request.microbatches - 1) / request.microbatches;
  AllocationInput input = allocation_input(
      model, cluster, *make_cost(model, cluster, plan, load_profiles(cluster)), plan, real(sequences));
  if (!request.offload.empty()) input.least_experts = 1;
  limit_by_groups(input, groups.front(), groups.back());
  input.most_attention = std::max(groups.front(), groups.front() * sequences);
  return roles_of(input, allocate(input).attention).roles;
}

}  // namespace hetermoe
