#include "hetermoe/plan/plan.h"

#include <algorithm>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/backward_shares.h"
#include "hetermoe/plan/combine_to.h"
#include "hetermoe/plan/nics.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/plan/row_nodes.h"
#include "hetermoe/plan/teams.h"
#include "hetermoe/plan/turns.h"

namespace hetermoe {

i64 sequences_of(const ShareRow& row, DeviceId device) {
  for (const Share& share : row) {
    if (share.device == device) return share.sequences;
  }
  return 0;
}

i64 total_sequences(const Group& group) {
  i64 total = 0;
  for (const i64 sequences : group.microbatches) total += sequences;
  return total;
}

i64 total_sequences(const Plan& plan) {
  i64 total = 0;
  for (const Group& group : plan.groups) total += total_sequences(group);
  return total;
}

i64 total_tokens(const Group& group, const Plan& plan) { return total_sequences(group) * plan.seq_len; }

i64 total_tokens(const Plan& plan) { return total_sequences(plan) * plan.seq_len; }

i64 microbatch_tokens(const Group& group, std::size_t microbatch, const Plan& plan) {
  return group.microbatches[microbatch] * plan.seq_len;
}

Home home_of(const Group& group, UnitPart part, i32 layer) {
  const auto of_layer = [&]() -> const LayerPlacement& { return group.layers[idx(layer)]; };
  switch (part) {
    case UnitPart::kEmbed:
      return group.embed_home.value_or(Home{});
    case UnitPart::kHead:
      return group.head_home.value_or(Home{});
    case UnitPart::kAttention:
      return of_layer().attention_home.value_or(Home{});
    case UnitPart::kExperts:
      return of_layer().experts_home.value_or(Home{});
  }
  HM_CHECK(false, "home of no part");
  return {};
}

std::vector<std::string> roles_of(const Plan& plan) {
  std::vector<bool> attention(plan.dtype.size()), experts = attention, ends = attention;
  const auto set = [](std::vector<bool>& of_device, DeviceId device) {
    const auto d = static_cast<std::size_t>(device);  // a plan may not be valid
    if (d < of_device.size()) of_device[d] = true;
  };
  const auto set_shares = [&](std::vector<bool>& of_device, const Shares& shares) {
    for_devices(shares, [&](DeviceId device) { set(of_device, device); });
  };
  for (const Group& group : plan.groups) {
    set_shares(ends, group.embed), set_shares(ends, group.head);
    for (const LayerPlacement& layer : group.layers) {
      set_shares(attention, layer.attention), set_shares(attention, layer.attention_backward);
      for (const ExpertOwners& owners : layer.experts) {
        for (const ExpertOwner& owner : owners) set(experts, owner.device);
      }
    }
  }
  std::vector<std::string> roles;
  for (std::size_t d = 0; d < attention.size(); ++d) {
    roles.push_back(attention[d] && experts[d] ? "both"
                    : attention[d]             ? "attention"
                    : experts[d]               ? "expert"
                    : ends[d]                  ? "attention"
                                               : "idle");
  }
  return roles;
}

namespace {

class Validator {
 public:
  Validator(const Plan& plan, const ModelConfig& model, const Cluster& cluster)
      : plan_(plan), model_(model), cluster_(cluster) {}

  std::vector<std::string> run() {
    if (plan_.model != model_.name) fault("plan", "made for model {}, not for {}", plan_.model, model_.name);
    if (plan_.seq_len < 1) fault("seq_len", "got {}, expected >= 1", plan_.seq_len);
    if (model_.max_positions > 0 && plan_.seq_len > model_.max_positions)
      fault("seq_len", "got {}, but model {} has {} positions", plan_.seq_len, model_.name,
            model_.max_positions);
    if (plan_.groups.empty()) fault("groups", "is empty, expected at least one");
    if (total_sequences(plan_) < 1)
      fault("groups", "hold no sequence in any microbatch, expected at least one");
    if (static_cast<i32>(plan_.dtype.size()) != cluster_.num_devices())
      fault("dtype", "has {} entries, expected one per device of the cluster ({})", plan_.dtype.size(),
            cluster_.num_devices());
    add(dtype_faults(plan_));
    std::set<DeviceId> seen;
    for (std::size_t g = 0; g < plan_.groups.size(); ++g) check_group(plan_.groups[g], g, seen);
    if (faults_.empty()) check_dtypes();
    if (faults_.empty()) check_hosts();
    if (faults_.empty()) check_homes();
    if (faults_.empty())
      add(turn_faults(plan_)), add(combine_faults(plan_)), add(nic_faults(plan_, cluster_)),
          add(row_node_faults(plan_, cluster_));
    if (faults_.empty()) check_expected();
    return faults_;
  }

 private:
  template <class... Args>
  void fault(const std::string& where, fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(fmt::format("[{}] {}", where, fmt::format(format, std::forward<Args>(args)...)));
  }

  void add(const std::vector<std::string>& faults) {
    faults_.insert(faults_.end(), faults.begin(), faults.end());
  }

  void check_expected() {
    if (!plan_.expected) return;
    if (plan_.order != OrderPolicy::kTimed) {
      fault("expected", "is given, but order {} looks at no times, expected order timed or no such key",
            name_of(plan_.order));
    }
    for (const auto& [key, times] : {std::pair("attention", &plan_.expected->attention),
                                     std::pair("experts", &plan_.expected->experts)}) {
      if (times->size() == 1 || static_cast<i64>(times->size()) == model_.num_layers) continue;
      fault(fmt::format("expected.{}", key), "has {} entries, expected 1, or one per layer ({})",
            times->size(), model_.num_layers);
    }
  }

  void check_group(const Group& group, std::size_t g, std::set<DeviceId>& seen) {
    const std::string where = fmt::format("groups[{}]", g);
    for (const DeviceId device : group.devices) {
      if (device < 0 || device >= cluster_.num_devices()) {
        fault(where + ".devices", "device {} does not exist: cluster {} has {} devices", device,
              cluster_.name, cluster_.num_devices());
      }
      if (!seen.insert(device).second) fault(where + ".devices", "device {} is in two places", device);
    }
    if (group.microbatches.empty()) fault(where + ".microbatches", "is empty, expected at least one");
    if (static_cast<i64>(group.layers.size()) != model_.num_layers) {
      fault(where + ".layers", "has {} entries, but model {} has {} layers", group.layers.size(), model_.name,
            model_.num_layers);
      return;
    }
    check_shares(group, group.embed, where + ".embed");
    check_shares(group, group.head, where + ".head");
    for (i64 l = 0; l < model_.num_layers; ++l) check_layer(group, l, fmt::format("{}.layers[{}]", where, l));
    for (i64 l = 0; l < model_.num_layers && faults_.empty(); ++l)
      faults_ = backward_faults(plan_, g, idx(l), model_.is_moe(l));
  }

  /// Devices that hold copies of the same parameters must round their gradients alike. The first fault is
  /// enough: the others are of the same devices.
  void check_dtypes() {
    std::set<DeviceId> embed, head;
    for (const Group& group : plan_.groups) {
      add_devices(group.embed, embed);
      add_devices(backward_embed_shares(group), embed);
      add_devices(group.head, model_.tie_embeddings ? embed : head);
    }
    if (!same_dtype(embed, "the embedding") || !same_dtype(head, "the head")) return;
    for (std::size_t l = 0; l < plan_.groups[0].layers.size(); ++l) {
      std::set<DeviceId> attention;
      for (const Group& group : plan_.groups) add_sources(group.layers[l], attention);
      if (!same_dtype(attention, fmt::format("the attention part of layer {}", l))) return;
      for (std::size_t e = 0; e < plan_.groups[0].layers[l].experts.size(); ++e) {
        std::set<DeviceId> owners;
        for (const Group& group : plan_.groups) {
          for (const ExpertOwner& owner : group.layers[l].experts[e]) owners.insert(owner.device);
        }
        if (!same_dtype(owners, fmt::format("expert {} of layer {}", e, l))) return;
      }
    }
  }

  static void add_sources(const LayerPlacement& layer, std::set<DeviceId>& devices) {
    add_devices(layer.attention, devices);
    add_devices(layer.attention_backward, devices);
  }

  bool same_dtype(const std::set<DeviceId>& devices, const std::string& what) {
    const auto dtype = [&](DeviceId device) { return plan_.dtype[idx(device)]; };
    for (const DeviceId device : devices) {
      const DeviceId first = *devices.begin();
      if (dtype(device) == dtype(first)) continue;
      fault(
          "dtype",
          "device {} ({}) and device {} ({}) both hold {}: their gradients would be rounded differently and "
          "the copies drift apart. Give both the same dtype",
          first, name_of(dtype(first)), device, name_of(dtype(device)), what);
      return false;
    }
    return true;
  }

  /// Which host a device uses is settled by its node; the plan says it so that it can be read alone.
  void check_hosts() {
    if (plan_.hosts.empty()) return;
    if (static_cast<i32>(plan_.hosts.size()) != cluster_.num_devices()) {
      fault("hosts", "has {} entries, expected one per device of the cluster ({})", plan_.hosts.size(),
            cluster_.num_devices());
      return;
    }
    for (DeviceId device = 0; device < cluster_.num_devices(); ++device) {
      if (plan_.hosts[idx(device)] == cluster_.node_of(device)) continue;
      fault("hosts", "device {} uses the host of node {}, expected its own node {}", device,
            plan_.hosts[idx(device)], cluster_.node_of(device));
      return;
    }
  }

  void check_homes() {
    for (const Group& group : plan_.groups) {
      const auto g = idx(&group - plan_.groups.data());
      const std::string where = fmt::format("groups[{}].", g);
      check_home(UnitPart::kEmbed, 0, group, where + "embed_home");
      check_home(UnitPart::kHead, 0, group, where + "head_home");
      for (i32 l = 0; l < static_cast<i32>(group.layers.size()); ++l) {
        const std::string of_layer = fmt::format("{}layers[{}].", where, l);
        check_home(UnitPart::kAttention, l, group, of_layer + "attention_home");
        check_home(UnitPart::kExperts, l, group, of_layer + "experts_home");
        check_saved(group.layers[idx(l)], recompute_of(plan_, static_cast<i32>(g), l), of_layer + "saved");
      }
      if (!faults_.empty()) return;
    }
    check_host_dtypes();
  }

  void check_home(UnitPart part, i32 layer, const Group& group, const std::string& where) {
    const Home home = home_of(group, part, layer);
    if (!(home == home_of(plan_.groups[0], part, layer)))
      fault(where, "differs from that of groups[0]: copies of the same parameters have one home");
    if (home == Home{}) return;
    if (home.weights == Residence::kSharded && part == UnitPart::kExperts)
      fault(where + ".weights", "got sharded, expected device or host: experts are not gathered");
    if (home.weights == Residence::kSharded && home.optimizer != Residence::kSharded) {
      fault(where + ".optimizer", "got {} beside sharded weights, expected sharded", name_of(home.optimizer));
    }
    if (home.weights == Residence::kHost && home.optimizer != Residence::kHost) {
      fault(where + ".optimizer", "got {} beside weights on the host, expected host",
            name_of(home.optimizer));
    }
    for (const std::set<DeviceId>& holders : holders_of(part, idx(layer))) {
      if (!check_holders(home, holders, where)) return;
    }
  }

  bool check_holders(const Home& home, const std::set<DeviceId>& holders, const std::string& where) {
    const auto listed =
        std::count_if(holders.begin(), holders.end(), [&](DeviceId d) { return is_for(home, d); });
    if (listed == 0) return true;
    if (listed < static_cast<std::ptrdiff_t>(holders.size())) {
      fault(where + ".devices",
            "names {} of the {} devices that hold the same parameters, expected all or none "
            "of them",
            listed, holders.size());
      return false;
    }
    return home.optimizer != Residence::kHost || check_have_hosts(holders, where);
  }

  void check_saved(const LayerPlacement& layer, Recompute recompute, const std::string& where) {
    if (layer.saved == Residence::kDevice) return;
    if (layer.saved == Residence::kSharded) fault(where, "got sharded, expected device or host");
    if (keeps_activations(recompute)) {
      fault(
          where,
          "got host in a layer that keeps all its activations, which stay on the device: expected recompute "
          "local, resend or ahead");
    }
    std::set<DeviceId> users;
    add_sources(layer, users);
    for (const ExpertOwners& owners : layer.experts) {
      for (const ExpertOwner& owner : owners) users.insert(owner.device);
    }
    check_have_hosts(users, where);
  }

  bool check_have_hosts(const std::set<DeviceId>& users, const std::string& where) {
    if (plan_.hosts.empty()) {
      fault("hosts", "is empty, but {} is on the host: expected the node of each device", where);
      return false;
    }
    for (const DeviceId device : users) {
      const Node& node = cluster_.nodes[idx(cluster_.node_of(device))];
      if (node.host) continue;
      // One fault, whatever is to be there.
      if (std::exchange(says_no_host_, true)) return false;
      fault(where,
            "is on the host of device {}, but node {} of cluster {} has none. Describe it in the cluster "
            "file, such as host: {{memory_gib: 256}}",
            device, node.name, cluster_.name);
      return false;
    }
    return true;
  }

  static bool is_for(const Home& home, DeviceId device) {
    return home.devices.empty() ||
           std::find(home.devices.begin(), home.devices.end(), device) != home.devices.end();
  }

  /// Those that hold the same parameters of a part, in all groups: of experts each has its own.
  std::vector<std::set<DeviceId>> holders_of(UnitPart part, std::size_t layer) const {
    std::vector<std::set<DeviceId>> all(
        part == UnitPart::kExperts ? plan_.groups[0].layers[layer].experts.size() : 1);
    for (const Group& group : plan_.groups) {
      if (part == UnitPart::kEmbed) add_devices(group.embed, all[0]);
      if (part == UnitPart::kEmbed) add_devices(backward_embed_shares(group), all[0]);
      if (part == UnitPart::kHead || (part == UnitPart::kEmbed && model_.tie_embeddings))
        add_devices(group.head, all[0]);
      if (part == UnitPart::kAttention) add_sources(group.layers[layer], all[0]);
      for (std::size_t e = 0; part == UnitPart::kExperts && e < all.size(); ++e) {
        for (const ExpertOwner& owner : group.layers[layer].experts[e]) all[e].insert(owner.device);
      }
    }
    return all;
  }

  /// A host rounds what it keeps for all its devices alike. Idle ones keep nothing there.
  void check_host_dtypes() {
    std::vector<DeviceId> first(cluster_.nodes.size(), -1);
    const std::vector<std::string> roles = plan_.hosts.empty() ? std::vector<std::string>() : roles_of(plan_);
    for (DeviceId device = 0; device < static_cast<i32>(plan_.hosts.size()); ++device) {
      if (roles[idx(device)] == "idle") continue;
      DeviceId& of_host = first[idx(plan_.hosts[idx(device)])];
      if (of_host < 0) of_host = device;
      if (plan_.dtype[idx(of_host)] == plan_.dtype[idx(device)]) continue;
      fault("dtype",
            "device {} ({}) and device {} ({}) share a host, which keeps parameters in one dtype. Give "
            "both the same",
            of_host, name_of(plan_.dtype[idx(of_host)]), device, name_of(plan_.dtype[idx(device)]));
      return;
    }
  }

  bool in_group(const Group& group, DeviceId device) const {
    return std::find(group.devices.begin(), group.devices.end(), device) != group.devices.end();
  }

  void check_shares(const Group& group, const Shares& shares, const std::string& where) {
    if (shares.size() != 1 && shares.size() != group.microbatches.size()) {
      fault(where, "has {} rows, expected 1 or one per microbatch ({})", shares.size(),
            group.microbatches.size());
      return;
    }
    for (std::size_t m = 0; m < group.microbatches.size(); ++m) {
      std::set<DeviceId> devices;
      const ShareRow& row = share_row(shares, static_cast<i32>(m));
      add(team_faults(row, plan_.seq_len, model_, where));
      const i64 sum = sequences_of(row);
      for (const Share& share : row) {
        if (!in_group(group, share.device)) fault(where, "device {} is not in this group", share.device);
        if (!devices.insert(share.device).second) fault(where, "device {} is listed twice", share.device);
        if (share.sequences < 0) fault(where, "device {} has {} sequences", share.device, share.sequences);
      }
      if (sum != group.microbatches[m]) {
        fault(where, "shares of microbatch {} add up to {} sequences, expected {}", m, sum,
              group.microbatches[m]);
      }
    }
  }

  void check_tally(const LayerPlacement& layer, i64 l, const std::string& where) {
    if (!divides_copies(plan_) || !model_.is_moe(l)) return;
    const char* const what = plan_.guest_slots > 0 ? "guests" : plan_.tally ? "tally" : "foreseen counts";
    const Recompute recompute = layer.recompute.value_or(plan_.recompute);
    if (resends_rows(recompute)) {
      fault(where + ".recompute", "is {}, which no plan with {} may have. Use local", name_of(recompute),
            what);
    }
    const Home home = layer.experts_home.value_or(Home{});
    if (plan_.guest_slots > 0 && (home.weights != Residence::kDevice || home.optimizer != Residence::kDevice))
      fault(where + ".experts_home", "is not the device, which no plan with guests may have");
    for (const ShareRow& row : layer.attention_backward) {
      if (std::find(layer.attention.begin(), layer.attention.end(), row) != layer.attention.end()) continue;
      fault(where + ".attention_backward", "differs from attention, which no plan with {} may have", what);
      return;
    }
  }

  void check_layer(const Group& group, i64 l, const std::string& where) {
    const LayerPlacement& layer = group.layers[static_cast<std::size_t>(l)];
    check_tally(layer, l, where);
    add(team_layer_faults(layer, where));
    check_shares(group, layer.attention, where + ".attention");
    if (!layer.attention_backward.empty())
      check_shares(group, layer.attention_backward, where + ".attention_backward");
    const i64 expected = model_.is_moe(l) ? model_.num_experts : 0;
    if (static_cast<i64>(layer.experts.size()) != expected) {
      fault(where + ".experts", "has {} experts, but model {} has {} in this layer", layer.experts.size(),
            model_.name, expected);
      return;
    }
    for (std::size_t e = 0; e < layer.experts.size(); ++e) {
      double sum = 0;
      std::set<DeviceId> devices;
      for (const ExpertOwner& owner : layer.experts[e]) {
        sum += owner.share;
        if (!in_group(group, owner.device)) {
          fault(fmt::format("{}.experts[{}]", where, e), "owner {} is not in this group", owner.device);
        }
        if (!devices.insert(owner.device).second) {
          fault(fmt::format("{}.experts[{}]", where, e), "owner {} is listed twice", owner.device);
        }
      }
      if (layer.experts[e].empty() || sum < 1 - 1e-9 || sum > 1 + 1e-9) {
        fault(fmt::format("{}.experts[{}]", where, e), "shares of {} owners add up to {}, expected 1",
              layer.experts[e].size(), sum);
      }
    }
  }

  const Plan& plan_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  std::vector<std::string> faults_;
  bool says_no_host_ = false;
};

}  // namespace

std::vector<std::string> validate(const Plan& plan, const ModelConfig& model, const Cluster& cluster) {
  return Validator(plan, model, cluster).run();
}

}  // namespace hetermoe
