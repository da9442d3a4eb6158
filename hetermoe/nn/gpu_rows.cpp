#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/kernels/rows.h"
#include "hetermoe/nn/gpu_kernels.h"

namespace hetermoe {
namespace {

using kernels::blocks_for;
using kernels::threads_for;

/// [K + 1] int32: how many of the ascending keys are less than k.
at::Tensor segment_begins(const at::Tensor& key_C, i64 num_keys) {
  HM_CHECK(key_C.numel() < (i64{1} << 31), "{} keys do not fit into int32", key_C.numel());
  const at::Tensor begin = at::empty({num_keys + 1}, key_C.options().dtype(at::kInt));
  constexpr i32 kThreads = 256;
  kernels::launch(
      "segment_begins", {key_C.scalar_type()},
      {.blocks = blocks_for((num_keys + kThreads) / kThreads), .threads = kThreads},
      kernels::SegmentBegins{key_C.const_data_ptr(), begin.mutable_data_ptr<i32>(), key_C.numel(), num_keys},
      key_C.device());
  return begin;
}

/// Rows that sum_rows() reads for a target of this dtype: its own, or 16 bits into fp32.
at::Tensor summable(const at::Tensor& rows_RD, at::ScalarType target) {
  const at::ScalarType dtype = rows_RD.scalar_type();
  const bool narrow = target == at::kFloat && (dtype == at::kBFloat16 || dtype == at::kHalf);
  return (narrow ? rows_RD : rows_RD.to(target)).contiguous();
}

/// out[k] = base[k] + the rows of key k; base may be out, or undefined.
void sum_rows(const at::Tensor& out_KD, const at::Tensor& base_KD, const at::Tensor& rows_CD,
              const KeyOrder& order) {
  const i64 width = out_KD.size(1);
  const bool packed = is_packed(width, {out_KD, base_KD}) && is_packed(width, {rows_CD});
  kernels::launch(
      "sum_rows", {rows_CD.scalar_type(), out_KD.scalar_type(), order.item_C.scalar_type()},
      {.blocks = blocks_for(out_KD.size(0)), .threads = threads_for(steps_of(width, packed, rows_CD))},
      kernels::SumRows{rows_CD.const_data_ptr(), data_or_null(base_KD), order.item_C.const_data_ptr(),
                       order.begin_K1.const_data_ptr<i32>(), out_KD.mutable_data_ptr(), out_KD.size(0), width,
                       packed},
      out_KD.device());
}

}  // namespace

at::Tensor gpu_gather_rows(const at::Tensor& source_TD, const at::Tensor& index_R) {
  const at::Tensor index = index_R.to(source_TD.device()).contiguous();
  at::Tensor out = at::empty({index.size(0), source_TD.size(1)}, source_TD.options());
  const i64 bytes = source_TD.size(1) * static_cast<i64>(source_TD.element_size());
  const auto fits = [&](i64 unit) {
    const auto address = reinterpret_cast<std::uintptr_t>(source_TD.const_data_ptr());
    return bytes % unit == 0 && address % idx(unit) == 0;
  };
  const i64 unit = fits(16) ? 16 : fits(4) ? 4 : 1;
  kernels::launch(
      "gather_rows", {index.scalar_type()},
      {.blocks = blocks_for(index.size(0)), .threads = threads_for(bytes / unit)},
      kernels::GatherRows{source_TD.const_data_ptr(), index.const_data_ptr(), out.mutable_data_ptr(),
                          index.size(0), bytes / unit, static_cast<i32>(unit)},
      source_TD.device());
  return out;
}

KeyOrder order_by_key(const at::Tensor& key_C, i64 num_keys) {
  const auto [sorted, item] = at::sort(key_C, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  return {item, segment_begins(sorted, num_keys)};
}

at::Tensor gpu_sum_rows(const at::Tensor& rows_CD, const KeyOrder& order) {
  at::Tensor out = at::empty({order.begin_K1.size(0) - 1, rows_CD.size(1)}, rows_CD.options());
  sum_rows(out, {}, rows_CD.contiguous(), order);
  return out;
}

void gpu_add_rows_(at::Tensor& target_TD, const at::Tensor& index_R, const at::Tensor& rows_RD) {
  const KeyOrder order = order_by_key(index_R.to(target_TD.device()), target_TD.size(0));
  sum_rows(target_TD, target_TD, summable(rows_RD, target_TD.scalar_type()), order);
}

at::Tensor gpu_merge_rows(const at::Tensor& base_TD, const std::vector<MergePart>& parts, bool from_zero) {
  constexpr std::size_t kMost = kernels::MergeRows::kMostParts;
  const i64 width = base_TD.size(1);
  at::Tensor out = base_TD;
  std::vector<at::Tensor>
      kept;  // what the arguments point to; the allocator keeps freed memory for the stream
  for (std::size_t first = 0; first < parts.size(); first += kMost) {
    kernels::MergeRows arguments{};
    const at::Tensor base = out;
    out = at::empty_like(base_TD);
    bool packed = is_packed(width, {base, out});
    for (std::size_t p = first; p < std::min(parts.size(), first + kMost); ++p) {
      kept.push_back(parts[p].rows_RD.to(base_TD.scalar_type()).contiguous());
      packed = packed && is_packed(width, {kept.back()});
      const void* const rows = kept.back().const_data_ptr();
      kept.push_back(segment_begins(parts[p].token_R.to(base_TD.device()).contiguous(), base_TD.size(0)));
      arguments.parts[arguments.num_parts++] = {rows, kept.back().const_data_ptr<i32>()};
    }
    arguments.base = from_zero && first == 0 ? nullptr : base.const_data_ptr();
    arguments.out = out.mutable_data_ptr();
    arguments.rows = base_TD.size(0);
    arguments.width = width;
    arguments.packed = packed;
    kernels::launch(
        "merge_rows", {base_TD.scalar_type()},
        {.blocks = blocks_for(arguments.rows), .threads = threads_for(steps_of(width, packed, out))},
        arguments, out.device());
  }
  if (!parts.empty()) return out;
  return from_zero ? at::zeros_like(base_TD) : base_TD.clone();
}

}  // namespace hetermoe
