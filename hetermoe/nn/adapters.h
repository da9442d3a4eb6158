#pragma once
#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "hetermoe/model/lora.h"

// Adapters beside the storages of a state group or slab: which rows of which storage they change.
namespace hetermoe {

/// Adapters of one matrix, or of the same matrix of all experts of a slab, which then are the first
/// dimension.
struct Adapter {
  std::size_t weight = 0;     ///< position of the storage (0 = gate and up, 1 = down in a slab)
  i64 begin = 0, rows = 0;    ///< rows of the storage that are the matrix
  std::string matrix;         ///< its name; of a slab that of the first expert
  at::Tensor a, b;            ///< [rank, in] and [rows, rank]
  at::Tensor a_grad, b_grad;  ///< likewise
  double scale = 1;
};

/// All zero. experts: 0 = of one matrix.
Adapter make_adapter(const Lora& lora, std::size_t weight, i64 begin, i64 rows, std::string matrix,
                     i64 inputs, i64 experts, const at::TensorOptions& values,
                     const at::TensorOptions& grads);

/// A and B of each one after another.
std::vector<at::Tensor> values_of(const std::vector<Adapter>& adapters);
std::vector<at::Tensor> grads_of(const std::vector<Adapter>& adapters);

/// A copy of a storage [(experts,) rows, in] that number `weight` of these adapters changes.
at::Tensor with_adapters(const at::Tensor& storage, const std::vector<Adapter>& adapters, std::size_t weight);

/// Adds to the adapters' gradients what follows from the gradient of with_adapters().
void add_adapter_gradients(const std::vector<Adapter>& adapters, std::size_t weight,
                           const at::Tensor& storage_grad);

/// W + scale B A of one matrix, in the dtype of W; computed in fp32 at least.
at::Tensor merged(const at::Tensor& matrix, const at::Tensor& a, const at::Tensor& b, double scale);

}  // namespace hetermoe
