#include "hetermoe/planner/memory_estimate.h"

#include <algorithm>
#include <set>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {
namespace {

/// On how many devices of all groups each part of the model is, where the optimizer is sharded over them.
struct Replicas {
  double embed = 1, head = 1;
  std::vector<double> attention;             // [layer]
  std::vector<std::vector<double>> experts;  // [layer][expert]
};

double num_listed(const Shares& shares) {
  std::set<DeviceId> devices;
  for (const ShareRow& row : shares) {
    for (const Share& share : row) devices.insert(share.device);
  }
  return real(devices.size());
}

Replicas replicas_of(const Plan& plan, const std::vector<i64>& times) {
  Replicas all;
  const std::size_t layers = plan.groups[0].layers.size();
  all.attention.assign(layers, plan.shard_optimizer ? 0 : 1);
  all.experts.resize(layers);
  for (std::size_t l = 0; l < layers; ++l)
    all.experts[l].assign(plan.groups[0].layers[l].experts.size(), plan.shard_optimizer ? 0 : 1);
  if (!plan.shard_optimizer) return all;
  all.embed = all.head = 0;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const Group& group = plan.groups[g];
    const double groups = times.empty() ? 1 : real(times[g]);
    all.embed += groups * num_listed(group.embed);
    all.head += groups * num_listed(group.head);
    for (std::size_t l = 0; l < layers; ++l) {
      all.attention[l] += groups * num_listed(group.layers[l].attention);
      for (std::size_t e = 0; e < all.experts[l].size(); ++e)
        all.experts[l][e] += groups * real(group.layers[l].experts[e].size());
    }
  }
  return all;
}

/// Adds up one group of a plan, stage by stage.
class GroupMemory {
 public:
  GroupMemory(const Plan& plan, const Group& group, const ModelConfig& model, const Replicas& replicas)
      : plan_(plan),
        group_(group),
        model_(model),
        replicas_(replicas),
        counts_(count_parameters(model)),
        use_(plan.dtype.size()),
        most_(plan.dtype.size(), -1),
        share_(plan.dtype.size(), 0) {
    for (std::size_t d = 0; d < use_.size(); ++d) {
      use_[d].element = bytes_of(plan.dtype[d]);
      const Bytes gradient = bytes_of(grad_dtype_of(plan, static_cast<DeviceId>(d)));
      use_[d].state = state_bytes_per_parameter(use_[d].element, gradient);
    }
  }

  void add_to(std::vector<Bytes>& memory) {
    for_sources(group_.embed, [&](Use& use, double) {
      use.add(counts_.embedding, replicas_.embed, home_of(group_, UnitPart::kEmbed, -1));
    });
    for (std::size_t l = 0; l < group_.layers.size(); ++l) add_layer(l);
    for_sources(group_.head, [&](Use& use, double tokens) {
      use.add(counts_.head, replicas_.head, home_of(group_, UnitPart::kHead, -1));
      use.saved += in_flight(group_.layers.size()) * tokens * row_bytes(model_, use.element);
      use.largest = std::max(use.largest, tokens * head_work_bytes(model_, use.element));
    });
    for (const DeviceId device : group_.devices) {
      const Use& use = use_[idx(device)];
      memory[idx(device)] += use.sum + use.saved + use.largest + plan_.slots.attention * use.attention_visit +
                             plan_.slots.experts * use.experts_visit;
    }
  }

 private:
  /// Of one device.
  struct Use {
    Bytes element = 2;  ///< of a number
    StateBytes state;   ///< of a parameter
    /// Weights of an embedding or a head that are on the host are here all the same: a visit lasts a step.
    void add(i64 parameters, double replicas, const Home& home) {
      const bool updates = home.optimizer != Residence::kHost;
      sum += real(parameters) * (updates ? state.total(replicas) : resident());
    }
    Bytes resident() const { return state.weights + state.gradients; }
    Bytes attention_visit = 0, experts_visit = 0;  ///< of the layer that has most, where weights visit
    Bytes sum = 0, saved = 0, largest = 0;  ///< states, what backward starts from, working set of one op
  };

  void add_layer(std::size_t l) {
    const auto layer = static_cast<i64>(l);
    const double copies = model_.is_moe(layer) ? real(model_.top_k) : 0;
    for_sources(group_.layers[l].attention, [&](Use& use, double tokens) {
      const ActivationOptions options = options_of(use, l);
      const Home home = home_of(group_, UnitPart::kAttention, static_cast<i32>(l));
      if (home.weights == Residence::kHost) {
        use.attention_visit = std::max(use.attention_visit, real(counts_.attention_part[l]) * use.resident());
      } else {
        use.add(counts_.attention_part[l], replicas_.attention[l], home);
      }
      use.saved += in_flight(l) * tokens * attention_saved_bytes(model_, layer, options);
      // Besides the op's own set: rows sent and returned, and the gradients of both.
      const Bytes left = leaves_weights() ? attention_left_bytes(model_, layer, use.element) : 0;
      use.largest = std::max(use.largest, tokens * (attention_work_bytes(model_, layer, options) + left +
                                                    (2 + 2 * copies) * row_bytes(model_, use.element)));
    });
    add_experts(l);
  }

  void add_experts(std::size_t layer) {
    const LayerOwners& experts = group_.layers[layer].experts;
    const Home home = home_of(group_, UnitPart::kExperts, static_cast<i32>(layer));
    const bool visits = home.weights == Residence::kHost;
    std::vector<Bytes> visit(visits ? use_.size() : 0, 0);
    for (std::size_t e = 0; e < experts.size(); ++e) {
      for (const ExpertOwner& owner : experts[e]) {
        Use& use = use_[idx(owner.device)];
        if (visits)
          visit[idx(owner.device)] += real(counts_.expert) * use.resident();
        else
          use.add(counts_.expert, replicas_.experts[layer][e], home);
        share_[idx(owner.device)] += owner.share;
      }
    }
    for (const DeviceId device : group_.devices) {
      Use& use = use_[idx(device)];
      const double share = std::exchange(share_[idx(device)], 0);
      if (visits) use.experts_visit = std::max(use.experts_visit, visit[idx(device)]);
      if (share <= 0) continue;
      const double copies =
          real(model_.top_k) * share / real(model_.num_experts) * real(largest_microbatch() * plan_.seq_len);
      use.saved += in_flight(layer) * copies * expert_saved_bytes(model_, options_of(use, layer));
      // Where a device also computes attention, what is left waits for the dispatch of the whole window.
      const Bytes left = leaves_weights()
                             ? in_flight(layer) * copies *
                                   (expert_left_bytes(model_, use.element) + row_bytes(model_, use.element))
                             : 0;
      use.largest =
          std::max(use.largest, copies / plan_.chunks * (expert_work_bytes(model_, use.element) * 1.5) +
                                    copies * 3 * row_bytes(model_, use.element) + left);
    }
  }

  /// Calls add(use, tokens of the fullest microbatch) for every device that the shares list.
  template <class Add>
  void for_sources(const Shares& shares, Add add) {
    for (const ShareRow& row : shares) {
      for (const Share& share : row) {
        i64& most = most_[idx(share.device)];
        most = std::max(most, share.sequences);
      }
    }
    for (const DeviceId device : group_.devices) {
      const auto d = idx(device);
      const i64 most = std::exchange(most_[d], -1);
      if (most >= 0) add(use_[d], real(most * plan_.seq_len));
    }
  }

  ActivationOptions options_of(const Use& use, std::size_t layer) const {
    const bool kept = keeps_activations(group_.layers[layer].recompute.value_or(plan_.recompute));
    return {use.element, !kept, false, plan_.seq_len};
  }
  bool leaves_weights() const { return plan_.weight_gradients == WeightGradients::kAfter; }
  i64 largest_microbatch() const {
    return *std::max_element(group_.microbatches.begin(), group_.microbatches.end());
  }
  /// Microbatches of a layer between forward and backward at once.
  double in_flight(std::size_t layer) const {
    return real(traits_of(plan_.order).in_flight(plan_, group_, layer));
  }

  const Plan& plan_;
  const Group& group_;
  const ModelConfig& model_;
  const Replicas& replicas_;
  ParamCounts counts_;
  std::vector<Use> use_;       // [device]
  std::vector<i64> most_;      // [device] scratch of for_sources(), -1 = not listed
  std::vector<double> share_;  // [device] scratch of add_experts()
};

}  // namespace

std::vector<Bytes> estimate_memory(const Plan& plan, const ModelConfig& model,
                                   const std::vector<i64>& times) {
  std::vector<Bytes> memory(plan.dtype.size(), 0);
  const Replicas replicas = replicas_of(plan, times);
  for (const Group& group : plan.groups) GroupMemory(plan, group, model, replicas).add_to(memory);
  return memory;
}

Bytes usable_memory(const DeviceType& type) {
  return kUsableMemory * std::max(0.0, type.memory_bytes() - kReservedMemory);
}

std::string overfilled_device(const std::vector<Bytes>& memory, const Cluster& cluster) {
  DeviceId worst = -1;
  double excess = 1;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const double filled = memory[idx(d)] / usable_memory(cluster.type_of(d));
    if (filled > excess) worst = d, excess = filled;
  }
  if (worst < 0) return "";
  return fmt::format("device {} ({:.0f} GiB, {:.1f} usable) needs {:.1f} GiB", cluster.device_name(worst),
                     cluster.type_of(worst).memory_gib, usable_memory(cluster.type_of(worst)) / kGiB,
                     memory[idx(worst)] / kGiB);
}

}  // namespace hetermoe
