#include "hetermoe/plan/plan.h"

#include <algorithm>
#include <set>

#include "hetermoe/base/enum_count.h"
#include "hetermoe/base/index.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<QueueBinding>::names() {
  static const std::vector<std::string> all = names_of_all<QueueBinding>({"direction", "name", "single"});
  return all;
}
const std::vector<std::string>& EnumNames<Recompute>::names() {
  static const std::vector<std::string> all = names_of_all<Recompute>({"off", "local", "resend", "ahead"});
  return all;
}
const std::vector<std::string>& EnumNames<WeightGradients>::names() {
  static const std::vector<std::string> all = names_of_all<WeightGradients>({"with", "after"});
  return all;
}

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

Dtype grad_dtype_of(const Plan& plan, DeviceId device) {
  if (plan.grad_dtype) return *plan.grad_dtype;
  return plan.dtype[static_cast<std::size_t>(device)] == Dtype::kFp64 ? Dtype::kFp64 : Dtype::kFp32;
}

std::vector<std::string> roles_of(const Plan& plan) {
  std::vector<bool> attention(plan.dtype.size()), experts = attention;
  const auto set = [](std::vector<bool>& of_device, DeviceId device) {
    const auto d = static_cast<std::size_t>(device);  // a plan may not be valid
    if (d < of_device.size()) of_device[d] = true;
  };
  for (const Group& group : plan.groups) {
    for (const LayerPlacement& layer : group.layers) {
      for (const ShareRow& row : layer.attention) {
        for (const Share& share : row) set(attention, share.device);
      }
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
    if (model_.max_positions > 0 && plan_.seq_len > model_.max_positions) {
      fault("seq_len", "got {}, but model {} has {} positions", plan_.seq_len, model_.name,
            model_.max_positions);
    }
    if (plan_.groups.empty()) fault("groups", "is empty, expected at least one");
    if (total_sequences(plan_) < 1)
      fault("groups", "hold no sequence in any microbatch, expected at least one");
    if (static_cast<i32>(plan_.dtype.size()) != cluster_.num_devices()) {
      fault("dtype", "has {} entries, expected one per device of the cluster ({})", plan_.dtype.size(),
            cluster_.num_devices());
    }
    check_grad_dtype();
    std::set<DeviceId> seen;
    for (std::size_t g = 0; g < plan_.groups.size(); ++g) check_group(plan_.groups[g], g, seen);
    if (faults_.empty()) check_dtypes();
    return faults_;
  }

 private:
  template <class... Args>
  void fault(const std::string& where, fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(fmt::format("[{}] {}", where, fmt::format(format, std::forward<Args>(args)...)));
  }

  void check_grad_dtype() {
    if (!plan_.grad_dtype) return;
    for (std::size_t d = 0; d < plan_.dtype.size(); ++d) {
      const bool fits = bytes_of(*plan_.grad_dtype) == bytes_of(plan_.dtype[d]) ||
                        (*plan_.grad_dtype == Dtype::kFp32 && bytes_of(plan_.dtype[d]) == 2);
      if (fits) continue;
      fault("grad_dtype", "got {}, but device {} has parameters in {}: expected {}",
            name_of(*plan_.grad_dtype), d, name_of(plan_.dtype[d]),
            bytes_of(plan_.dtype[d]) == 2 ? "fp32, bf16 or fp16" : name_of(plan_.dtype[d]));
      return;
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
  }

  /// Devices that hold copies of the same parameters must round their gradients alike. The first fault is
  /// enough: the others are of the same devices.
  void check_dtypes() {
    std::set<DeviceId> embed, head;
    for (const Group& group : plan_.groups) {
      add_devices(group.embed, embed);
      add_devices(group.head, model_.tie_embeddings ? embed : head);
    }
    if (!same_dtype(embed, "the embedding") || !same_dtype(head, "the head")) return;
    for (std::size_t l = 0; l < plan_.groups[0].layers.size(); ++l) {
      std::set<DeviceId> attention;
      for (const Group& group : plan_.groups) add_devices(group.layers[l].attention, attention);
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

  static void add_devices(const Shares& shares, std::set<DeviceId>& devices) {
    for (const ShareRow& row : shares) {
      for (const Share& share : row) devices.insert(share.device);
    }
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
      i64 sum = 0;
      std::set<DeviceId> devices;
      for (const Share& share : share_row(shares, static_cast<i32>(m))) {
        sum += share.sequences;
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

  void check_layer(const Group& group, i64 l, const std::string& where) {
    const LayerPlacement& layer = group.layers[static_cast<std::size_t>(l)];
    check_shares(group, layer.attention, where + ".attention");
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
};

}  // namespace

std::vector<std::string> validate(const Plan& plan, const ModelConfig& model, const Cluster& cluster) {
  return Validator(plan, model, cluster).run();
}

Json to_json(const Plan& plan) {
  Json json = write_fields(plan);
  // Plans that ask for nothing keep their text.
  if (!plan.grad_dtype) json.erase("grad_dtype");
  if (!plan.shard_optimizer) json.erase("shard_optimizer");
  if (plan.weight_gradients == WeightGradients::kWith) json.erase("weight_gradients");
  for (Json& group : json["groups"]) {
    for (Json& layer : group["layers"]) {
      if (layer["recompute"].is_null()) layer.erase("recompute");
    }
  }
  return json;
}

namespace {

/// Numbers from a file are added up and multiplied before a plan is held against a model.
void check_sizes(const Plan& plan, const std::string& where) {
  constexpr i64 kMostTokens = 100'000'000, kMostSequences = 1'000'000;
  const auto check = [&](const std::string& key, i64 got, i64 most) {
    if (got > most) fail<ConfigError>(where + " " + key, "got {}, expected at most {}", got, most);
  };
  const auto check_shares = [&](const std::string& key, const Shares& shares) {
    for (const ShareRow& row : shares) {
      for (const Share& share : row) check(key, share.sequences, kMostSequences);
    }
  };
  check("seq_len", plan.seq_len, kMostTokens);
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const Group& group = plan.groups[g];
    const std::string key = fmt::format("groups[{}].", g);
    for (const i64 size : group.microbatches) check(key + "microbatches", size, kMostSequences);
    check_shares(key + "embed", group.embed);
    check_shares(key + "head", group.head);
    for (const LayerPlacement& layer : group.layers) check_shares(key + "layers", layer.attention);
  }
}

}  // namespace

Plan plan_from_json(const Json& json, const std::string& where) {
  Plan plan;
  read_fields(json, plan, where + " ");
  check_sizes(plan, where);
  return plan;
}

}  // namespace hetermoe
