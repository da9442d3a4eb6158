#include "hetermoe/planner/memory_estimate.h"

#include <algorithm>

#include "hetermoe/model/op_cost.h"

namespace hetermoe {
namespace {

double real(i64 value) { return static_cast<double>(value); }

/// Adds up one group of a plan.
class GroupMemory {
 public:
  GroupMemory(const Plan& plan, const Group& group, const ModelConfig& model)
      : plan_(plan), group_(group), model_(model), counts_(count_parameters(model)) {}

  void add_to(std::vector<Bytes>& memory) {
    for (const DeviceId device : group_.devices) memory[static_cast<std::size_t>(device)] += of(device);
  }

 private:
  Bytes of(DeviceId device) {
    element_ = bytes_of(plan_.dtype[static_cast<std::size_t>(device)]);
    state_ = state_bytes_per_parameter(element_).total();
    saved_ = largest_ = 0;
    Bytes sum = 0;
    if (lists(group_.embed, device)) sum += real(counts_.embedding) * state_;
    for (std::size_t l = 0; l < group_.layers.size(); ++l) sum += layer(device, l);
    if (lists(group_.head, device)) {
      sum += real(counts_.head) * state_;
      const double tokens = largest_tokens(group_.head, device);
      saved_ += in_flight() * tokens * row_bytes(model_, element_);
      largest_ = std::max(largest_, tokens * head_work_bytes(model_, element_));
    }
    return sum + saved_ + largest_;
  }

  Bytes layer(DeviceId device, std::size_t l) {
    const LayerPlacement& placement = group_.layers[l];
    const ActivationOptions options{element_, plan_.recompute != Recompute::kOff, false, plan_.seq_len};
    Bytes sum = 0;
    const double tokens = largest_tokens(placement.attention, device);
    if (lists(placement.attention, device)) {
      sum += real(counts_.attention_part[l]) * state_;
      saved_ += in_flight() * tokens * attention_saved_bytes(model_, static_cast<i64>(l), options);
      // Besides the op's own set: rows sent and returned, and the gradients of both.
      const double copies = model_.is_moe(static_cast<i64>(l)) ? real(model_.top_k) : 0;
      largest_ = std::max(largest_, tokens * (attention_work_bytes(model_, static_cast<i64>(l), options) +
                                              (2 + 2 * copies) * row_bytes(model_, element_)));
    }
    double share = 0;
    for (const std::vector<ExpertOwner>& owners : placement.experts) {
      for (const ExpertOwner& owner : owners) {
        if (owner.device != device) continue;
        sum += real(counts_.expert) * state_;
        share += owner.share;
      }
    }
    if (share <= 0) return sum;
    const double copies =
        real(model_.top_k) * share / real(model_.num_experts) * real(largest_microbatch() * plan_.seq_len);
    saved_ += in_flight() * copies * expert_saved_bytes(model_, options);
    largest_ = std::max(largest_, copies / plan_.chunks * (expert_work_bytes(model_, element_) * 1.5) +
                                      copies * 3 * row_bytes(model_, element_));
    return sum;
  }

  static bool lists(const Shares& shares, DeviceId device) {
    return std::any_of(shares.begin(), shares.end(), [&](const ShareRow& row) {
      return std::any_of(row.begin(), row.end(), [&](const Share& s) { return s.device == device; });
    });
  }
  double largest_tokens(const Shares& shares, DeviceId device) const {
    i64 sequences = 0;
    for (const ShareRow& row : shares) sequences = std::max(sequences, sequences_of(row, device));
    return real(sequences * plan_.seq_len);
  }
  i64 largest_microbatch() const {
    return *std::max_element(group_.microbatches.begin(), group_.microbatches.end());
  }
  /// Microbatches between forward and backward at once. 1F1B: at most one per stage, so one per device.
  double in_flight() const {
    const i64 all = static_cast<i64>(group_.microbatches.size());
    if (plan_.order == OrderPolicy::kOneFOneB)
      return real(std::min(all, static_cast<i64>(group_.devices.size())));
    return real(plan_.window > 0 ? std::min<i64>(all, plan_.window) : all);
  }

  const Plan& plan_;
  const Group& group_;
  const ModelConfig& model_;
  ParamCounts counts_;
  Bytes element_ = 2, state_ = 16;
  Bytes saved_ = 0, largest_ = 0;
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
    const double filled = memory[static_cast<std::size_t>(d)] / usable_memory(cluster.type_of(d));
    if (filled > excess) worst = d, excess = filled;
  }
  if (worst < 0) return "";
  return fmt::format("device {} ({:.0f} GiB, {:.1f} usable) needs {:.1f} GiB", cluster.device_name(worst),
                     cluster.type_of(worst).memory_gib, usable_memory(cluster.type_of(worst)) / kGiB,
                     memory[static_cast<std::size_t>(worst)] / kGiB);
}

}  // namespace hetermoe
