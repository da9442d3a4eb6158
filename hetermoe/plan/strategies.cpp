#include "hetermoe/plan/strategies.h"

#include <algorithm>
#include <numeric>

namespace hetermoe {

std::vector<i64> proportional_split(i64 total, const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  HM_CHECK(!weights.empty() && sum > 0, "nothing to split over");
  std::vector<i64> parts;
  std::vector<double> remainders;
  i64 given = 0;
  for (const double weight : weights) {
    const double exact = static_cast<double>(total) * weight / sum;
    parts.push_back(static_cast<i64>(exact));
    remainders.push_back(exact - static_cast<double>(parts.back()));
    given += parts.back();
  }
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return remainders[a] > remainders[b]; });
  for (std::size_t i = 0; given < total; ++i, ++given) ++parts[order[i % order.size()]];
  return parts;
}

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
  for (const Device& device : cluster.devices) used[static_cast<std::size_t>(device.type)] = true;
  for (std::size_t t = 0; t < cluster.types.size(); ++t) {
    if (used[t] && (!used[best] || better_at_attention(cluster.types[t], cluster.types[best]))) best = t;
  }
  Roles roles;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const bool newer = static_cast<std::size_t>(cluster.devices[static_cast<std::size_t>(d)].type) == best;
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

/// Experts 0..n-1 in contiguous runs over the devices.
std::vector<std::vector<ExpertOwner>> spread_experts(i64 num_experts, const std::vector<DeviceId>& devices,
                                                     const std::vector<double>& weights) {
  const std::vector<i64> counts =
      proportional_split(num_experts, weights.empty() ? std::vector<double>(devices.size(), 1) : weights);
  std::vector<std::vector<ExpertOwner>> owners;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (i64 e = 0; e < counts[i]; ++e) owners.push_back({{devices[i], 1}});
  }
  return owners;
}

/// Asym-EA: each expert device gives the last `moved` experts of its run to the attention devices, in turn.
void move_experts(std::vector<std::vector<ExpertOwner>>& owners, i64 moved, const std::vector<DeviceId>& to) {
  std::size_t next = 0;
  for (std::size_t begin = 0, end; begin < owners.size(); begin = end) {
    end = begin;
    while (end < owners.size() && owners[end][0].device == owners[begin][0].device) ++end;
    const std::size_t give = std::min(static_cast<std::size_t>(moved), end - begin);
    for (std::size_t e = end - give; e < end; ++e) owners[e] = {{to[next++ % to.size()], 1}};
  }
}

Plan make_plan(const std::string& strategy, const ModelConfig& model, const Cluster& cluster,
               const StrategyRequest& request, const Roles& roles, i32 window) {
  const auto need = [&](bool ok, const std::string& what) {
    if (!ok) fail<ConfigError>("strategy " + strategy, "{}", what);
  };
  need(request.seq_len > 0 && request.sequences > 0 && request.microbatches > 0,
       "seq_len, sequences and microbatches must be at least 1");
  need(!roles.attention.empty(), fmt::format("no device computes attention in cluster {}", cluster.name));
  need(!roles.experts.empty(),
       fmt::format("no device owns experts in cluster {} ({} devices). With one device use "
                   "strategy single.",
                   cluster.name, cluster.num_devices()));
  need(request.attention_weights.empty() || request.attention_weights.size() == roles.attention.size(),
       fmt::format("attention_weights has {} entries, expected one per device with attention ({})",
                   request.attention_weights.size(), roles.attention.size()));
  need(request.expert_weights.empty() || request.expert_weights.size() == roles.experts.size(),
       fmt::format("expert_weights has {} entries, expected one per device with experts ({})",
                   request.expert_weights.size(), roles.experts.size()));
  need(request.microbatches <= request.sequences,
       fmt::format("{} microbatches need at least as many sequences, got {}", request.microbatches,
                   request.sequences));
  need(request.experts_moved.empty() || static_cast<i64>(request.experts_moved.size()) == model.num_layers,
       fmt::format("experts_moved has {} entries, expected one per layer ({})", request.experts_moved.size(),
                   model.num_layers));
  Plan plan;
  plan.strategy = strategy;
  plan.model = model.name;
  plan.seq_len = request.seq_len;
  plan.window = request.window >= 0 ? request.window : window;
  plan.dtype.assign(static_cast<std::size_t>(cluster.num_devices()), Dtype::kFp32);
  Group group;
  group.devices = roles.attention;
  group.devices.insert(group.devices.end(), roles.experts.begin(), roles.experts.end());
  std::sort(group.devices.begin(), group.devices.end());
  group.devices.erase(std::unique(group.devices.begin(), group.devices.end()), group.devices.end());
  group.microbatches = proportional_split(
      request.sequences, std::vector<double>(static_cast<std::size_t>(request.microbatches), 1));
  const Shares shares = make_share_rows(roles.attention, group.microbatches, request.attention_weights);
  group.embed = group.head = shares;
  for (i64 l = 0; l < model.num_layers; ++l) {
    LayerPlacement layer{shares, {}};
    if (model.is_moe(l)) {
      layer.experts = spread_experts(model.num_experts, roles.experts, request.expert_weights);
      if (!request.experts_moved.empty()) {
        move_experts(layer.experts, request.experts_moved[static_cast<std::size_t>(l)], roles.attention);
      }
    }
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
  }
  std::replace(known.begin(), known.end(), std::string("ep_overlap"), std::string("ep-overlap"));
  std::replace(known.begin(), known.end(), std::string("dist_ep"), std::string("dist-ep"));
  fail<ConfigError>("strategy", "unknown strategy \"{}\".{}", name, known_names_hint(name, known));
}

}  // namespace hetermoe
