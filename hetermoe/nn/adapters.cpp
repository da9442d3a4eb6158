#include "hetermoe/nn/adapters.h"

#include "hetermoe/nn/products.h"

namespace hetermoe {

Adapter make_adapter(const Lora& lora, std::size_t weight, i64 begin, i64 rows, std::string matrix,
                     i64 inputs, i64 experts, const at::TensorOptions& values,
                     const at::TensorOptions& grads) {
  std::vector<i64> a = {lora.rank, inputs}, b = {rows, lora.rank};
  if (experts > 0) a.insert(a.begin(), experts), b.insert(b.begin(), experts);
  return {.weight = weight,
          .begin = begin,
          .rows = rows,
          .matrix = std::move(matrix),
          .a = at::zeros(a, values),
          .b = at::zeros(b, values),
          .a_grad = at::zeros(a, grads),
          .b_grad = at::zeros(b, grads),
          .scale = lora.scale()};
}

std::vector<at::Tensor> values_of(const std::vector<Adapter>& adapters) {
  std::vector<at::Tensor> all;
  for (const Adapter& adapter : adapters) all.insert(all.end(), {adapter.a, adapter.b});
  return all;
}

std::vector<at::Tensor> grads_of(const std::vector<Adapter>& adapters) {
  std::vector<at::Tensor> all;
  for (const Adapter& adapter : adapters) all.insert(all.end(), {adapter.a_grad, adapter.b_grad});
  return all;
}

at::Tensor with_adapters(const at::Tensor& storage, const std::vector<Adapter>& adapters,
                         std::size_t weight) {
  at::Tensor out = storage.clone();
  for (const Adapter& adapter : adapters) {
    if (adapter.weight != weight) continue;
    for (i64 e = 0; e < out.size(0); ++e)
      add_product_(out[e].narrow(0, adapter.begin, adapter.rows), adapter.b[e] * adapter.scale, adapter.a[e]);
  }
  return out;
}

void add_adapter_gradients(const std::vector<Adapter>& adapters, std::size_t weight,
                           const at::Tensor& storage_grad) {
  for (const Adapter& adapter : adapters) {
    if (adapter.weight != weight) continue;
    for (i64 e = 0; e < storage_grad.size(0); ++e) {
      const at::Tensor grad = storage_grad[e].narrow(0, adapter.begin, adapter.rows);
      const auto wide = [&](const at::Tensor& x) { return x.to(grad.scalar_type()) * adapter.scale; };
      add_product_(adapter.a_grad[e], wide(adapter.b[e]).t(), grad);
      add_product_(adapter.b_grad[e], grad, wide(adapter.a[e]).t());
    }
  }
}

at::Tensor merged(const at::Tensor& matrix, const at::Tensor& a, const at::Tensor& b, double scale) {
  const at::ScalarType wide = matrix.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::addmm(matrix.to(wide), b.to(wide), a.to(wide), 1, scale).to(matrix.scalar_type());
}

}  // namespace hetermoe
