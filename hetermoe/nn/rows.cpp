#include "hetermoe/nn/rows.h"

#include <ATen/Parallel.h>

#include <cstring>

#include "hetermoe/base/error.h"
#include "hetermoe/base/types.h"

namespace hetermoe {
namespace {

constexpr i64 kElementsPerTask = 16384;  // below this a second thread costs more than it gives

bool plain_cpu(const at::Tensor& tensor) { return tensor.device().is_cpu() && tensor.is_contiguous(); }

/// Threads split the columns, not the rows: an index may repeat, and the order of the additions stays that of
/// r.
template <class T>
void add_rows_cpu(T* target, const i64* index, const T* rows, i64 num_rows, i64 width) {
  const i64 columns_per_task = std::max<i64>(16, kElementsPerTask / std::max<i64>(1, num_rows));
  at::parallel_for(0, width, columns_per_task, [&](i64 begin, i64 end) {
    for (i64 r = 0; r < num_rows; ++r) {
      T* to = target + index[r] * width;
      const T* from = rows + r * width;
      for (i64 c = begin; c < end; ++c) to[c] += from[c];
    }
  });
}

}  // namespace

at::Tensor gather_rows(const at::Tensor& source_TD, const at::Tensor& index_R) {
  if (!plain_cpu(source_TD)) return source_TD.index_select(0, index_R.to(source_TD.device()));
  const i64 width = source_TD.size(1), num_rows = index_R.size(0);
  at::Tensor out = at::empty({num_rows, width}, source_TD.options());
  const std::size_t bytes = static_cast<std::size_t>(width) * source_TD.element_size();
  const char* from = static_cast<const char*>(source_TD.const_data_ptr());
  char* to = static_cast<char*>(out.mutable_data_ptr());
  const i64* index = index_R.const_data_ptr<i64>();
  const i64 rows_per_task = std::max<i64>(1, kElementsPerTask / std::max<i64>(1, width));
  at::parallel_for(0, num_rows, rows_per_task, [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      std::memcpy(to + static_cast<std::size_t>(r) * bytes, from + static_cast<std::size_t>(index[r]) * bytes,
                  bytes);
    }
  });
  return out;
}

void add_rows_(at::Tensor& target_TD, const at::Tensor& index_R, const at::Tensor& rows_RD) {
  if (rows_RD.size(0) == 0) return;
  const at::Tensor rows = rows_RD.to(target_TD.scalar_type()).contiguous();
  if (plain_cpu(target_TD) && target_TD.scalar_type() == at::kFloat) {
    add_rows_cpu(target_TD.mutable_data_ptr<float>(), index_R.const_data_ptr<i64>(),
                 rows.const_data_ptr<float>(), rows.size(0), rows.size(1));
  } else if (plain_cpu(target_TD) && target_TD.scalar_type() == at::kDouble) {
    add_rows_cpu(target_TD.mutable_data_ptr<double>(), index_R.const_data_ptr<i64>(),
                 rows.const_data_ptr<double>(), rows.size(0), rows.size(1));
  } else if (plain_cpu(target_TD)) {
    target_TD.index_add_(0, index_R, rows);
  } else {
    // index_put_ with accumulation sorts the index: unlike index_add_ it is deterministic on CUDA.
    target_TD.index_put_({index_R.to(target_TD.device())}, rows, /*accumulate=*/true);
  }
}

void place_flat_(at::Tensor& target_TK, const at::Tensor& flat_C, const at::Tensor& values_C) {
  target_TK.view(-1).index_copy_(0, flat_C.to(target_TK.device()), values_C.to(target_TK.scalar_type()));
}

}  // namespace hetermoe
