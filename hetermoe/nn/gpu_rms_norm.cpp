#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/kernels/norm.h"
#include "hetermoe/nn/gpu_kernels.h"
#include "hetermoe/nn/params.h"

namespace hetermoe {
namespace {

constexpr i64 kRowsOfWarps = 64;  ///< rows of at most so many steps of work belong to warps

/// Who works on the rows.
struct Teams {
  bool packed = false, by_warp = false;
  i32 threads = 32;
  i64 per_block = 1;
};

Teams teams_for(i64 width, bool packed, const at::Tensor& like) {
  const i64 steps = steps_of(width, packed, like);
  Teams out{packed, steps <= kRowsOfWarps, 256, 1};
  if (!out.by_warp) out.threads = kernels::threads_for(steps);
  if (out.by_warp) out.per_block = kernels::warps_per_block(out.threads, like.device());
  return out;
}

i64 blocks_of(i64 teams, const Teams& geometry) {
  return (teams + geometry.per_block - 1) / geometry.per_block;
}

}  // namespace

bool norm_runs_on_kernels(const at::Tensor& x, const at::Tensor& weight_D, Path path) {
  return runs_on_kernels(x, path) && x.is_contiguous() && weight_D.is_contiguous() &&
         weight_D.scalar_type() == x.scalar_type() && x.size(-1) > 0;
}

NormForward gpu_residual_norm_forward(const at::Tensor& sum, const at::Tensor& residual, const at::Tensor& x,
                                      const at::Tensor& weight_D, double eps) {
  const i64 width = x.size(-1), rows = x.numel() / width;
  NormForward out{at::empty_like(x), at::empty({rows}, x.options().dtype(accumulate_type(x.scalar_type())))};
  const Teams teams = teams_for(width, is_packed(width, {x, weight_D, out.out, sum, residual}), x);
  kernels::launch(
      "norm_forward", {x.scalar_type()},
      {.blocks = kernels::blocks_for(blocks_of(rows, teams)), .threads = teams.threads},
      kernels::NormForward{x.const_data_ptr(), data_or_null(residual), weight_D.const_data_ptr(),
                           mutable_data_or_null(sum), out.out.mutable_data_ptr(), out.rstd.mutable_data_ptr(),
                           rows, width, eps, teams.packed, teams.by_warp},
      x.device());
  return out;
}

NormForward gpu_rms_norm_forward(const at::Tensor& x, const at::Tensor& weight_D, double eps) {
  return gpu_residual_norm_forward({}, {}, x, weight_D, eps);
}

NormGradient gpu_rms_norm_backward(const at::Tensor& x, const at::Tensor& weight_D, const at::Tensor& rstd,
                                   const at::Tensor& dout, const at::Tensor& dresidual) {
  // The number of teams decides the order of the sums: it depends on shapes alone.
  constexpr i64 kMostBlocks = 512, kSharedBytes = 40 << 10;
  const i64 width = x.size(-1), rows = x.numel() / width;
  NormGradient out{at::empty_like(x), at::empty_like(weight_D)};
  const Teams teams = teams_for(width, is_packed(width, {x, weight_D, dout, out.dx, dresidual}), x);
  const i64 num_teams = std::min(rows, kMostBlocks * teams.per_block);
  const at::Tensor partial = at::empty({num_teams, width}, rstd.options());
  const i64 bytes = teams.per_block * width * static_cast<i64>(partial.element_size());
  const bool in_shared = bytes <= kSharedBytes;
  kernels::launch("norm_backward", {x.scalar_type()},
                  {blocks_of(num_teams, teams), teams.threads, in_shared ? bytes : 0},
                  kernels::NormBackward{x.const_data_ptr(), weight_D.const_data_ptr(), rstd.const_data_ptr(),
                                        dout.const_data_ptr(), data_or_null(dresidual),
                                        out.dx.mutable_data_ptr(), partial.mutable_data_ptr(), rows, width,
                                        num_teams, teams.packed, teams.by_warp, in_shared},
                  x.device());
  constexpr i32 kThreads = 256;
  constexpr i64 kColumns = 32;
  kernels::launch(
      "sum_columns", {x.scalar_type()},
      {(width + kColumns - 1) / kColumns, kThreads, kThreads * i64{sizeof(double)}},
      kernels::SumColumns{partial.const_data_ptr(), out.dweight_D.mutable_data_ptr(), num_teams, width},
      x.device());
  return out;
}

}  // namespace hetermoe
