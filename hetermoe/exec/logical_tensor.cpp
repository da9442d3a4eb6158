#include "hetermoe/exec/parameter_store.h"

// Tensors of which a device keeps a part, and the whole of them.
namespace hetermoe {

at::Tensor host_copy(const at::Tensor& tensor) {
  return tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

void place_part(const LogicalTensor& tensor, const at::Tensor& part, const at::Tensor& whole) {
  whole.view(-1).narrow(0, tensor.first, part.numel()).copy_(part.view(-1));
}

namespace {

at::Tensor piece_of(const LogicalTensor& tensor, const at::Tensor& whole, i64 count) {
  return whole.reshape(-1).narrow(0, tensor.first, count);
}

}  // namespace

at::Tensor kept_of(const LogicalTensor& tensor, const at::Tensor& whole) {
  return tensor.sharded ? piece_of(tensor, whole, tensor.exp_avg.numel()) : whole;
}

at::Tensor kept_value_of(const LogicalTensor& tensor, const at::Tensor& whole) {
  return tensor.gathered ? piece_of(tensor, whole, tensor.value.numel()) : whole;
}

at::Tensor joined(const std::vector<LogicalTensor>& pieces, at::Tensor LogicalTensor::*kept) {
  at::Tensor whole = at::empty(pieces.at(0).shape, (pieces[0].*kept).options().device(at::kCPU));
  i64 missing = whole.numel();
  for (const LogicalTensor& piece : pieces) {
    place_part(piece, piece.*kept, whole);
    missing -= (piece.*kept).numel();
  }
  return missing == 0 ? whole : at::Tensor();
}

}  // namespace hetermoe
