#include "hetermoe/planner/estimate/host_use.h"

#include <algorithm>
#include <map>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cost/cost_model.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/placement/token_ranges.h"
#include "hetermoe/plan/backward_shares.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/planner/predict.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {

std::vector<std::string> offload_entries(HostUse use, bool adapts) {
  using Entries = std::vector<std::string>;
  switch (use) {
    case HostUse::kNone:
      break;
    case HostUse::kOptimizer:
      return adapts ? Entries{} : Entries{"optimizer"};
    case HostUse::kOptimizerSaved:
      return adapts ? Entries{"saved"} : Entries{"optimizer", "saved"};
    case HostUse::kExperts:
      return adapts ? Entries{"experts.weights"} : Entries{"optimizer", "experts.weights"};
    case HostUse::kAll:
      return {"all"};
    case HostUse::kAllSaved:
      return {"all", "saved"};
  }
  return {};
}

void keep_on_hosts(HostUse use, const ModelConfig& model, const Cluster& cluster, Plan& plan, bool adapts) {
  offload(plan, model, cluster, offload_entries(use, adapts), "plan");
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    for (std::size_t l = 0; l < plan.groups[g].layers.size(); ++l) {
      LayerPlacement& layer = plan.groups[g].layers[l];
      if (keeps_activations(recompute_of(plan, static_cast<i32>(g), static_cast<i32>(l))))
        layer.saved = Residence::kDevice;
    }
  }
}

bool has_hosts(const Cluster& cluster) {
  return std::all_of(cluster.nodes.begin(), cluster.nodes.end(),
                     [](const Node& node) { return node.host.has_value(); });
}

std::string missing_hosts_note(const Cluster& cluster) {
  std::vector<std::string> without;
  for (const Node& node : cluster.nodes)
    if (!node.host) without.push_back(node.name);
  if (without.empty() || without.size() == cluster.nodes.size()) return "";
  return fmt::format(
      "no plan uses main memory: {} {}{} {} no host in the cluster file, and all nodes need one",
      agree(without.size(), "node", "nodes"), without[0],
      without.size() > 1 ? fmt::format(" and {} more", without.size() - 1) : "",
      agree(without.size(), "has", "have"));
}

bool is_beyond_all_memory(const PlanRequest& request) {
  const StateBytes each = state_bytes_of(request);
  const Bytes kept = each.weights + (request.trained.all() ? each.master + each.moments : 0);
  Bytes room = 0;
  for (const Device& device : request.cluster.devices)
    room += usable_memory(request.cluster.types[idx(device.type)]);
  for (const Node& node : request.cluster.nodes)
    room += request.limits.offload && node.host ? node.host->memory_bytes() : 0;
  return kept * real(count_parameters(request.model).total) > room;
}

namespace {

/// Adds up what the hosts of a plan keep.
class HostMemory {
 public:
  HostMemory(const Plan& plan, const ModelConfig& model, const Cluster& cluster, const Trained& trained)
      : plan_(plan),
        model_(model),
        cluster_(cluster),
        trained_(trained),
        counts_(count_parameters(model)),
        memory_(cluster.nodes.size(), 0) {}

  std::vector<Bytes> run() {
    for (std::size_t l = 0; l < plan_.groups[0].layers.size(); ++l) {
      const auto layer = static_cast<i32>(l);
      add({layer, UnitPart::kAttention, -1}, counts_.attention_part[l],
          [&](const Group& group, auto& devices) {
            add_devices(group.layers[l].attention, devices);
            add_devices(backward_shares(group.layers[l]), devices);
          });
      for (std::size_t e = 0; e < plan_.groups[0].layers[l].experts.size(); ++e) {
        add({layer, UnitPart::kExperts, static_cast<ExpertId>(e)}, counts_.expert,
            [&](const Group& group, auto& devices) {
              for (const ExpertOwner& owner : group.layers[l].experts[e]) devices.insert(owner.device);
            });
      }
    }
    add({-1, UnitPart::kEmbed, -1}, counts_.embedding, [&](const Group& group, auto& devices) {
      add_devices(group.embed, devices);
      add_devices(backward_embed_shares(group), devices);
    });
    add({static_cast<i32>(model_.num_layers), UnitPart::kHead, -1}, counts_.head,
        [&](const Group& group, auto& devices) { add_devices(group.head, devices); });
    for (const Group& group : plan_.groups) {
      const InFlight in_flight = traits_of(plan_.order).in_flight(plan_, group);
      for (std::size_t l = 0; l < group.layers.size(); ++l) add_saved(group, l, in_flight);
    }
    return std::move(memory_);
  }

 private:
  template <class Holders>
  void add(const Unit& unit, i64 parameters, Holders holders) {
    if (home_of(plan_.groups[0], unit.part, unit.layer).optimizer != Residence::kHost) return;
    const std::vector<Unit>& frozen = trained_.frozen;
    const bool trained = trained_.lora == nullptr && !std::binary_search(frozen.begin(), frozen.end(), unit);
    std::set<DeviceId> devices;
    for (const Group& group : plan_.groups) holders(group, devices);
    std::set<NodeId> nodes;
    for (const DeviceId device : devices) {
      if (!nodes.insert(cluster_.node_of(device)).second) continue;
      const StateBytes each = state_bytes_of(plan_, device);
      memory_[idx(cluster_.node_of(device))] += real(parameters) * (trained ? each.total() : each.weights);
    }
  }

  /// Saved activations of all microbatches in flight, as if none still lay in a slot.
  void add_saved(const Group& group, std::size_t l, const InFlight& in_flight) {
    const LayerPlacement& layer = group.layers[l];
    if (layer.saved != Residence::kHost) return;
    const Recompute recompute = layer.recompute.value_or(plan_.recompute);
    const auto largest = std::max_element(group.microbatches.begin(), group.microbatches.end());
    const i64 tokens = microbatch_tokens(group, idx(largest - group.microbatches.begin()), plan_);
    const auto add = [&](DeviceId device, double rows, double copies) {
      memory_[idx(cluster_.node_of(device))] +=
          real(in_flight(l, device)) *
          received_rows_bytes(model_, rows, copies, bytes_of(plan_.dtype[idx(device)]));
    };
    std::map<DeviceId, i64> most;
    for (const ShareRow& row : backward_shares(layer)) {
      for (const TokenRange range : TokenRanges(row, plan_.seq_len))
        most[range.device] = std::max(most[range.device], range.tokens());
    }
    for (const auto& [device, of_device] : most) add(device, real(of_device), 0);
    if (resends_rows(recompute)) return;
    const double of_expert = real(model_.top_k) / real(model_.num_experts) * real(tokens);
    for (const ExpertOwners& owners : layer.experts) {
      for (const ExpertOwner& owner : owners)
        add(owner.device, of_expert * owner.share, of_expert * owner.share);
    }
  }

  const Plan& plan_;
  const ModelConfig& model_;
  const Cluster& cluster_;
  const Trained& trained_;
  ParamCounts counts_;
  std::vector<Bytes> memory_;
};

/// The same plan with all on the devices, whether or not it has room there.
Plan without_hosts(Plan plan) {
  plan.hosts.clear();
  for (Group& group : plan.groups) {
    group.embed_home.reset(), group.head_home.reset();
    for (LayerPlacement& layer : group.layers) {
      layer.attention_home.reset(), layer.experts_home.reset();
      layer.saved = Residence::kDevice;
    }
  }
  return plan;
}

}  // namespace

std::vector<Bytes> estimate_host_memory(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                                        const Trained& trained) {
  return HostMemory(plan, model, cluster, trained).run();
}

std::string overfilled_host(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                            const Trained& trained) {
  if (!uses_hosts(plan)) return "";
  const std::vector<Bytes> memory = estimate_host_memory(plan, model, cluster, trained);
  for (std::size_t n = 0; n < memory.size(); ++n) {
    const Node& node = cluster.nodes[n];
    if (memory[n] <= 0 || memory[n] <= node.host->memory_bytes()) continue;
    return fmt::format("host of {} ({:.0f} GiB) needs {:.1f} GiB", node.name, node.host->memory_gib,
                       memory[n] / kGiB);
  }
  return "";
}

std::string kept_on_hosts(const Plan& plan, bool adapts) {
  if (!uses_hosts(plan)) return "";
  const std::vector<LayerPlacement>& layers = plan.groups[0].layers;
  const auto lives = [&](UnitPart part, std::size_t layer) {
    return home_of(plan.groups[0], part, static_cast<i32>(layer)).weights == Residence::kHost;
  };
  std::vector<std::string> what;
  if (lives(UnitPart::kAttention, 0))
    what.push_back(adapts ? "frozen weights of all parts" : "weights, masters and moments of all parts");
  else if (lives(UnitPart::kExperts, layers.size() - 1))
    what.push_back(adapts ? "frozen weights of the experts"
                          : "weights of the experts, and masters and moments of all parts");
  else if (!adapts)
    what.push_back("masters and moments of all parts");
  const auto saves = static_cast<std::size_t>(std::count_if(
      layers.begin(), layers.end(), [](const LayerPlacement& l) { return l.saved == Residence::kHost; }));
  if (saves > 0)
    what.push_back("activations that backward starts from" +
                   (saves < layers.size() ? fmt::format(" in {} of {} layers", saves, layers.size()) : ""));
  return fmt::format("{}", fmt::join(what, ", and "));
}

std::vector<std::string> explain_hosts(const PlanRequest& request, const Plan& plan, const std::string& why) {
  const std::vector<Bytes> memory =
      estimate_host_memory(plan, request.model, request.cluster, request.trained);
  const auto fullest = std::max_element(memory.begin(), memory.end());
  const Node& node = request.cluster.nodes[idx(fullest - memory.begin())];
  Predictor predictor = predictor_of(request);
  const Seconds step = predictor.predict(plan).step, free = predictor.predict(without_hosts(plan)).step;
  const std::string what = fmt::format("In host memory live {}: {:.1f} of {:.0f} GiB on {}. {}",
                                       kept_on_hosts(plan, request.trained.lora != nullptr), *fullest / kGiB,
                                       node.host->memory_gib, node.name, why);
  if (free >= step)
    return {what,
            fmt::format("If its devices had room for everything, the same plan would be no faster: {:.3g} s "
                        "instead of {:.3g} s{}.",
                        free, step,
                        plan.groups.size() > 1 ? ", because hosts sum the gradients of its groups" : "")};
  return {what,
          fmt::format(
              "Host memory costs {:.0f} % of the step: the same plan would take {:.3g} s instead of {:.3g} s "
              "if its devices had room for everything.",
              100 * (1 - free / step), free, step)};
}

}  // namespace hetermoe
