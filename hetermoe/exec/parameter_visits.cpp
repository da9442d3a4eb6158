#include "hetermoe/base/index.h"
#include "hetermoe/exec/parameter_store.h"

// Weights that come from the host, or are gathered, for as long as ops use them, and the gradients that they
// leave. While a state is not here its tensors have shapes and no memory (they are meta tensors).
namespace hetermoe {
namespace {

bool is_here(const at::Tensor& tensor) { return !tensor.is_meta(); }

/// Leaves the shape in the place of a tensor.
void drop(at::Tensor& tensor) { tensor = tensor.to(at::kMeta); }

/// Leaves shapes alone in a list, and returns what was there.
std::vector<at::Tensor> take_tensors(std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> held = tensors;
  for (at::Tensor& tensor : tensors) drop(tensor);
  return held;
}

at::Tensor room_for(const at::Tensor& shape, const at::TensorOptions& options) {
  return at::empty(shape.sizes(), options.dtype(shape.scalar_type()));
}

at::Tensor zeros_for(const at::Tensor& shape, const at::TensorOptions& options) {
  return at::zeros(shape.sizes(), options.dtype(shape.scalar_type()));
}

}  // namespace

/// The slots of the slab that belong to a state: [first, first + count).
std::pair<i64, i64> ParameterStore::slots_of(const Shelf& shelf, const StateTensors& state) {
  i64 first = 0;
  for (const StateTensors& other : shelf.states) {
    const auto count = static_cast<i64>(other.state.experts.size());
    if (&other == &state) return {first, count};
    first += count;
  }
  HM_CHECK(false, "a state of another shelf");
}

void ParameterStore::make_room(i32 index) {
  StateTensors& state = of_state(index);
  Shelf& shelf = shelves_.at(key_of(state.state));
  if (shelf.slab) {
    if (!is_here(shelf.slab->gate_up)) {
      shelf.slab->gate_up = room_for(shelf.slab->gate_up, options_.values);
      shelf.slab->down = room_for(shelf.slab->down, options_.values);
    }
    const auto [first, count] = slots_of(shelf, state);
    state.visitors() = {shelf.slab->gate_up.narrow(0, first, count),
                        shelf.slab->down.narrow(0, first, count)};
  } else {
    for (at::Tensor& value : state.visitors()) value = room_for(value, options_.values);
    shelf.group->values = state.visitors();
  }
}

void ParameterStore::admit(i32 index, const std::vector<at::Tensor>& values) {
  make_room(index);
  StateTensors& state = of_state(index);
  Shelf& shelf = shelves_.at(key_of(state.state));
  if (shelf.group && shelf.group->buffer.defined())
    shelf.group->buffer.copy_(values.back(), /*non_blocking=*/true);
  const std::vector<at::Tensor>& here = state.visitors();
  for (std::size_t i = 0; i < here.size(); ++i) here[i].copy_(values[i], /*non_blocking=*/true);
}

std::vector<at::Tensor> ParameterStore::dismiss(i32 index) {
  StateTensors& state = of_state(index);
  Shelf& shelf = shelves_.at(key_of(state.state));
  std::vector<at::Tensor> held = take_tensors(state.visitors());
  if (shelf.group) shelf.group->values = state.visitors();
  const bool last = std::none_of(shelf.states.begin(), shelf.states.end(),
                                 [](const StateTensors& s) { return is_here(s.visitors()[0]); });
  if (shelf.slab && last) {
    drop(shelf.slab->gate_up);
    drop(shelf.slab->down);
  }
  return held;
}

void ParameterStore::open_grads(UnitPart part, i32 layer) {
  Shelf& shelf = shelves_.at({layer, part});
  if (!shelf.visits || shelf.adapted()) return;
  if (shelf.slab && !is_here(shelf.slab->gate_up_grad)) {
    shelf.slab->gate_up_grad = zeros_for(shelf.slab->gate_up_grad, options_.values);
    shelf.slab->down_grad = zeros_for(shelf.slab->down_grad, options_.values);
  }
  for (StateTensors& state : shelf.states) {
    if (!state.state.trainable || is_here(state.grads[0])) continue;
    if (shelf.slab) {
      // What an earlier visit left here is on the host.
      const auto [first, count] = slots_of(shelf, state);
      state.grads = {shelf.slab->gate_up_grad.narrow(0, first, count),
                     shelf.slab->down_grad.narrow(0, first, count)};
      for (at::Tensor& grad : state.grads) grad.zero_();
    } else {
      for (at::Tensor& grad : state.grads) grad = zeros_for(grad, options_.values);
      shelf.group->grads = state.grads;
    }
  }
}

std::vector<at::Tensor> ParameterStore::take_grads(i32 index) {
  StateTensors& state = of_state(index);
  Shelf& shelf = shelves_.at(key_of(state.state));
  std::vector<at::Tensor> held = take_tensors(state.grads);
  if (shelf.group) shelf.group->grads = state.grads;
  const bool last = std::none_of(shelf.states.begin(), shelf.states.end(), [](const StateTensors& s) {
    return s.state.trainable && is_here(s.grads[0]);
  });
  if (shelf.slab && last) {
    drop(shelf.slab->gate_up_grad);
    drop(shelf.slab->down_grad);
  }
  return held;
}

bool ParameterStore::has_visitors() const {
  for (const auto& [key, shelf] : shelves_) {
    if (!shelf.visits) continue;
    for (const StateTensors& state : shelf.states) {
      const bool graded = state.state.trainable && !shelf.adapted() && is_here(state.grads[0]);
      if (graded || is_here(state.visitors()[0])) return true;
    }
  }
  return false;
}

}  // namespace hetermoe
