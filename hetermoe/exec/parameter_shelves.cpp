#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/exec/parameter_store.h"

// How the states of one part of one layer lie in storages.
namespace hetermoe {

ParameterStore::Shelf ParameterStore::make_shelf(const std::vector<State>& states) const {
  Shelf shelf;
  if (states.empty()) return shelf;
  shelf.visits = visits_here(states.front());
  shelf.gathered = states.front().gathered();
  if (states.front().part == UnitPart::kExperts) {
    add_slab(shelf, states);
  } else {
    add_group(shelf, states.front());
  }
  for (StateTensors& state : shelf.states) {
    if (state.state.sharded || state.state.gathered()) {
      const std::vector<DeviceId>& holders = state.state.devices;
      state.part = position(holders, device_);
      state.parts = holders.size();
    }
    if (shelf.gathered) {
      state.kept = zeros_like_parts(state, state.values);
      state.taken = zeros_like_parts(state, state.grads);
    }
    if (updates_here(state.state)) state.moments = moments_of(state);
  }
  return shelf;
}

std::vector<at::Tensor> ParameterStore::zeros_like_parts(const StateTensors& state,
                                                         const std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> zeros;
  for (const at::Tensor& part : parts_of(tensors, state.part, state.parts))
    zeros.push_back(at::zeros(part.sizes(), options_.values.dtype(part.scalar_type())));
  return zeros;
}

/// Adapters of weights that visit, which were made as shapes like these.
void ParameterStore::make_room_for(std::vector<Adapter>& adapters) const {
  for (Adapter& adapter : adapters) {
    for (at::Tensor* tensor : {&adapter.a, &adapter.b, &adapter.a_grad, &adapter.b_grad})
      *tensor = at::zeros(tensor->sizes(), options_.values.dtype(tensor->scalar_type()));
  }
}

void ParameterStore::add_group(Shelf& shelf, const State& state) const {
  StorageOptions options = options_;
  if (!state.graded_on(device_)) options.lora = nullptr;
  options.trainable = state.graded_on(device_) && options_.lora == nullptr;
  if (shelf.visits) options.values = options.values.device(at::kMeta);
  shelf.group = state.part == UnitPart::kEmbed  ? make_embed_state(model_, options)
                : state.part == UnitPart::kHead ? make_head_state(model_, options)
                                                : make_attention_state(model_, state.layer, options);
  if (shelf.group->buffer.defined() && shelf.visits) {
    const at::Tensor& shape = shelf.group->buffer;
    shelf.group->buffer = at::zeros(shape.sizes(), options_.values.dtype(shape.scalar_type()));
  }
  StateGroup& group = *shelf.group;
  if (group.adapters.empty()) {
    shelf.states.push_back({.state = state, .values = group.values, .grads = group.grads});
    return;
  }
  if (shelf.visits) make_room_for(group.adapters);
  shelf.states.push_back(
      {.state = state, .values = values_of(group.adapters), .grads = grads_of(group.adapters)});
  if (shelf.visits) shelf.states.back().matrices = group.values;
}

/// The slots are ordered by state, so that each state is a contiguous part of the slab. Those of frozen
/// states are the last ones.
void ParameterStore::add_slab(Shelf& shelf, const std::vector<State>& states) const {
  std::vector<State> ordered = states;
  std::stable_partition(ordered.begin(), ordered.end(), [](const State& state) { return state.trainable; });
  std::vector<ExpertId> experts;
  i64 num_trainable = 0;
  for (const State& state : ordered) {
    experts.insert(experts.end(), state.experts.begin(), state.experts.end());
    if (state.graded_on(device_)) num_trainable += static_cast<i64>(state.experts.size());
  }
  StorageOptions options = options_;
  if (num_trainable == 0) options.lora = nullptr;
  if (shelf.visits) options.values = options.values.device(at::kMeta);
  shelf.slab = make_expert_slab(model_, ordered[0].layer, experts, options, num_trainable);
  ExpertSlab& slab = *shelf.slab;
  if (shelf.visits) make_room_for(slab.adapters);
  i64 begin = 0;
  for (const State& state : ordered) {
    const auto count = static_cast<i64>(state.experts.size());
    const auto part = [&](const at::Tensor& storage) { return storage.narrow(0, begin, count); };
    StateTensors tensors{.state = state};
    if (slab.adapters.empty()) {
      tensors.values = {part(slab.gate_up), part(slab.down)};
      if (state.graded_on(device_)) tensors.grads = {part(slab.gate_up_grad), part(slab.down_grad)};
    } else {
      for (const at::Tensor& value : values_of(slab.adapters)) tensors.values.push_back(part(value));
      for (const at::Tensor& grad : grads_of(slab.adapters)) tensors.grads.push_back(part(grad));
      if (shelf.visits) tensors.matrices = {part(slab.gate_up), part(slab.down)};
    }
    shelf.states.push_back(std::move(tensors));
    begin += count;
  }
}

}  // namespace hetermoe
