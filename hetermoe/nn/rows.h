#pragma once
#include <ATen/ATen.h>

#include <vector>

// Moving rows between the residual stream and messages. Index tensors may be on the CPU or on the rows'
// device.
namespace hetermoe {

/// source[index]: [R, D]. Packs x into a message, and the gradient of the layer output for combine's
/// backward.
at::Tensor gather_rows(const at::Tensor& source_TD, const at::Tensor& index_R);

/// target[index[r]] += rows[r], in order of r: deterministic though an index may repeat. Rows of another
/// dtype are cast. Merging a layer's output is y = u.clone(), then one call per destination in device order.
void add_rows_(at::Tensor& target_TD, const at::Tensor& index_R, const at::Tensor& rows_RD);

/// Rows that one destination returned for these tokens, which ascend and may repeat.
struct MergePart {
  at::Tensor token_R, rows_RD;
};
/// base, and each part's rows added at their tokens, part after part: [T, D]. One pass where kernels of our
/// own run.
at::Tensor merge_rows(const at::Tensor& base_TD, const std::vector<MergePart>& parts);

/// The same from zeros, of the sizes and the dtype of `like`.
at::Tensor sum_parts(const at::Tensor& like_TD, const std::vector<MergePart>& parts);

/// target.view(-1)[flat[c]] = values[c]: puts received gradients of routing weights at their place.
void place_flat_(at::Tensor& target_TK, const at::Tensor& flat_C, const at::Tensor& values_C);

}  // namespace hetermoe
