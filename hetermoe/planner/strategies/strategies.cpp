#include "hetermoe/planner/strategies/strategies.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "hetermoe/balance/balancers.h"
#include "hetermoe/base/index.h"
#include "hetermoe/planner/strategies/allocation.h"
#include "hetermoe/planner/strategies/depth_groups.h"
#include "hetermoe/planner/strategies/round_robin_plan.h"
#include "hetermoe/planner/strategies/teams.h"

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
void check(const Strategy& strategy, const ModelConfig& model, const Cluster& cluster,
           const StrategyRequest& request, const Roles& roles) {
  const auto need = [&](bool ok, const std::string& what) {
    if (!ok) fail<ConfigError>("strategy " + strategy.name, "{}", what);
  };
  if (model.num_moe_layers() == 0 && strategy.use == DeviceUse::kApart) {
    std::vector<std::string> fitting = strategy_names();
    std::erase_if(fitting, [&](const std::string& name) {
      return !misfit(find_strategy(name), model, cluster).empty();
    });
    need(false,
         fmt::format("model {} has no experts, so the devices for experts alone would have nothing to do: "
                     "expected one of {}",
                     model.name, fmt::join(fitting, ", ")));
  }
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
  input.replicas = request.expert_replicas;
  input.groups = std::max<i64>(1, model.num_expert_groups);
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
  if (model.num_moe_layers() == 0) return {};
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

/// A run of layers, who computes them, and what was asked for those devices alone.
struct StageOfRequest {
  Roles roles;
  StrategyRequest request;
  i64 layers = 0;
};

/// So many of the entries, from `begin` on; of an empty list none.
template <class T>
std::vector<T> slice(const std::vector<T>& all, i64 begin, i64 count) {
  if (all.empty()) return {};
  return {all.begin() + begin, all.begin() + begin + count};
}

[[noreturn]] void refuse(const std::string& where, i64 got, const std::string& what, i64 stages) {
  fail<ConfigError>(where, "{} {} are too few for {} stages, each needs one: ask for fewer", got, what,
                    stages);
}

/// Cuts `total` into stages: as asked, or by weight. Throws where a stage would get nothing.
std::vector<i64> cut(const std::string& where, const std::string& what, const std::vector<i64>& asked,
                     i64 total, const std::vector<double>& weights) {
  const auto stages = static_cast<i64>(weights.size());
  if (total < stages) refuse(where, total, what, stages);
  if (asked.empty()) {
    // Everyone has one before anyone has two.
    std::vector<i64> parts = proportional_split(total - stages, weights);
    for (i64& part : parts) ++part;
    return parts;
  }
  const bool whole = static_cast<i64>(asked.size()) == stages &&
                     std::accumulate(asked.begin(), asked.end(), i64{0}) == total &&
                     *std::min_element(asked.begin(), asked.end()) > 0;
  if (!whole) {
    fail<ConfigError>(where, "got {} for the {}, expected {} numbers from 1 on that add up to {}",
                      fmt::join(asked, ", "), what, stages, total);
  }
  return asked;
}

/// As many as a list has, else two where there are devices and layers for two.
i64 asked_stages(const ModelConfig& model, const StrategyRequest& request, const Roles& roles) {
  if (!request.stage_layers.empty())
    return std::max<i64>(1, static_cast<i64>(request.stage_layers.size()) / request.interleave);
  for (const std::vector<i64>* list : {&request.stage_attention, &request.stage_experts})
    if (!list->empty()) return static_cast<i64>(list->size());
  const std::size_t devices = std::min(roles.attention.size(), roles.experts.size());
  return std::min({i64{2}, static_cast<i64>(devices), model.num_layers});
}

std::vector<StageOfRequest> cut_stages(const std::string& where, const ModelConfig& model,
                                       const StrategyRequest& request, const Roles& roles, bool apart) {
  if (request.stages > model.num_layers) refuse(where, model.num_layers, "layers", request.stages);
  const std::vector<double> equal(idx(request.stages), 1);
  const std::vector<i64> attention = cut(where, "devices with attention", request.stage_attention,
                                         static_cast<i64>(roles.attention.size()), equal);
  const std::vector<i64> experts = apart ? cut(where, "devices with experts", request.stage_experts,
                                               static_cast<i64>(roles.experts.size()), equal)
                                         : attention;
  std::vector<double> devices;
  for (std::size_t s = 0; s < equal.size(); ++s)
    devices.push_back(real(attention[s] + (apart ? experts[s] : 0)));
  std::vector<double> runs;
  for (i64 i = 0; i < request.interleave; ++i) runs.insert(runs.end(), devices.begin(), devices.end());
  const std::vector<i64> layers = cut(where, "layers", request.stage_layers, model.num_layers, runs);
  std::vector<StageOfRequest> stages;
  i64 first_attention = 0, first_expert = 0;
  for (std::size_t s = 0; s < equal.size(); ++s) {
    StageOfRequest stage{.roles = {slice(roles.attention, first_attention, attention[s]),
                                   slice(roles.experts, first_expert, experts[s])},
                         .request = request,
                         .layers = layers[s]};
    stage.request.attention_weights = slice(request.attention_weights, first_attention, attention[s]);
    stage.request.head_weights = slice(request.head_weights, first_attention, attention[s]);
    stage.request.expert_weights = slice(request.expert_weights, first_expert, experts[s]);
    first_attention += attention[s], first_expert += experts[s];
    stages.push_back(std::move(stage));
  }
  for (std::size_t run = stages.size(); run < layers.size(); ++run) {
    stages.push_back(stages[run - equal.size()]);
    stages.back().layers = layers[run];
  }
  return stages;
}

void append_layers(const ModelConfig& model, const Cluster& cluster, const StageOfRequest& stage, bool teams,
                   Group& group) {
  const Shares shares =
      teams ? make_team_rows(model, stage.request, stage.roles.attention, group.microbatches)
            : make_share_rows(stage.roles.attention, group.microbatches, stage.request.attention_weights);
  if (group.layers.empty()) group.embed = shares;
  group.head = shares;
  std::vector<LayerOwners> owners = place_experts(model, cluster, stage.request, stage.roles);
  const auto first = static_cast<i64>(group.layers.size());
  std::size_t moe = 0;
  for (i64 l = 0; l < first + stage.layers; ++l) {
    LayerPlacement layer{.attention = shares, .experts = {}};
    if (model.is_moe(l)) layer.experts = std::move(owners[moe++]);
    if (l >= first) group.layers.push_back(std::move(layer));
  }
}

Plan make_plan(const Strategy& strategy, const ModelConfig& model, const Cluster& cluster,
               const StrategyRequest& request, const Roles& roles, i32 window) {
  check(strategy, model, cluster, request, roles);
  Plan plan;
  plan.strategy = strategy.name;
  plan.model = model.name;
  plan.seq_len = request.seq_len;
  plan.window = request.window >= 0 ? request.window : window;
  plan.dtype.assign(idx(cluster.num_devices()), Dtype::kFp32);
  Group group;
  group.devices = devices_of(roles);
  group.microbatches =
      proportional_split(request.sequences, std::vector<double>(idx(request.microbatches), 1));
  if (strategy.cut == Cut::kStages) {
    plan.order = OrderPolicy::kOneFOneB;
    if (plan.window == 0) plan.window = static_cast<i32>(request.microbatches);
    StrategyRequest staged = request;
    if (staged.stages == 0) staged.stages = asked_stages(model, request, roles);
    for (const StageOfRequest& stage :
         cut_stages("strategy " + strategy.name, model, staged, roles, strategy.use == DeviceUse::kApart))
      append_layers(model, cluster, stage, !request.team.empty(), group);
  } else {
    append_layers(model, cluster, {roles, request, model.num_layers},
                  strategy.cut == Cut::kTeams || !request.team.empty(), group);
  }
  plan.groups.push_back(std::move(group));
  return plan;
}

Plan make_in(const char* strategy, const ModelConfig& model, const Cluster& cluster,
             const StrategyRequest& request, i32 window) {
  const Strategy& row = find_strategy(strategy);
  return make_plan(row, model, cluster, request,
                   roles_of(row.use, cluster, {request.attention, request.experts}), window);
}

Plan make_single(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  return make_in("single", model, cluster, request, 1);
}

Plan make_ep(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  return make_in("ep", model, cluster, request, 1);
}

Plan make_ep_overlap(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  return make_in("ep-overlap", model, cluster, request, 2);
}

Plan make_dist_ep(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  return make_in("dist-ep", model, cluster, request, 1);
}

Plan make_zebra(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  return make_in("zebra", model, cluster, request, 0);
}

Plan make_pp_ep(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  return make_in("pp-ep", model, cluster, request, 1);
}

Plan make_pp_zebra(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  return make_in("pp-zebra", model, cluster, request, 2);
}

Plan make_af_pipe(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  const Roles roles = allocated_roles(model, cluster, request);
  return make_depth_groups(model, cluster, request, roles, [&](const StrategyRequest& part) {
    return make_in("af-pipe", model, cluster, part, 0);
  });
}

Plan make_sp_ep(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  return make_in("sp-ep", model, cluster, request, 1);
}

Plan make_round_robin(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request) {
  return make_roundpipe(model, cluster, request, make_in("roundpipe", model, cluster, request, 0));
}

}  // namespace

const std::vector<Strategy>& strategies() {
  static const std::vector<Strategy> all = {
      {"single", "one device does everything", DeviceUse::kOne, Cut::kNone, false, make_single},
      {"ep",
       "expert parallelism: all devices share attention and experts equally, one microbatch after another",
       DeviceUse::kAlike, Cut::kNone, false, make_ep},
      {"ep-overlap", "the same with microbatches interleaved", DeviceUse::kAlike, Cut::kNone, false,
       make_ep_overlap},
      {"dist-ep", "attention on newer devices, experts on older ones, one microbatch after another",
       DeviceUse::kApart, Cut::kNone, false, make_dist_ep},
      {"zebra",
       "the same, with microbatches in turn: older devices work on one while newer ones work on the next. "
       "With plan.experts_moved (Asym-EA) newer devices hold some experts, too",
       DeviceUse::kApart, Cut::kNone, false, make_zebra},
      {"pp-ep", "a pipeline (1F1B) whose stages are runs of layers, with expert parallelism inside each",
       DeviceUse::kAlike, Cut::kStages, false, make_pp_ep},
      {"pp-zebra", "a pipeline (1F1B) whose stages have attention on newer and experts on older devices",
       DeviceUse::kApart, Cut::kStages, false, make_pp_zebra},
      {"af-pipe", "as zebra, and each device has every second (third, ...) layer alone", DeviceUse::kApart,
       Cut::kDepth, false, make_af_pipe},
      {"sp-ep", "as ep, and teams of devices share each sequence: tokens, and heads of the attention kernel",
       DeviceUse::kAlike, Cut::kTeams, false, make_sp_ep},
      {"roundpipe", "runs of layers go round the devices of a node, forward and backward", DeviceUse::kAlike,
       Cut::kNone, true, make_round_robin},
  };
  return all;
}

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const Strategy& strategy : strategies()) names.push_back(strategy.name);
  return names;
}

void drop_unused(const Strategy& strategy, CutOptions& options) {
  const CutOptions none;
  const Cut cut = strategy.cut;
  if (cut != Cut::kStages)
    options.stages = none.stages, options.interleave = none.interleave,
    options.stage_layers = none.stage_layers;
  if (cut != Cut::kDepth) options.depth_groups = none.depth_groups, options.head_on = none.head_on;
  if (!strategy.may_have_teams()) options.team = none.team, options.head_weights = none.head_weights;
  if (cut != Cut::kStages && cut != Cut::kDepth)
    options.stage_attention = none.stage_attention, options.stage_experts = none.stage_experts;
}

std::string misfit(const Strategy& strategy, const ModelConfig& model, const Cluster& cluster) {
  if (strategy.use == DeviceUse::kApart && model.num_moe_layers() == 0) return "the model has no experts";
  std::set<NodeId> nodes;
  for (const Device& device : cluster.devices) nodes.insert(device.node);
  if (strategy.one_node && nodes.size() > 1)
    return fmt::format("the devices are on {} nodes, expected one", nodes.size());
  return "";
}

const std::vector<Baseline>& baselines() {
  static const std::vector<Baseline> all = {
      {"ep-ideal", "throughput of newer and of older devices apart, added"},
      {"tp", "tensor parallelism inside nodes, data parallel between them, as others train"},
      {"best", "the plan of `hetermoe plan --routing-margin 1`, or the fastest of the other strategies"}};
  return all;
}

const Strategy& find_strategy(const std::string& name) {
  std::string key = name;
  std::replace(key.begin(), key.end(), '_', '-');
  for (const Strategy& strategy : strategies()) {
    if (strategy.name == key) return strategy;
  }
  for (const Baseline& baseline : baselines()) {
    if (baseline.name == key)
      fail<ConfigError>("strategy",
                        "{} is predicted by `compare --seq` and not trained ({}): expected one of {}", key,
                        baseline.summary, fmt::join(strategy_names(), ", "));
  }
  fail<ConfigError>("strategy", "unknown strategy \"{}\".{}", name, known_names_hint(name, strategy_names()));
}

}  // namespace hetermoe
