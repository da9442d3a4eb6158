#include "hetermoe/nn/router_training.h"

#include <cmath>

#include "hetermoe/base/hash.h"

namespace hetermoe {
namespace {

/// Shift of unsigned numbers that are kept as int64.
at::Tensor shifted_right(const at::Tensor& x, i64 by) {
  return x.bitwise_right_shift(by).bitwise_and_((i64{1} << (64 - by)) - 1);
}

/// splitmix64() of every element, to the bit, wherever the tensor is.
at::Tensor mixed(at::Tensor x) {
  x = x + static_cast<i64>(0x9e3779b97f4a7c15);
  x = x.bitwise_xor(shifted_right(x, 30)).mul_(static_cast<i64>(0xbf58476d1ce4e5b9));
  x = x.bitwise_xor(shifted_right(x, 27)).mul_(static_cast<i64>(0x94d049bb133111eb));
  return x.bitwise_xor(shifted_right(x, 31));
}

}  // namespace

at::Tensor jitter_factors(const RouterTraining& training, const ModelConfig& model, i64 layer, i64 first,
                          i64 count, i64 seq_len, const at::TensorOptions& options) {
  const at::Tensor out = at::empty({count * seq_len, model.hidden}, options);
  const at::Tensor counters = at::arange(seq_len * model.hidden, options.dtype(at::kLong));
  for (i64 s = 0; s < count; ++s) {
    u64 key = training.seed;
    for (const i64 part : {training.step, layer, training.first_sequence + first + s})
      key = splitmix64(key ^ static_cast<u64>(part));
    const at::Tensor bits = mixed(counters + static_cast<i64>(key));
    const at::Tensor uniform = shifted_right(bits, 11).to(at::kDouble).add_(0.5).mul_(0x1.0p-53);
    out.narrow(0, s * seq_len, seq_len)
        .view({-1})
        .copy_(uniform.mul_(2).sub_(1).mul_(training.jitter).add_(1));
  }
  return out;
}

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
