#include "hetermoe/planner/memory_estimate.h"

#include <algorithm>
#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/schedule/order_policy.h"

namespace hetermoe {
namespace {

/// Adds up one group of a plan, stage by stage.
class GroupMemory {
 public:
  GroupMemory(const Plan& plan, const Group& group, const ModelConfig& model)
      : plan_(plan),
        group_(group),
        model_(model),
        counts_(count_parameters(model)),
        use_(plan.dtype.size()),
        most_(plan.dtype.size(), -1),
        share_(plan.dtype.size(), 0) {
    for (std::size_t d = 0; d < use_.size(); ++d) {
      use_[d].element = bytes_of(plan.dtype[d]);
      const Bytes gradient = bytes_of(grad_dtype_of(plan, static_cast<DeviceId>(d)));
      use_[d].state = state_bytes_per_parameter(use_[d].element, gradient).total();
    }
  }

  void add_to(std::vector<Bytes>& memory) {
    for_sources(group_.embed, [&](Use& use, double) { use.sum += real(counts_.embedding) * use.state; });
    for (std::size_t l = 0; l < group_.layers.size(); ++l) add_layer(l);
    for_sources(group_.head, [&](Use& use, double tokens) {
      use.sum += real(counts_.head) * use.state;
      use.saved += in_flight() * tokens * row_bytes(model_, use.element);
      use.largest = std::max(use.largest, tokens * head_work_bytes(model_, use.element));
    });
    for (const DeviceId device : group_.devices) {
      const Use& use = use_[idx(device)];
      memory[idx(device)] += use.sum + use.saved + use.largest;
    }
  }

 private:
  /// Of one device.
  struct Use {
    Bytes element = 2, state = 18;          ///< bytes of a number, and of all that training keeps of it
    Bytes sum = 0, saved = 0, largest = 0;  ///< states, what backward starts from, working set of one op
  };

  void add_layer(std::size_t l) {
    const auto layer = static_cast<i64>(l);
    const double copies = model_.is_moe(layer) ? real(model_.top_k) : 0;
    for_sources(group_.layers[l].attention, [&](Use& use, double tokens) {
      const ActivationOptions options = options_of(use);
      use.sum += real(counts_.attention_part[l]) * use.state;
      use.saved += in_flight() * tokens * attention_saved_bytes(model_, layer, options);
      // Besides the op's own set: rows sent and returned, and the gradients of both.
      use.largest = std::max(use.largest, tokens * (attention_work_bytes(model_, layer, options) +
                                                    (2 + 2 * copies) * row_bytes(model_, use.element)));
    });
    add_experts(group_.layers[l].experts);
  }

  void add_experts(const std::vector<std::vector<ExpertOwner>>& experts) {
    for (const std::vector<ExpertOwner>& owners : experts) {
      for (const ExpertOwner& owner : owners) {
        const auto d = idx(owner.device);
        use_[d].sum += real(counts_.expert) * use_[d].state;
        share_[d] += owner.share;
      }
    }
    for (const DeviceId device : group_.devices) {
      Use& use = use_[idx(device)];
      const double share = std::exchange(share_[idx(device)], 0);
      if (share <= 0) continue;
      const double copies =
          real(model_.top_k) * share / real(model_.num_experts) * real(largest_microbatch() * plan_.seq_len);
      use.saved += in_flight() * copies * expert_saved_bytes(model_, options_of(use));
      use.largest =
          std::max(use.largest, copies / plan_.chunks * (expert_work_bytes(model_, use.element) * 1.5) +
                                    copies * 3 * row_bytes(model_, use.element));
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

  ActivationOptions options_of(const Use& use) const {
    return {use.element, plan_.recompute != Recompute::kOff, false, plan_.seq_len};
  }
  i64 largest_microbatch() const {
    return *std::max_element(group_.microbatches.begin(), group_.microbatches.end());
  }
  /// Microbatches between forward and backward at once.
  double in_flight() const { return real(traits_of(plan_.order).in_flight(plan_, group_)); }

  const Plan& plan_;
  const Group& group_;
  const ModelConfig& model_;
  ParamCounts counts_;
  std::vector<Use> use_;       // [device]
  std::vector<i64> most_;      // [device] scratch of for_sources(), -1 = not listed
  std::vector<double> share_;  // [device] scratch of add_experts()
};

}  // namespace

std::vector<Bytes> estimate_memory(const Plan& plan, const ModelConfig& model) {
  std::vector<Bytes> memory(plan.dtype.size(), 0);
  for (const Group& group : plan.groups) GroupMemory(plan, group, model).add_to(memory);
  return memory;
}

Bytes usable_memory(const DeviceType& type) {
  return kUsableMemory * std::max(0.0, type.memory_bytes() - kReservedMemory);
}

std::string overfilled_device(const std::vector<Bytes>& memory, const Cluster& cluster) {
  constexpr Bytes kGiB = 1024.0 * 1024 * 1024;
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
