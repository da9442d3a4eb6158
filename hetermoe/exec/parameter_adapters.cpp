#include "hetermoe/base/index.h"
#include "hetermoe/exec/parameter_store.h"

// Units of which adapters are trained: their matrices.
namespace hetermoe {

/// The matrices of a unit with adapters, which stay as they are: values alone. None where they visit.
void ParameterStore::add_matrices(const Shelf& shelf, UnitTensors& out) const {
  if (!shelf.keeps_weights()) return;
  std::vector<NamedTensor> matrices;
  if (shelf.group) {
    matrices = shelf.group->named(shelf.group->values);
  } else {
    const i64 slot = shelf.slab->slot_of[idx(out.unit.expert)];
    matrices = named_experts(model_, out.unit.layer, std::span(&out.unit.expert, 1),
                             shelf.slab->gate_up.narrow(0, slot, 1), shelf.slab->down.narrow(0, slot, 1));
  }
  for (const NamedTensor& matrix : matrices) {
    out.tensors.push_back({.name = matrix.name,
                           .value = matrix.tensor,
                           .shape = matrix.tensor.sizes().vec(),
                           .first_owner = out.home == device_});
  }
}

}  // namespace hetermoe
