#include "hetermoe/exec/parts.h"

namespace hetermoe {

PartRange part_range(i64 count, std::size_t index, std::size_t parts) {
  constexpr i64 kStep = 16;
  const auto begin_of = [&](std::size_t i) {
    return i == parts ? count : count * static_cast<i64>(i) / static_cast<i64>(parts) / kStep * kStep;
  };
  return {begin_of(index), begin_of(index + 1)};
}

at::Tensor part_of(const at::Tensor& tensor, std::size_t index, std::size_t parts) {
  const PartRange range = part_range(tensor.numel(), index, parts);
  const at::Tensor part = tensor.view(-1).narrow(0, range.begin, range.size());
  return tensor.dim() > 1 ? part.view({1, -1}) : part;
}

std::vector<at::Tensor> parts_of(const std::vector<at::Tensor>& tensors, std::size_t index,
                                 std::size_t parts) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors) out.push_back(part_of(tensor, index, parts));
  return out;
}

}  // namespace hetermoe
