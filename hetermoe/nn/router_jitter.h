#pragma once
#include <ATen/ATen.h>

#include "hetermoe/nn/path.h"
#include "hetermoe/nn/router_training.h"

// The jitter of routers: factors on their inputs, which are drawn anew wherever they are needed. So neither
// forward nor backward keeps more than without jitter.
namespace hetermoe {

/// What the factors of a device's tokens follow from. Row r of its inputs is token first_token + r, counted
/// from the beginning of sequence `first_sequence`.
struct RouterJitter {
  double size = 0;         ///< factors from 1 - size to 1 + size; 0 = none
  u64 key = 0;             ///< of seed, step and layer
  i64 first_sequence = 0;  ///< in the data
  i64 first_token = 0, seq_len = 1;

  bool on() const { return size > 0; }
};

/// first_sequence: index in the step.
RouterJitter router_jitter(const RouterTraining& training, i64 layer, i64 first_sequence, i64 first_token,
                           i64 seq_len);

/// x_TD times the factors, computed in fp32 (fp64 where x or dtype is) and rounded once to `dtype`.
/// Contiguous.
at::Tensor jittered(const at::Tensor& x_TD, const RouterJitter& jitter, at::ScalarType dtype,
                    Path path = Path::kAuto);

/// apply_wide_linear() of jittered x, of which graphs keep x as it is.
at::Tensor apply_jittered_linear(const at::Tensor& x_TD, const at::Tensor& weight, at::ScalarType wide,
                                 const RouterJitter& jitter);

}  // namespace hetermoe
