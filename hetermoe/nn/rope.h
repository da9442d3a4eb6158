#pragma once
#include <ATen/ATen.h>

#include "hetermoe/model/rope_scaling.h"

// Rotary position embedding.
namespace hetermoe {

/// Tables of the rotation [S, dim/2] in accumulate_type: cosines and sines of position * frequency, times
/// the scale of the angles.
struct RopeTable {
  at::Tensor cos, sin;
};
RopeTable rope_table(i64 seq_len, const RopeAngles& angles, const at::TensorOptions& options);
inline RopeTable rope_table(i64 seq_len, i64 dim, double theta, const at::TensorOptions& options) {
  return rope_table(seq_len, plain_rope(dim, theta), options);
}
/// The front of heads [.., dim] that the table turns: a view.
at::Tensor turned_part(const at::Tensor& x_BShd, const at::Tensor& cos);
enum class RopeLayout { kHalves, kPairs };  ///< element i turns with i + dim/2, or 2i with 2i + 1
enum class RopeDirection { kForward, kBackward };
/// x: [B, S, heads, dim] with dim as wide as the table; the backward direction turns by the negative angle:
/// the gradient.
at::Tensor rotate(const at::Tensor& x_BShd, const RopeTable& table, RopeLayout layout,
                  RopeDirection direction);

/// The same inside autograd graphs. Elements beyond the width of the table stay as they are.
at::Tensor rope(const at::Tensor& x_BShd, const RopeTable& table, RopeLayout layout);

}  // namespace hetermoe
