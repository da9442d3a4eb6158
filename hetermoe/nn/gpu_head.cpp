#include "hetermoe/kernels/head.h"
#include "hetermoe/nn/embed_head.h"
#include "hetermoe/nn/gpu_kernels.h"

namespace hetermoe {

at::Tensor gpu_cross_entropy(const at::Tensor& logits_TV, const at::Tensor& targets_T, double scale) {
  const i64 rows = logits_TV.size(0), width = logits_TV.size(1);
  const at::Tensor losses = at::empty({rows}, logits_TV.options().dtype(at::kDouble));
  const at::Tensor targets = targets_T.contiguous();
  kernels::launch("cross_entropy", {logits_TV.scalar_type()},
                  {.blocks = kernels::blocks_for(rows), .threads = kernels::kMostThreads},
                  kernels::CrossEntropy{logits_TV.mutable_data_ptr(), targets.const_data_ptr<i64>(),
                                        losses.mutable_data_ptr<double>(), rows, width, kIgnoreTarget, scale,
                                        is_packed(width, {logits_TV})},
                  logits_TV.device());
  return losses;
}

}  // namespace hetermoe
