#include "hetermoe/exec/device_state.h"

#include <algorithm>

namespace hetermoe {

at::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp64:
      return at::kDouble;
    case Dtype::kBf16:
      return at::kBFloat16;
    case Dtype::kFp16:
      return at::kHalf;
    default:
      return at::kFloat;
  }
}

at::Tensor host_copy(const at::Tensor& tensor) {
  return tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

DeviceState::DeviceState(DeviceId device, const Schedule& schedule, const ModelConfig& model,
                         const at::TensorOptions& options)
    : device_(device), options_(options) {
  const auto use_group = [&](std::size_t state, const StateGroup& group) {
    const State& of = schedule.states[state];
    tensors_[static_cast<i32>(state)] = {of.part,      of.layer,    {}, of.devices.front() == device_,
                                         group.values, group.grads, {}};
  };
  for (std::size_t s = 0; s < schedule.states.size(); ++s) {
    const State& state = schedule.states[s];
    if (!std::binary_search(state.devices.begin(), state.devices.end(), device)) continue;
    switch (state.part) {
      case State::Part::kEmbed:
        embed_ = std::make_unique<StateGroup>(make_embed_state(model, options));
        use_group(s, *embed_);
        break;
      case State::Part::kHead:
        head_ = std::make_unique<StateGroup>(make_head_state(model, options));
        use_group(s, *head_);
        break;
      case State::Part::kAttention:
        use_group(
            s,
            attention_.emplace(state.layer, make_attention_state(model, state.layer, options)).first->second);
        break;
      case State::Part::kExperts:
        if (slabs_.count(state.layer) == 0) add_slab(state.layer, schedule, model, options);
        break;
    }
  }
  for (auto& [state, tensors] : tensors_) tensors.moments = make_adamw_state(tensors.values);
}

/// The slab's slots are ordered by state, so that each state is a contiguous part of it.
void DeviceState::add_slab(i32 layer, const Schedule& schedule, const ModelConfig& model,
                           const at::TensorOptions& options) {
  std::vector<ExpertId> experts;
  std::vector<std::pair<i32, i64>> parts;  // state, number of experts
  for (std::size_t s = 0; s < schedule.states.size(); ++s) {
    const State& state = schedule.states[s];
    if (state.part != State::Part::kExperts || state.layer != layer ||
        !std::binary_search(state.devices.begin(), state.devices.end(), device_)) {
      continue;
    }
    experts.insert(experts.end(), state.experts.begin(), state.experts.end());
    parts.emplace_back(static_cast<i32>(s), static_cast<i64>(state.experts.size()));
  }
  const ExpertSlab& slab =
      slabs_.emplace(layer, make_expert_slab(model, layer, experts, options)).first->second;
  i64 begin = 0;
  for (const auto& [state, count] : parts) {
    const State& of = schedule.states[static_cast<std::size_t>(state)];
    tensors_[state] = {of.part,
                       of.layer,
                       of.experts,
                       of.devices.front() == device_,
                       {slab.gate_up.narrow(0, begin, count), slab.down.narrow(0, begin, count)},
                       {slab.gate_up_grad.narrow(0, begin, count), slab.down_grad.narrow(0, begin, count)},
                       {}};
    begin += count;
  }
}

std::vector<NamedView> DeviceState::views(const ModelConfig& model) {
  std::vector<NamedView> all;
  const auto append = [&](std::vector<NamedView> views) {
    all.insert(all.end(), std::make_move_iterator(views.begin()), std::make_move_iterator(views.end()));
  };
  if (embed_) append(embed_->views());
  for (auto& [layer, group] : attention_) append(group.views());
  for (auto& [layer, slab] : slabs_) append(slab.views(model));
  if (head_) append(head_->views());
  return all;
}

void DeviceState::initialize(const ModelConfig& model, u64 seed) {
  init_parameters(views(model), seed);
  // Masters of low-precision parameters copy the values just drawn.
  for (auto& [state, tensors] : tensors_) tensors.moments = make_adamw_state(tensors.values);
}

std::vector<NamedTensor> DeviceState::named(const ModelConfig& model, const StateTensors& state,
                                            const std::vector<at::Tensor>& storages) {
  switch (state.part) {
    case State::Part::kEmbed:
      return embed_->named(storages);
    case State::Part::kHead:
      return head_->named(storages);
    case State::Part::kAttention:
      return attention_.at(state.layer).named(storages);
    case State::Part::kExperts:
      return named_experts(model, state.layer, state.experts, storages[0], storages[1]);
  }
  return {};
}

std::vector<LogicalTensor> DeviceState::logical_tensors(const ModelConfig& model) {
  std::vector<LogicalTensor> all;
  for (auto& [index, state] : tensors_) {
    const AdamwState& moments = state.moments;
    const std::vector<NamedTensor> values = named(model, state, state.values),
                                   exp_avg = named(model, state, moments.exp_avg),
                                   exp_avg_sq = named(model, state, moments.exp_avg_sq);
    std::vector<NamedTensor> master;
    if (!moments.master.empty()) master = named(model, state, moments.master);
    for (std::size_t i = 0; i < values.size(); ++i) {
      all.push_back({values[i].name, values[i].tensor, exp_avg[i].tensor, exp_avg_sq[i].tensor,
                     master.empty() ? at::Tensor() : master[i].tensor, state.first_owner});
    }
    if (state.part != State::Part::kAttention) continue;
    const StateGroup& group = attention_.at(state.layer);
    if (group.buffer.defined()) {
      all.push_back({group.buffer_name, group.buffer, {}, {}, {}, state.first_owner});
    }
  }
  return all;
}

void DeviceState::set_updates(i64 count) {
  for (auto& [index, state] : tensors_) state.moments.step = count;
}

void DeviceState::zero_grads() {
  for (auto& [state, tensors] : tensors_) {
    for (at::Tensor& grad : tensors.grads) grad.zero_();
  }
}

}  // namespace hetermoe
