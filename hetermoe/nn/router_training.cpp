#include "hetermoe/nn/router_training.h"

#include <cmath>

namespace hetermoe {
i64 expert_capacity(const ModelConfig& model, double factor, i64 seq_len) {
  const double even = static_cast<double>(seq_len * model.top_k) / static_cast<double>(model.num_experts);
  return static_cast<i64>(std::ceil(factor * even));
}

at::Tensor within_capacity(const at::Tensor& topk_TK, i64 seq_len, i64 capacity) {
  if (topk_TK.numel() == 0) return topk_TK;
  const at::Tensor ids = topk_TK.reshape({topk_TK.size(0) / seq_len, -1});  // [sequences, choices]
  const auto [sorted, order] = ids.sort(/*stable=*/true, /*dim=*/1, /*descending=*/false);
  const at::Tensor begin = at::searchsorted(sorted, sorted);  // of the run of equal ids
  const at::Tensor rank = at::arange(ids.size(1), ids.options().dtype(at::kLong)) - begin;
  const at::Tensor kept = at::where(rank < capacity, sorted, -1);
  return at::empty_like(ids).scatter_(1, order, kept).view_as(topk_TK);
}

}  // namespace hetermoe
