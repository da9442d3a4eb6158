#include "hetermoe/exec/parameter_store.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

bool places_on(const State& state, PlaceId place) {
  return std::binary_search(state.devices.begin(), state.devices.end(), place) || state.has_home(place);
}

/// Experts lie on a shelf slot by slot; every other state is one unit.
std::size_t slot_in(const State& state, const Unit& unit) {
  const auto found = std::find(state.experts.begin(), state.experts.end(), unit.expert);
  return static_cast<std::size_t>(found - state.experts.begin());
}

bool same_units(const State& a, const State& b) {
  return a.part == b.part && a.layer == b.layer && a.experts == b.experts && a.trainable == b.trainable &&
         a.sharded == b.sharded && a.gathered() == b.gathered() &&
         ((!a.sharded && !a.gathered()) || a.devices == b.devices);
}

i64 bytes_of(const std::vector<at::Tensor>& tensors) {
  i64 sum = 0;
  for (const at::Tensor& tensor : tensors) sum += static_cast<i64>(tensor.nbytes());
  return sum;
}

void copy_tensors(const UnitTensors& from, const UnitTensors& to) {
  for (std::size_t i = 0; i < to.tensors.size(); ++i) {
    const LogicalTensor &source = from.tensors[i], &target = to.tensors[i];
    target.value.copy_(source.value);
    if (target.exp_avg.defined()) target.exp_avg.copy_(source.exp_avg);
    if (target.exp_avg_sq.defined()) target.exp_avg_sq.copy_(source.exp_avg_sq);
    if (target.master.defined()) target.master.copy_(source.master);
  }
}

}  // namespace

ParameterStore::ParameterStore(DeviceId device, const ModelConfig& model, const StorageOptions& options,
                               std::span<const State> states)
    : device_(device), model_(model), options_(options) {
  std::map<Key, std::vector<State>> by_shelf;
  for (const State& state : states) {
    if (places_on(state, device_)) by_shelf[key_of(state)].push_back(state);
  }
  for (const auto& [key, placed] : by_shelf) shelves_.emplace(key, make_shelf(placed));
  bind(states);
}

void StateTensors::publish() {
  for (std::size_t i = 0; i < published.size(); ++i) published[i].copy_(values[i]);
}

void StateTensors::take_grads() {
  for (std::size_t i = 0; i < taken.size(); ++i) taken[i].copy_(grads[i]);
  clear(grads);
}

void ParameterStore::let_updates_lag() {
  for (auto& [index, state] : by_state_) {
    if (!updates_here(state->state)) continue;
    for (const at::Tensor& value : state->values) state->published.push_back(value.clone());
    for (const at::Tensor& grad : state->grads) state->taken.push_back(at::zeros_like(grad));
  }
}

void ParameterStore::keep_lost(const Plan& plan, std::span<const State> states) {
  for (auto& [index, state] : by_state_) {
    if (!keeps_lost(states[idx(index)], plan, device_)) {
      state->lost.clear();
    } else if (state->lost.empty()) {
      for (const at::Tensor& grad : state->grads) state->lost.push_back(at::zeros_like(grad));
    }
  }
}

ParameterStore::Key ParameterStore::key_of(const State& state) const {
  return {state.part == UnitPart::kHead ? static_cast<i32>(model_.num_layers) : state.layer, state.part};
}

bool ParameterStore::visits_here(const State& state) const {
  return state.gathered() || (state.visits() && !state.has_home(device_));
}

bool ParameterStore::updates_here(const State& state) const { return state.updated_on(device_); }

/// Of what this place has of a state: a host has the matrices whose adapters stay on devices.
DeviceId ParameterStore::speaker_of(const State& state) const {
  return state.has_home(device_) ? state.homes.front() : state.updaters().front();
}

at::Tensor ParameterStore::buffer_of(i32 state) {
  const Shelf& shelf = shelves_.at(key_of(of_state(state).state));
  return shelf.group ? shelf.group->buffer : at::Tensor();
}

std::vector<Unit> ParameterStore::units_of(const StateTensors& state) const {
  const auto [layer, part] = key_of(state.state);
  if (part != UnitPart::kExperts) return {{.layer = layer, .part = part}};
  std::vector<Unit> all;
  for (const ExpertId expert : state.state.experts)
    all.push_back({.layer = layer, .part = part, .expert = expert});
  return all;
}

std::vector<Unit> ParameterStore::units() const {
  std::vector<Unit> all;
  for (const auto& [key, shelf] : shelves_) {
    if (!shelf.keeps_units()) continue;
    for (const StateTensors& state : shelf.states) {
      const std::vector<Unit> units = units_of(state);
      all.insert(all.end(), units.begin(), units.end());
    }
  }
  return all;
}

std::pair<const ParameterStore::Shelf*, const StateTensors*> ParameterStore::find(const Shelves& shelves,
                                                                                  const Unit& unit) {
  const auto shelf = shelves.find({unit.layer, unit.part});
  if (shelf == shelves.end() || !shelf->second.keeps_units()) return {nullptr, nullptr};
  for (const StateTensors& state : shelf->second.states) {
    if (unit.part != UnitPart::kExperts || slot_in(state.state, unit) < state.state.experts.size())
      return {&shelf->second, &state};
  }
  return {nullptr, nullptr};
}

/// The tensors of a unit in a list that has the shapes of its state's values.
std::vector<NamedTensor> ParameterStore::named(const Shelf& shelf, const State& state,
                                               const std::vector<at::Tensor>& storages,
                                               const Unit& unit) const {
  if (storages.empty()) return {};
  if (shelf.group)
    return shelf.adapted() ? named_adapters(*shelf.group, storages) : shelf.group->named(storages);
  const auto slot = static_cast<i64>(slot_in(state, unit));
  if (shelf.adapted()) return named_adapters(model_, *shelf.slab, unit.expert, storages, slot);
  return named_experts(model_, unit.layer, std::span(&unit.expert, 1), storages[0].narrow(0, slot, 1),
                       storages[1].narrow(0, slot, 1));
}

namespace {

/// Sets in a logical tensor of a sharded state what this device keeps beside its value.
void add_own_part(const StateTensors& state, LogicalTensor& tensor) {
  tensor.sharded = true;
  tensor.gathered = !state.kept.empty();
  for (std::size_t i = 0; i < state.values.size(); ++i) {
    const at::Tensor& storage = state.values[i];
    const i64 begin = tensor.value.storage_offset() - storage.storage_offset();
    if (!tensor.value.is_alias_of(storage) || begin < 0 || begin >= storage.numel()) continue;
    HM_CHECK(tensor.value.is_contiguous(), "{} does not lie in one piece", tensor.name);
    const PartRange own = part_range(storage.numel(), state.part, state.parts);
    const i64 first = std::clamp(own.begin, begin, begin + tensor.value.numel());
    const i64 end = std::clamp(own.end, first, begin + tensor.value.numel());
    const auto piece = [&](const std::vector<at::Tensor>& all, i64 at) {
      return all.empty() ? at::Tensor() : all[i].view(-1).narrow(0, at, end - first);
    };
    const i64 kept = end > first ? first - own.begin : 0;
    tensor.first = first - begin;
    tensor.grad = tensor.gathered ? piece(state.taken, kept) : piece(state.grads, first);
    if (tensor.gathered) tensor.value = piece(state.kept, kept);
    tensor.exp_avg = piece(state.moments.exp_avg, kept);
    tensor.exp_avg_sq = piece(state.moments.exp_avg_sq, kept);
    tensor.master = piece(state.moments.master, kept);
    return;
  }
  HM_CHECK(false, "{} lies in no storage of its state", tensor.name);
}

}  // namespace

UnitTensors ParameterStore::tensors_in(const Shelves& shelves, const Unit& unit) const {
  const auto [shelf, found] = find(shelves, unit);
  HM_CHECK(found != nullptr, "{} is not on device {}", to_string(unit), device_);
  const StateTensors& state = *found;
  const bool sharded = state.parts > 1;
  const auto list = [&, shelf = shelf](const std::vector<at::Tensor>& storages) {
    return named(*shelf, state.state, storages, unit);
  };
  const auto whole = [&](const std::vector<at::Tensor>& storages) {
    return sharded ? std::vector<NamedTensor>() : list(storages);
  };
  const double scale = shelf->adapted() ? options_.lora->scale() : 0;
  // Where a host updates, its gradient counts: the update may scale it in place.
  const bool updates = updates_here(state.state);
  const std::vector<NamedTensor> values = list(state.values),
                                 grads = updates ? whole(state.summed()) : std::vector<NamedTensor>(),
                                 exp_avg = whole(state.moments.exp_avg),
                                 exp_avg_sq = whole(state.moments.exp_avg_sq),
                                 master = whole(state.moments.master), published = whole(state.published),
                                 lost = list(state.lost);
  const auto entry = [](const std::vector<NamedTensor>& all, std::size_t i) {
    return all.empty() ? at::Tensor() : all[i].tensor;
  };
  UnitTensors out{.unit = unit,
                  .trainable = state.state.trainable,
                  .home = speaker_of(state.state),
                  .copies = state.state.devices,
                  .updates = state.moments.step,
                  .tensors = {}};
  const bool home = out.home == device_;
  for (std::size_t i = 0; i < values.size(); ++i) {
    out.tensors.push_back({.name = values[i].name,
                           .value = values[i].tensor,
                           .shape = values[i].tensor.sizes().vec(),
                           .grad = entry(grads, i),
                           .exp_avg = entry(exp_avg, i),
                           .exp_avg_sq = entry(exp_avg_sq, i),
                           .master = entry(master, i),
                           .published = entry(published, i),
                           .lost = entry(lost, i),
                           .first_owner = home,
                           .lora_scale = scale});
    if (sharded) add_own_part(state, out.tensors.back());
  }
  if (shelf->adapted()) add_matrices(*shelf, out);
  if (shelf->group && shelf->keeps_weights() && shelf->group->buffer.defined()) {
    out.tensors.push_back({.name = shelf->group->buffer_name,
                           .value = shelf->group->buffer,
                           .shape = shelf->group->buffer.sizes().vec(),
                           .buffer = true,
                           .first_owner = home});
  }
  return out;
}

UnitTensors ParameterStore::tensors(const Unit& unit) const { return tensors_in(shelves_, unit); }
UnitTensors ParameterStore::prepared(const Unit& unit) const {
  return tensors_in(prepared_.count({unit.layer, unit.part}) > 0 ? prepared_ : shelves_, unit);
}

std::vector<LogicalTensor> ParameterStore::tensors() const {
  std::vector<LogicalTensor> all;
  for (const Unit& unit : units()) {
    UnitTensors of_unit = tensors(unit);
    std::move(of_unit.tensors.begin(), of_unit.tensors.end(), std::back_inserter(all));
  }
  return all;
}

std::vector<at::Tensor> ParameterStore::copied_with_devices() const {
  std::vector<at::Tensor> all;
  for (const auto& [key, shelf] : shelves_) {
    for (const StateTensors& state : shelf.states) {
      for (const std::vector<at::Tensor>* tensors : {&state.visitors(), &state.published, &state.grads})
        all.insert(all.end(), tensors->begin(), tensors->end());
    }
  }
  return all;
}

i64 ParameterStore::bytes() const {
  i64 sum = 0;
  for (const auto& [key, shelf] : shelves_) {
    if (shelf.group && shelf.group->buffer.defined()) sum += bytes_of({shelf.group->buffer});
    if (!shelf.keeps_units()) continue;
    if (shelf.adapted() && shelf.keeps_weights()) sum += bytes_of(shelf.matrices());
    for (const StateTensors& state : shelf.states) {
      const AdamwState& moments = state.moments;
      if (!shelf.gathered) sum += bytes_of(state.values) + bytes_of(state.grads);
      sum += bytes_of(state.kept) + bytes_of(moments.exp_avg) + bytes_of(moments.exp_avg_sq) +
             bytes_of(moments.master) + bytes_of(state.published) + bytes_of(state.taken) +
             bytes_of(state.lost);
    }
  }
  return sum;
}

void ParameterStore::zero_grads() {
  std::vector<at::Tensor> all;
  for (auto& [index, state] : by_state_) {
    if (state->state.gathered()) all.insert(all.end(), state->taken.begin(), state->taken.end());
    // Gradients that are taken leave zeros; the step before may still add to them.
    if ((visits_here(state->state) && !state->state.adapters_stay()) || !state->taken.empty()) continue;
    all.insert(all.end(), state->grads.begin(), state->grads.end());
  }
  if (!all.empty()) clear(all);
}

void ParameterStore::initialize(u64 seed) {
  std::vector<NamedView> views;
  for (const LogicalTensor& tensor : tensors()) {
    if (!tensor.gathered) {
      views.push_back({tensor.name, tensor.value, tensor.grad, tensor.buffer});
      continue;
    }
    const at::Tensor whole = at::empty(tensor.shape, tensor.value.options());
    init_parameters({{tensor.name, whole, {}, false}}, seed);
    at::Tensor(tensor.value).copy_(kept_value_of(tensor, whole));
  }
  init_parameters(views, seed);
  // Masters of low-precision parameters copy the values just drawn.
  for (auto& [index, state] : by_state_) {
    if (updates_here(state->state)) {
      state->moments = {};  // two of them may be more than a device has room for
      state->moments = moments_of(*state);
    }
    state->publish();
  }
}

i64 ParameterStore::updates() const {
  i64 count = 0;
  for (const auto& [key, shelf] : shelves_) {
    for (const StateTensors& state : shelf.states) count = std::max(count, state.moments.step);
  }
  return count;
}

void ParameterStore::set_updates(i64 count) {
  for (auto& [key, shelf] : shelves_) {
    for (StateTensors& state : shelf.states) state.moments.step = updates_here(state.state) ? count : 0;
  }
}

/// The shelf holds these states in this order, or does not exist and there are none.
bool ParameterStore::lies_as(Key key, const std::vector<State>& states) const {
  const auto shelf = shelves_.find(key);
  if (shelf == shelves_.end()) return states.empty();
  return std::equal(shelf->second.states.begin(), shelf->second.states.end(), states.begin(), states.end(),
                    [](const StateTensors& a, const State& b) { return same_units(a.state, b); });
}

void ParameterStore::prepare(std::span<const State> states, UnitPart part, i32 layer) {
  std::vector<State> placed;
  for (const State& state : states) {
    if (key_of(state) == Key{layer, part} && places_on(state, device_)) placed.push_back(state);
  }
  if (lies_as({layer, part}, placed)) return;
  const i64 count = updates();
  Shelf& shelf = prepared_[{layer, part}];
  shelf = make_shelf(placed);
  for (StateTensors& state : shelf.states) {
    if (state.state.trainable) state.moments.step = count;
    for (const Unit& unit : units_of(state)) {
      if (holds(unit)) copy_tensors(tensors(unit), prepared(unit));
    }
  }
}

std::vector<Unit> ParameterStore::new_units() const {
  std::vector<Unit> all;
  for (const auto& [key, shelf] : prepared_) {
    for (const StateTensors& state : shelf.states) {
      for (const Unit& unit : units_of(state)) {
        if (!holds(unit)) all.push_back(unit);
      }
    }
  }
  return all;
}

void ParameterStore::adopt(UnitPart part, i32 layer) {
  auto node = prepared_.extract({layer, part});
  if (node.empty()) return;  // it lies as it should
  by_state_.clear();         // until bind()
  shelves_.erase({layer, part});
  if (!node.mapped().states.empty()) shelves_.insert(std::move(node));
}

void ParameterStore::bind(std::span<const State> states) {
  by_state_.clear();
  for (std::size_t s = 0; s < states.size(); ++s) {
    if (!places_on(states[s], device_)) continue;
    for (StateTensors& state : shelves_[key_of(states[s])].states) {
      if (!same_units(state.state, states[s])) continue;
      if (state.state.devices != states[s].devices) state.lost.clear();
      state.state.devices = states[s].devices;
      by_state_[static_cast<i32>(s)] = &state;
    }
    HM_CHECK(by_state_.count(static_cast<i32>(s)) > 0, "state {} is not on device {}", s, device_);
  }
  std::size_t num_here = 0;
  for (const auto& [key, shelf] : shelves_) num_here += shelf.states.size();
  HM_CHECK(num_here == by_state_.size(), "device {} holds {} states, the schedule places {} there", device_,
           num_here, by_state_.size());
}

}  // namespace hetermoe
