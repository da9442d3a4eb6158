#pragma once
#include <ATen/ATen.h>

#include <vector>

#include "hetermoe/base/types.h"

// How a tensor is divided over the devices that hold it: each sums its part in a reduction, tells the squares
// of it, and with a sharded optimizer updates it.
namespace hetermoe {

/// Flat elements [begin, end) of a tensor.
struct PartRange {
  i64 begin = 0, end = 0;
  i64 size() const { return end - begin; }
};

/// Part `index` of `parts` of `count` elements. It begins at a multiple of 16 elements, so that vectorised
/// loops treat every element as they do in the whole tensor, to the bit.
PartRange part_range(i64 count, std::size_t index, std::size_t parts);

/// That part of a contiguous tensor, a view. It has one dimension, or two if `tensor` has more than one: the
/// optimizer decays matrices alone.
at::Tensor part_of(const at::Tensor& tensor, std::size_t index, std::size_t parts);
std::vector<at::Tensor> parts_of(const std::vector<at::Tensor>& tensors, std::size_t index,
                                 std::size_t parts);

}  // namespace hetermoe
