#include "hetermoe/nn/rows.h"

#include <ATen/Parallel.h>

#include <cstring>
#include <vector>

#include "hetermoe/base/error.h"
#include "hetermoe/base/types.h"
#include "hetermoe/nn/cpu_rows.h"
#include "hetermoe/nn/gpu_kernels.h"

namespace hetermoe {
namespace {

constexpr i64 kElementsPerTask = 16384;  // below this a second thread costs more than it gives

bool plain_cpu(const at::Tensor& tensor) { return tensor.device().is_cpu() && tensor.is_contiguous(); }

/// Threads split the columns, not the rows: an index may repeat, and the order of the additions stays that of
/// r.
template <class T, class Row>
void add_rows_cpu(const at::Tensor& target_TD, const at::Tensor& index_R, const at::Tensor& rows_RD) {
  const i64 num_rows = rows_RD.size(0), width = rows_RD.size(1);
  T* const target = target_TD.mutable_data_ptr<T>();
  const i64* const index = index_R.const_data_ptr<i64>();
  const Row* const rows = rows_RD.const_data_ptr<Row>();
  const i64 columns_per_task = std::max<i64>(16, kElementsPerTask / std::max<i64>(1, num_rows));
  at::parallel_for(0, width, columns_per_task, [&](i64 begin, i64 end) {
    for (i64 r = 0; r < num_rows; ++r) {
      T* to = target + index[r] * width;
      const Row* from = rows + r * width;
      for (i64 c = begin; c < end; ++c) to[c] += static_cast<T>(from[c]);
    }
  });
}

/// Columns [first, first + count) of 16-bit rows, summed in fp32 and rounded once.
template <class T>
void add_16bit_columns(const at::Tensor& target_TD, const at::Tensor& index_R, const at::Tensor& rows_RD,
                       i64 first, i64 count) {
  const i64 num_targets = target_TD.size(0), num_rows = rows_RD.size(0), width = rows_RD.size(1);
  T* const target = target_TD.mutable_data_ptr<T>() + first;
  const i64* const index = index_R.const_data_ptr<i64>();
  const T* const rows = rows_RD.const_data_ptr<T>() + first;
  std::vector<float> sums(static_cast<std::size_t>(num_targets * count));
  for (i64 t = 0; t < num_targets; ++t) widen(target + t * width, sums.data() + t * count, count);
  FloatRow<T> row(count);
  for (i64 r = 0; r < num_rows; ++r) {
    const float* from = row.read(rows + r * width);
    float* to = sums.data() + index[r] * count;
    for (i64 c = 0; c < count; ++c) to[c] += from[c];
  }
  for (i64 t = 0; t < num_targets; ++t) narrow(sums.data() + t * count, target + t * width, count);
}

/// The same for 16-bit targets, in strips whose sums stay in a thread's cache.
template <class T>
void add_16bit_rows(const at::Tensor& target_TD, const at::Tensor& index_R, const at::Tensor& rows_RD) {
  constexpr i64 kSums = 256 << 10, kFewest = 32;
  const i64 width = rows_RD.size(1), num_targets = std::max<i64>(1, target_TD.size(0));
  const i64 strip = std::max(kFewest, kSums / num_targets / kFewest * kFewest);
  const i64 per_task = std::max<i64>(1, kElementsPerTask / (strip * std::max<i64>(1, rows_RD.size(0))));
  at::parallel_for(0, (width + strip - 1) / strip, per_task, [&](i64 begin, i64 end) {
    for (i64 first = begin * strip; first < std::min(width, end * strip); first += strip)
      add_16bit_columns<T>(target_TD, index_R, rows_RD, first, std::min(strip, width - first));
  });
}

/// Not where most targets stay as they are (the rows of a vocabulary).
bool adds_in_strips(const at::Tensor& target_TD, const at::Tensor& rows_RD) {
  return plain_cpu(target_TD) && at::elementSize(target_TD.scalar_type()) == 2 &&
         target_TD.size(0) <= 4 * rows_RD.size(0);
}

/// 16-bit rows are converted as they are read.
void add_rows_to_floats(const at::Tensor& target_TD, const at::Tensor& index_R, const at::Tensor& rows_RD) {
  if (rows_RD.scalar_type() == at::kBFloat16)
    add_rows_cpu<float, at::BFloat16>(target_TD, index_R, rows_RD);
  else if (rows_RD.scalar_type() == at::kHalf)
    add_rows_cpu<float, at::Half>(target_TD, index_R, rows_RD);
  else
    add_rows_cpu<float, float>(target_TD, index_R, rows_RD.to(at::kFloat));
}

/// Then the sum has memory of its own; else the target is written.
bool merges_on_kernels(const at::Tensor& target_TD) {
  return runs_on_kernels(target_TD) && target_TD.is_contiguous();
}

}  // namespace

at::Tensor gather_rows(const at::Tensor& source_TD, const at::Tensor& index_R) {
  if (runs_on_kernels(source_TD) && source_TD.is_contiguous()) return gpu_gather_rows(source_TD, index_R);
  if (!plain_cpu(source_TD)) return source_TD.index_select(0, index_R.to(source_TD.device()));
  const i64 width = source_TD.size(1), num_rows = index_R.size(0);
  at::Tensor out = at::empty({num_rows, width}, source_TD.options());
  const std::size_t bytes = static_cast<std::size_t>(width * source_TD.element_size());
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
  if (runs_on_kernels(target_TD) && target_TD.is_contiguous())
    return gpu_add_rows_(target_TD, index_R, rows_RD);
  const at::ScalarType dtype = target_TD.scalar_type();
  if (plain_cpu(target_TD) && dtype == at::kFloat) {
    add_rows_to_floats(target_TD, index_R, rows_RD.contiguous());
    return;
  }
  const at::Tensor rows = rows_RD.to(dtype).contiguous();
  if (plain_cpu(target_TD) && dtype == at::kDouble) {
    add_rows_cpu<double, double>(target_TD, index_R, rows);
  } else if (adds_in_strips(target_TD, rows)) {
    if (dtype == at::kBFloat16)
      add_16bit_rows<at::BFloat16>(target_TD, index_R, rows);
    else
      add_16bit_rows<at::Half>(target_TD, index_R, rows);
  } else if (plain_cpu(target_TD)) {
    target_TD.index_add_(0, index_R, rows);
  } else {
    // index_put_ with accumulation sorts the index: unlike index_add_ it is deterministic on CUDA.
    target_TD.index_put_({index_R.to(target_TD.device())}, rows, /*accumulate=*/true);
  }
}

at::Tensor merge_rows(const at::Tensor& base_TD, const std::vector<MergePart>& parts) {
  if (merges_on_kernels(base_TD)) return gpu_merge_rows(base_TD, parts, /*from_zero=*/false);
  at::Tensor out = base_TD.clone();
  for (const MergePart& part : parts) add_rows_(out, part.token_R, part.rows_RD);
  return out;
}

at::Tensor sum_parts(const at::Tensor& like_TD, const std::vector<MergePart>& parts) {
  if (merges_on_kernels(like_TD)) return gpu_merge_rows(like_TD, parts, /*from_zero=*/true);
  at::Tensor out = at::zeros_like(like_TD);
  for (const MergePart& part : parts) add_rows_(out, part.token_R, part.rows_RD);
  return out;
}

void place_flat_(at::Tensor& target_TK, const at::Tensor& flat_C, const at::Tensor& values_C) {
  target_TK.view(-1).index_copy_(0, flat_C.to(target_TK.device(), at::kLong),
                                 values_C.to(target_TK.scalar_type()));
}

}  // namespace hetermoe
