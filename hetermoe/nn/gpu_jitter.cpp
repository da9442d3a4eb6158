#include "hetermoe/kernels/jitter.h"
#include "hetermoe/nn/gpu_kernels.h"

namespace hetermoe {

at::Tensor gpu_jittered(const at::Tensor& x_TD, const RouterJitter& jitter, at::ScalarType dtype) {
  const at::Tensor x = x_TD.contiguous();
  at::Tensor out = at::empty(x.sizes(), x.options().dtype(dtype));
  const i64 rows = x.size(0), width = x.size(1);
  kernels::launch("jitter", {x.scalar_type(), dtype},
                  {.blocks = kernels::blocks_for(rows), .threads = kernels::threads_for(width)},
                  kernels::Jitter{x.const_data_ptr(), out.mutable_data_ptr(), rows, width, jitter.size,
                                  jitter.key, jitter.first_sequence, jitter.first_token, jitter.seq_len},
                  x.device());
  return out;
}

}  // namespace hetermoe
