#include "hetermoe/base/error.h"
#include "hetermoe/kernels/rope.h"
#include "hetermoe/nn/gpu_kernels.h"
#include "hetermoe/nn/params.h"

namespace hetermoe {
namespace {

kernels::HeadStrides strides_of(const at::Tensor& x_BShd) {
  return {x_BShd.stride(0), x_BShd.stride(1), x_BShd.stride(2)};
}

}  // namespace

void gpu_rotate(const at::Tensor& out, const at::Tensor& x, const RopeTable& table, RopeLayout layout,
                RopeDirection direction) {
  const i64 heads = x.size(2), dim = x.size(3);
  HM_CHECK(table.cos.scalar_type() == accumulate_type(x.scalar_type()), "a table of another precision");
  HM_CHECK(x.stride(3) == 1 && out.stride(3) == 1, "the elements of a head are neighbours");
  kernels::launch(
      "rotate", {x.scalar_type()},
      {.blocks = x.numel() == 0 ? 0 : kernels::blocks_for(x.size(0) * x.size(1)),
       .threads = kernels::threads_for(heads * dim / 2)},
      kernels::Rotate{x.const_data_ptr(), out.mutable_data_ptr(), strides_of(x), strides_of(out),
                      table.cos.const_data_ptr(), table.sin.const_data_ptr(), x.size(0), x.size(1), heads,
                      dim, layout == RopeLayout::kPairs, direction == RopeDirection::kBackward},
      x.device());
}

}  // namespace hetermoe
