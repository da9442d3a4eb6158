#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "hetermoe/cluster/cluster.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/plan/row_nodes.h"
#include "hetermoe/schedule/schedule.h"
#include "tests/nn/tiny_models.h"

// Random plans of every shape that a plan may have, from a seed. No torch: the property tests of schedules
// and of the simulator and the equivalence tests of the executor draw from the same distribution.
namespace hetermoe::testing {

/// Seeded choices that are the same on every platform (splitmix64).
class Chooser {
 public:
  explicit Chooser(u64 seed) : state_(seed) {}
  u64 next() {
    u64 z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  i64 below(i64 n) { return static_cast<i64>(next() % static_cast<u64>(n)); }
  i64 between(i64 low, i64 high) { return low + below(high - low + 1); }
  bool chance(double p) { return static_cast<double>(next() >> 11) * 0x1p-53 < p; }
  template <class T>
  T of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<i64>(values.size())))];
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i)
      std::swap(values[i - 1], values[static_cast<std::size_t>(below(static_cast<i64>(i)))]);
  }
  /// A non-empty subset in random order.
  std::vector<DeviceId> some_of(std::vector<DeviceId> all) {
    shuffle(all);
    all.resize(static_cast<std::size_t>(between(1, static_cast<i64>(all.size()))));
    return all;
  }

 private:
  u64 state_;
};

/// Devices of `num_types` types in turn, spread over `num_nodes` nodes.
inline Cluster make_cluster(i32 num_devices, i32 num_types = 2, i32 num_nodes = 2) {
  Cluster cluster;
  cluster.name = "test";
  for (const char* type : {"A40", "V100", "T4"}) {
    if (static_cast<i32>(cluster.types.size()) < num_types)
      cluster.types.push_back(catalogue_device(type, "test"));
  }
  for (i32 n = 0; n < num_nodes; ++n)
    cluster.nodes.push_back({fmt::format("n{}", n), 10e9, 5e-6, 40e9, 2e-6});
  for (i32 d = 0; d < num_devices; ++d) {
    cluster.devices.push_back({d % num_types, static_cast<NodeId>(d * num_nodes / num_devices), 1});
  }
  return cluster;
}

struct RandomCase {
  u64 seed = 0;
  ModelConfig model;
  Cluster cluster;
  Plan plan;
  StepOptions step;
};

/// What a failing test prints; random_case(seed) makes the same case again.
inline std::string describe(const RandomCase& c) {
  return fmt::format(
      "seed {}: {} layers {} experts {} devices {} groups {} order {} window {} chunks {} {} {} "
      "weights {} dedup {} sharded {}{}{} aux {}/{}{}",
      c.seed, c.model.name, c.model.num_layers, c.model.num_experts, c.cluster.num_devices(),
      c.plan.groups.size(), name_of(c.plan.order), c.plan.window, c.plan.chunks, recompute_text(c.plan),
      name_of(c.plan.queue_binding), name_of(c.plan.weight_gradients), c.plan.row_dedup,
      c.plan.shard_optimizer, shards_weights(c.plan) ? " with weights" : "",
      has_teams(c.plan) ? " teams" : "", c.step.balance, c.step.aux_group,
      c.step.aux_per_layer ? " per layer" : "");
}

namespace random_plan {

inline ModelConfig model(Chooser& choose) {
  if (choose.chance(0.1)) {
    ModelConfig dense = choose.of(tiny_dense_models());
    return first_layers(dense, choose.between(1, dense.num_layers));
  }
  ModelConfig m = choose.of(tiny_models());
  if (m.group_score == GroupScore::kNone)
    m.num_experts = choose.between(m.top_k, 7);  // 5 and 7 divide nothing
  m.num_layers = choose.between(1, m.num_layers);
  m.dense_layer.resize(static_cast<std::size_t>(m.num_layers));
  if (m.num_moe_layers() == 0) m.dense_layer.back() = false;
  if (choose.chance(0.3)) m.aux_loss_coef = 0;
  return m;
}

/// Each sequence goes to a random device; some devices may have none.
inline ShareRow shares(Chooser& choose, const std::vector<DeviceId>& devices, i64 sequences) {
  ShareRow row;
  for (const DeviceId device : devices) row.push_back({device, 0});
  for (i64 s = 0; s < sequences; ++s)
    ++row[static_cast<std::size_t>(choose.below(static_cast<i64>(row.size())))].sequences;
  return row;
}

/// One row for all microbatches where that is possible, else a row each, over the same or over other devices.
inline Shares stage(Chooser& choose, const Group& group) {
  const std::vector<i64>& sizes = group.microbatches;
  const bool equal = std::all_of(sizes.begin(), sizes.end(), [&](i64 size) { return size == sizes[0]; });
  std::vector<DeviceId> devices = choose.some_of(group.devices);
  if (equal && choose.chance(0.6)) return {shares(choose, devices, sizes[0])};
  const bool same_devices = choose.chance(0.5);
  Shares rows;
  for (const i64 size : sizes) {
    if (!same_devices) devices = choose.some_of(group.devices);
    rows.push_back(shares(choose, devices, size));
  }
  return rows;
}

inline LayerOwners experts(Chooser& choose, const ModelConfig& model, const std::vector<DeviceId>& devices,
                           double replicas) {
  LayerOwners all;
  for (i64 e = 0; e < model.num_experts; ++e) {
    if (devices.size() < 2 || !choose.chance(replicas)) {
      all.push_back({{choose.of(devices), 1}});
      continue;
    }
    std::vector<DeviceId> owners = devices;
    choose.shuffle(owners);
    const double share = choose.of(std::vector<double>{0, 0.25, 0.5, 0.8});
    all.push_back({{owners[0], share}, {owners[1], 1 - share}});
  }
  return all;
}

/// How placement changes from layer to layer.
enum class Variation { kNone, kStages, kEveryLayer };

inline Group group(Chooser& choose, const ModelConfig& model, std::vector<DeviceId> devices) {
  Group g;
  std::sort(devices.begin(), devices.end());
  g.devices = devices;
  const bool equal = choose.chance(0.5);
  const i64 num_microbatches = choose.between(1, 4), size = choose.between(1, 3);
  for (i64 m = 0; m < num_microbatches; ++m) g.microbatches.push_back(equal ? size : choose.between(1, 3));
  const auto variation = static_cast<Variation>(choose.below(3));
  const double replicas = choose.of(std::vector<double>{0, 0, 0.3});
  g.embed = stage(choose, g);
  Shares attention = choose.chance(0.7) ? g.embed : stage(choose, g);
  std::vector<DeviceId> owners = choose.some_of(devices);
  for (i64 l = 0; l < model.num_layers; ++l) {
    const bool changes =
        variation == Variation::kEveryLayer || (variation == Variation::kStages && choose.chance(0.5));
    if (l > 0 && changes) {
      attention = stage(choose, g);
      owners = choose.some_of(devices);
    }
    g.layers.push_back({attention, {}});
    if (model.is_moe(l)) g.layers.back().experts = experts(choose, model, owners, replicas);
  }
  g.head = choose.chance(0.7) ? attention : stage(choose, g);
  return g;
}

/// Devices of each group; a device in none is idle.
inline std::vector<std::vector<DeviceId>> split_devices(Chooser& choose, i32 num_devices) {
  std::vector<DeviceId> devices;
  for (DeviceId d = 0; d < num_devices; ++d) devices.push_back(d);
  choose.shuffle(devices);
  if (num_devices > 2 && choose.chance(0.15)) devices.pop_back();
  const i64 num_groups =
      std::min<i64>(static_cast<i64>(devices.size()), choose.of(std::vector<i64>{1, 1, 1, 2, 3}));
  std::vector<std::vector<DeviceId>> groups(static_cast<std::size_t>(num_groups));
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto g = i < groups.size() ? i : static_cast<std::size_t>(choose.below(num_groups));
    groups[g].push_back(devices[i]);
  }
  return groups;
}

/// A load-balancing group must not span microbatches that run one after another.
inline StepOptions step(Chooser& choose, const ModelConfig& model, const Plan& plan) {
  StepOptions options;
  options.balance = model.aux_loss_coef > 0;
  std::vector<i64> groups = {1};
  bool even = true;
  for (const Group& group : plan.groups) {
    for (const i64 size : group.microbatches) even = even && size % 2 == 0;
  }
  if (even) groups.push_back(2);
  const bool together = plan.order == OrderPolicy::kLayerMajor && plan.window == 0;
  if (together) groups.push_back(0);
  if (together && total_sequences(plan) % 2 == 0) groups.push_back(2);
  options.aux_group = choose.of(groups);
  options.aux_per_layer = choose.chance(0.3);
  return options;
}

/// Some plans get order `timed`, by any expected times.
inline void take_in_time(u64 seed, Plan& plan, i64 num_layers) {
  Chooser choose(~seed);
  if (!choose.chance(0.25)) return;
  plan.order = OrderPolicy::kTimed;
  if (choose.chance(0.3)) return;
  const auto time = [&] { return 0.5 * static_cast<double>(choose.between(0, 6)); };
  ExpectedTimes expected;
  expected.transfer = time(), expected.head = time(), expected.backward = time();
  for (std::vector<double>* of : {&expected.attention, &expected.experts}) {
    of->assign(choose.chance(0.5) ? 1 : static_cast<std::size_t>(num_layers), 0);
    for (double& each : *of) each = time();
  }
  plan.expected = std::move(expected);
}

/// Parts of a whole number, some of them 0.
inline std::vector<i64> parts_of(Chooser& choose, i64 total, std::size_t parts) {
  std::vector<i64> cuts = {0, total};
  for (std::size_t i = 1; i < parts; ++i) cuts.push_back(choose.between(0, total));
  std::sort(cuts.begin(), cuts.end());
  std::vector<i64> out;
  for (std::size_t i = 1; i < cuts.size(); ++i) out.push_back(cuts[i] - cuts[i - 1]);
  return out;
}

/// The devices of a row in teams, which have the sequences that these had.
inline void form_teams(Chooser& choose, ShareRow& row, i64 seq_len, i64 heads) {
  i32 team = 0;
  for (std::size_t begin = 0, end = 0; begin < row.size(); begin = end, ++team) {
    end = begin + static_cast<std::size_t>(choose.between(1, static_cast<i64>(row.size() - begin)));
    i64 sequences = 0;
    for (std::size_t i = begin; i < end; ++i) sequences += row[i].sequences;
    const std::vector<i64> tokens = parts_of(choose, sequences * seq_len, end - begin),
                           of_heads = parts_of(choose, heads, end - begin);
    for (std::size_t i = begin; i < end; ++i)
      row[i] = {row[i].device, sequences, tokens[i - begin], of_heads[i - begin], team};
  }
}

/// In some plans teams share sequences, in some layers or in all; rows that were equal stay equal.
inline void share_sequences(u64 seed, Plan& plan, i64 heads) {
  Chooser choose(seed ^ 0x7ea5);
  if (!choose.chance(0.25)) return;
  const double share = choose.of(std::vector<double>{1, 1, 0.5});
  plan.head_parts = choose.of(std::vector<i32>{1, 1, 2, 3});
  for (Group& group : plan.groups) {
    std::vector<std::pair<Shares, Shares>> known;
    const auto form = [&](Shares& shares) {
      for (const auto& [before, after] : known) {
        if (before != shares) continue;
        shares = after;
        return;
      }
      const Shares before = shares;
      if (choose.chance(share))
        for (ShareRow& row : shares) form_teams(choose, row, plan.seq_len, heads);
      known.emplace_back(before, shares);
    };
    form(group.embed), form(group.head);
    for (LayerPlacement& layer : group.layers) form(layer.attention);
  }
}

/// In some plans that may, tokens go once to each node.
inline void send_once_a_node(u64 seed, Plan& plan, const Cluster& cluster) {
  Chooser choose(seed ^ 0x90de);
  if (!choose.chance(0.4)) return;
  plan.row_nodes = nodes_of_devices(cluster);
  if (!row_node_faults(plan, cluster).empty()) plan.row_nodes.clear();
}

inline void differ_in_recompute(Chooser& choose, Plan& plan) {
  for (Group& group : plan.groups) {
    for (LayerPlacement& layer : group.layers) {
      if (choose.chance(0.7)) layer.recompute = static_cast<Recompute>(choose.below(kEnumCount<Recompute>));
    }
  }
}

}  // namespace random_plan

inline RandomCase random_case(u64 seed, i32 max_devices = 8) {
  Chooser choose(seed);
  RandomCase out;
  out.seed = seed;
  out.model = random_plan::model(choose);
  const i32 num_devices = static_cast<i32>(choose.between(1, max_devices));
  out.cluster = make_cluster(num_devices, static_cast<i32>(choose.between(1, 3)),
                             static_cast<i32>(choose.between(1, 2)));
  Plan& plan = out.plan;
  plan.strategy = "random";
  plan.model = out.model.name;
  // With one token per sequence the gradients of q and k are zero but for rounding, which no tolerance fits.
  plan.seq_len = choose.between(2, 6);
  for (const std::vector<DeviceId>& devices : random_plan::split_devices(choose, num_devices))
    plan.groups.push_back(random_plan::group(choose, out.model, devices));
  plan.order = choose.chance(0.3) ? OrderPolicy::kOneFOneB : OrderPolicy::kLayerMajor;
  if (plan.order == OrderPolicy::kLayerMajor)
    plan.window = static_cast<i32>(choose.of(std::vector<i64>{0, 0, 1, 2, 3}));
  if (plan.order == OrderPolicy::kLayerMajor) random_plan::take_in_time(seed, plan, out.model.num_layers);
  plan.chunks = static_cast<i32>(choose.of(std::vector<i64>{1, 1, 2, 3}));
  plan.queue_binding = static_cast<QueueBinding>(choose.below(kEnumCount<QueueBinding>));
  plan.row_dedup = choose.chance(0.7);
  plan.recompute = static_cast<Recompute>(choose.below(3));
  plan.dtype.assign(static_cast<std::size_t>(num_devices), Dtype::kFp64);
  plan.wire_forward = plan.wire_backward = Wire::kFp64;
  out.step = random_plan::step(choose, out.model, plan);
  plan.shard_optimizer = choose.chance(0.3);
  if (choose.chance(0.4)) random_plan::differ_in_recompute(choose, plan);
  if (choose.chance(0.4)) plan.weight_gradients = WeightGradients::kAfter;
  if (plan.shard_optimizer && choose.chance(0.5)) shard_weights(plan);
  random_plan::share_sequences(seed, plan, out.model.num_heads);
  random_plan::send_once_a_node(seed, plan, out.cluster);
  return out;
}

/// Makes a case one that trains adapters, with all or some of the frozen weights on hosts.
inline void adapt_on_hosts(RandomCase& c) {
  Chooser choose(c.seed ^ 0xada9);
  const bool experts = choose.chance(0.7), attention = !experts || choose.chance(0.7);
  std::vector<std::string> targets;
  for (const ParamInfo& parameter : parameters(c.model)) {
    const bool others = attention || c.model.num_moe_layers() == 0;
    if (can_have_adapter(parameter) && (parameter.expert >= 0 ? experts : others))
      targets.push_back(parameter.name);
  }
  const Lora lora = make_lora(c.model, choose.between(1, 4), 3, std::move(targets));
  c.step.frozen = units_without(c.model, lora);
  c.step.lora = std::make_shared<const Lora>(lora);
  for (Group& group : c.plan.groups) {
    group.embed_home.reset(), group.head_home.reset();
    for (LayerPlacement& layer : group.layers) layer.attention_home.reset(), layer.experts_home.reset();
  }
  for (Node& node : c.cluster.nodes) node.host = NodeHost{.memory_gib = 64};
  using Entries = std::vector<std::string>;
  offload(
      c.plan, c.model, c.cluster,
      choose.of(std::vector<Entries>{{"all"}, {"all", "saved"}, {"experts.weights"}, {"attention", "embed"}}),
      "test");
  for (std::size_t g = 0; g < c.plan.groups.size(); ++g) {
    for (std::size_t l = 0; l < c.plan.groups[g].layers.size(); ++l) {
      if (keeps_activations(recompute_of(c.plan, static_cast<i32>(g), static_cast<i32>(l))))
        c.plan.groups[g].layers[l].saved = Residence::kDevice;
    }
  }
  const auto slots = [&] { return static_cast<i32>(choose.between(1, 3)); };
  c.plan.slots = {slots(), slots(), slots()};
}

/// Makes a case one whose results go to the next layer (CombineTo::kNext): some stages get shares on other
/// devices than those before, in some plans for each microbatch anew. Owners stay whoever they are. Devices
/// without teams; groups of one device stay as they are. Returns how many inputs of layers join, of all
/// microbatches.
inline i64 combine_to_next(RandomCase& c) {
  Chooser choose(c.seed ^ 0x9e87);
  c.plan.combine_to = CombineTo::kNext;
  c.plan.row_nodes.clear();
  i64 joins = 0;
  for (Group& group : c.plan.groups) {
    group.embed.clear();
    for (const i64 size : group.microbatches)
      group.embed.push_back(random_plan::shares(choose, choose.some_of(group.devices), size));
    std::vector<DeviceId> halves[2], devices = group.devices;
    choose.shuffle(devices);
    for (std::size_t i = 0; i < devices.size(); ++i) halves[i % 2].push_back(devices[i]);
    std::size_t side = 0;
    Shares before;
    for (std::size_t l = 0; l <= group.layers.size(); ++l) {
      Shares& shares = l == group.layers.size() ? group.head : group.layers[l].attention;
      const bool moves = l > 0 && devices.size() > 1 && choose.chance(0.7);
      shares = before;
      if (l == 0 || moves) {
        shares.clear();
        side = 1 - side;
        const bool swaps = devices.size() > 1 && choose.chance(0.3);
        for (std::size_t m = 0; m < group.microbatches.size(); ++m) {
          const auto of = devices.size() == 1 ? 1 : (side + (swaps ? m : 0)) % 2;
          shares.push_back(
              random_plan::shares(choose, choose.some_of(halves[1 - of]), group.microbatches[m]));
        }
      }
      // Where microbatches swapped sides before and no longer do, a device could be on both.
      for (std::size_t m = 0; l > 0 && m < shares.size(); ++m) {
        if (shares[m] == before[m]) continue;
        const bool both = std::any_of(shares[m].begin(), shares[m].end(), [&](const Share& share) {
          return std::any_of(before[m].begin(), before[m].end(),
                             [&](const Share& other) { return other.device == share.device; });
        });
        if (both)
          shares[m] = before[m];
        else
          ++joins;
      }
      before = shares;
    }
  }
  return joins;
}

}  // namespace hetermoe::testing
