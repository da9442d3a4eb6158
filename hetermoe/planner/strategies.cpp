#include "hetermoe/planner/strategies.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/base/index.h"
#include "hetermoe/planner/balance/balancers.h"

namespace hetermoe {

ShareRow make_shares(const std::vector<DeviceId>& devices, i64 sequences,
                     const std::vector<double>& weights) {
  const std::vector<i64> parts =
      proportional_split(sequences, weights.empty() ? std::vector<double>(devices.size(), 1) : weights);
  ShareRow row;
  for (std::size_t i = 0; i < devices.size(); ++i) row.push_back({devices[i], parts[i]});
  return row;
}

Shares make_share_rows(const std::vector<DeviceId>& devices, const std::vector<i64>& microbatches,
                       const std::vector<double>& weights) {
  Shares rows;
  for (const i64 sequences : microbatches) rows.push_back(make_shares(devices, sequences, weights));
  if (std::all_of(rows.begin(), rows.end(), [&](const ShareRow& row) { return row == rows[0]; }))
    rows.resize(1);
  return rows;
}

namespace {

/// Old devices lose most at attention, and most of that where the scores go through memory.
bool better_at_attention(const DeviceType& a, const DeviceType& b) {
  const bool plain_a = a.attention_kernel == AttentionKernel::kPlain,
             plain_b = b.attention_kernel == AttentionKernel::kPlain;
  return plain_a != plain_b ? plain_b : a.peak(Dtype::kFp16) > b.peak(Dtype::kFp16);
}

}  // namespace

Roles default_roles(const Cluster& cluster) {
  std::size_t best = 0;
  std::vector<bool> used(cluster.types.size(), false);
  for (const Device& device : cluster.devices) used[idx(device.type)] = true;
  for (std::size_t t = 0; t < cluster.types.size(); ++t) {
    if (used[t] && (!used[best] || better_at_attention(cluster.types[t], cluster.types[best]))) best = t;
  }
  Roles roles;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const bool newer = idx(cluster.devices[idx(d)].type) == best;
    (newer ? roles.attention : roles.experts).push_back(d);
  }
  if (roles.experts.empty() && roles.attention.size() > 1) {
    const auto half = roles.attention.begin() + static_cast<std::ptrdiff_t>((roles.attention.size() + 1) / 2);
    roles.experts.assign(half, roles.attention.end());
    roles.attention.erase(half, roles.attention.end());
  }
  return roles;
}

Roles roles_of(DeviceUse use, const Cluster& cluster, const Roles& asked) {
  if (use == DeviceUse::kAlike && asked.attention.empty()) {
    std::vector<DeviceId> all(cluster.devices.size());
    std::iota(all.begin(), all.end(), 0);
    return {all, all};
  }
  Roles roles = default_roles(cluster);
  if (!asked.attention.empty()) roles.attention = asked.attention;
  if (use == DeviceUse::kOne) roles.attention.resize(1);
  if (use != DeviceUse::kApart) roles.experts = roles.attention;
  if (use == DeviceUse::kApart && !asked.experts.empty()) roles.experts = asked.experts;
  return roles;
}

namespace {

/// Stops at the first thing that a strategy cannot do.
void check(const std::string& strategy, const ModelConfig& model, const Cluster& cluster,
           const StrategyRequest& request, const Roles& roles) {
  const auto need = [&](bool ok, const std::string& what) {
    if (!ok) fail<ConfigError>("strategy " + strategy, "{}", what);
  };
  const auto need_size = [&](const std::string& field, std::size_t got, std::size_t expected,
                             const std::string& one_per) {
    need(got == 0 || got == expected,
         fmt::format("{} has {} entries, expected one per {} ({})", field, got, one_per, expected));
  };
  need(request.seq_len > 0 && request.sequences > 0 && request.microbatches > 0,
       "seq_len, sequences and microbatches must be at least 1");
  need(!roles.attention.empty(), fmt::format("no device computes attention in cluster {}", cluster.name));
  need(!roles.experts.empty(),
       fmt::format("no device owns experts in cluster {} ({} devices). With one device use "
                   "strategy single.",
                   cluster.name, cluster.num_devices()));
  need_size("attention_weights", request.attention_weights.size(), roles.attention.size(),
            "device with attention");
  need_size("expert_weights", request.expert_weights.size(), roles.experts.size(), "device with experts");
  need(request.microbatches <= request.sequences,
       fmt::format("{} microbatches need at least as many sequences, got {}", request.microbatches,
                   request.sequences));
  need_size("experts_moved", request.experts_moved.size(), idx(model.num_layers), "layer");
  need((request.balancer == "asym_ea") == !request.experts_moved.empty() || request.balancer.empty(),
       fmt::format("experts_moved and balancer asym_ea need each other, got balancer {}", request.balancer));
  need_size("expert_load", request.expert_load.size(), idx(model.num_layers), "layer");
  for (i64 l = 0; l < model.num_layers && !request.expert_load.empty(); ++l) {
    const auto got = static_cast<i64>(request.expert_load[idx(l)].size());
    need(!model.is_moe(l) || got == model.num_experts,
         fmt::format("expert_load[{}] has {} entries, expected one per expert ({})", l, got,
                     model.num_experts));
  }
}

BalanceInput balance_input(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request,
                           const Roles& roles) {
  BalanceInput input;
  const auto add = [&](DeviceId id, double speed, bool owns) {
    input.devices.push_back(
        {.id = id, .node = cluster.devices.at(idx(id)).node, .unit_s = 1 / speed, .owns = owns});
  };
  for (std::size_t i = 0; i < roles.experts.size(); ++i)
    add(roles.experts[i], request.expert_weights.empty() ? 1 : request.expert_weights[i], true);
  if (!request.experts_moved.empty()) {
    for (const DeviceId device : roles.attention) add(device, 1, false);
  }
  const std::vector<double> even(idx(model.num_experts), 1.0);
  for (i64 l = 0; l < model.num_layers; ++l) {
    if (!model.is_moe(l)) continue;
    input.load.push_back(request.expert_load.empty() ? even : request.expert_load[idx(l)]);
    if (!request.experts_moved.empty()) input.moved.push_back(request.experts_moved[idx(l)]);
  }
  return input;
}

/// [layers with experts]
std::vector<LayerOwners> place_experts(const ModelConfig& model, const Cluster& cluster,
                                       const StrategyRequest& request, const Roles& roles) {
  const std::string chosen = !request.experts_moved.empty() ? "asym_ea" : "proportional";
  const Balancer& balancer = find_balancer(request.balancer.empty() ? chosen : request.balancer);
  return balancer.place(balance_input(model, cluster, request, roles));
}

std::vector<DeviceId> devices_of(const Roles& roles) {
  std::vector<DeviceId> devices = roles.attention;
  devices.insert(devices.end(), roles.experts.begin(), roles.experts.end());
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  return devices;
}

Plan make_plan(const std::string& strategy, const ModelConfig& model, const Cluster& cluster,
               const StrategyRequest& request, const Roles& roles, i32 window) {
  check(strategy, model, cluster, request, roles);
  Plan plan;
  plan.strategy = strategy;
  plan.model = model.name;
  plan.seq_len = request.seq_len;
  plan.window = request.window >= 0 ? request.window : window;
  plan.dtype.assign(idx(cluster.num_devices()), Dtype::kFp32);
  Group group;
  group.devices = devices_of(roles);
  group.microbatches =
      proportional_split(request.sequences, std::vector<double>(idx(request.microbatches), 1));
  const Shares shares = make_share_rows(roles.attention, group.microbatches, request.attention_weights);
  group.embed = group.head = shares;
  std::vector<LayerOwners> owners = place_experts(model, cluster, request, roles);
  std::size_t moe = 0;
  for (i64 l = 0; l < model.num_layers; ++l) {
    LayerPlacement layer{.attention = shares, .experts = {}};
    if (model.is_moe(l)) layer.experts = std::move(owners[moe++]);
    group.layers.push_back(std::move(layer));
  }
  plan.groups.push_back(std::move(group));
  return plan;
}

Plan make_in(const char* strategy, const ModelConfig& model, const Cluster& cluster,
             const StrategyRequest& request, i32 window) {
  const DeviceUse use = find_strategy(strategy).use;
  return make_plan(strategy, model, cluster, request,
                   roles_of(use, cluster, {request.attention, request.experts}), window);
}

Plan make_single(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  return make_in("single", model, cluster, request, 1);
}

Plan make_ep(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  return make_in("ep", model, cluster, request, 1);
}

Plan make_ep_overlap(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  return make_in("ep_overlap", model, cluster, request, 2);
}

Plan make_dist_ep(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  return make_in("dist_ep", model, cluster, request, 1);
}

Plan make_zebra(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  return make_in("zebra", model, cluster, request, 0);
}

}  // namespace

const std::vector<Strategy>& strategies() {
  static const std::vector<Strategy> all = {
      {"single", "everything on one device", DeviceUse::kOne, make_single},
      {"ep", "expert parallelism: equal attention and experts on all devices, one microbatch after another",
       DeviceUse::kAlike, make_ep},
      {"ep_overlap", "expert parallelism with microbatches interleaved", DeviceUse::kAlike, make_ep_overlap},
      {"dist_ep", "attention on newer devices, experts on older ones, one microbatch after another",
       DeviceUse::kApart, make_dist_ep},
      {"zebra", "attention on newer devices, experts on older ones, microbatches zig-zag between them",
       DeviceUse::kApart, make_zebra},
  };
  return all;
}

const Strategy& find_strategy(const std::string& name) {
  std::string key = name;
  std::replace(key.begin(), key.end(), '-', '_');
  std::vector<std::string> known;
  for (const Strategy& strategy : strategies()) {
    if (strategy.name == key) return strategy;
    known.push_back(strategy.name);
    std::replace(known.back().begin(), known.back().end(), '_', '-');
  }
  fail<ConfigError>("strategy", "unknown strategy \"{}\".{}", name, known_names_hint(name, known));
}

}  // namespace hetermoe
