#pragma once
#include <ATen/ATen.h>

#include <functional>

#include "hetermoe/model/growth.h"

// Growth undone: the instances of each expert become one again.
namespace hetermoe {

/// A tensor of the grown model.
using ReadTensor = std::function<at::Tensor(const ParamInfo&)>;

/// The router's weight, whose rows are those of experts.
bool is_router(const ModelConfig& model, const ParamInfo& parameter);

/// Throws ConfigError with layer and expert when the cosine of an instance's tensors, or of its router row,
/// with those of the original is below `least`. In `dormant` copies fall away in place of being merged:
/// refused is one that its bias lets be chosen.
void check_alike(const Growth& growth, const ReadTensor& read, double least);

/// A parameter or buffer of growth.before: of an expert the mean of its instances, of a router the means of
/// their rows, otherwise what it is; what is alike stays so to the bit. In `dormant` the originals'.
at::Tensor merged_tensor(const Growth& growth, const ParamInfo& parameter, const ReadTensor& read);

/// A moment of the optimizer, `power` as in grown_moment(), which this undoes.
at::Tensor merged_moment(const Growth& growth, const ParamInfo& parameter, const ReadTensor& read, i64 power);

}  // namespace hetermoe
