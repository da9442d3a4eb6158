#include "hetermoe/base/index.h"
#include "hetermoe/exec/parameter_store.h"

// Units of which adapters are trained: their matrices.
namespace hetermoe {

/// The matrices of a unit with adapters, which stay as they are: values alone.
void ParameterStore::add_matrices(const Shelf& shelf, UnitTensors& out) const {
  std::map<std::string, at::Tensor> adapters;
  for (const LogicalTensor& tensor : out.tensors)
    adapters[tensor.name] = tensor.master.defined() && !tensor.sharded ? tensor.master : tensor.value;
  std::vector<NamedTensor> matrices;
  if (shelf.group) {
    matrices = shelf.group->named(shelf.group->values);
  } else {
    const i64 slot = shelf.slab->slot_of[idx(out.unit.expert)];
    matrices = named_experts(model_, out.unit.layer, std::span(&out.unit.expert, 1),
                             shelf.slab->gate_up.narrow(0, slot, 1), shelf.slab->down.narrow(0, slot, 1));
  }
  for (const NamedTensor& matrix : matrices) {
    LogicalTensor tensor{.name = matrix.name,
                         .value = matrix.tensor,
                         .shape = matrix.tensor.sizes().vec(),
                         .first_owner = out.home == device_};
    if (options_.lora->adapts(matrix.name)) {
      tensor.lora_a = adapters.at(lora_a_name(matrix.name));
      tensor.lora_b = adapters.at(lora_b_name(matrix.name));
      tensor.lora_scale = options_.lora->scale();
    }
    out.tensors.push_back(std::move(tensor));
  }
}

}  // namespace hetermoe
