#include "hetermoe/nn/router_jitter.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "hetermoe/base/splitmix64.h"
#include "hetermoe/nn/gpu_kernels.h"
#include "hetermoe/nn/products.h"

namespace hetermoe {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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

/// [rows, width] of tokens of one sequence, in fp64.
at::Tensor factors(const RouterJitter& jitter, u64 key, i64 token, i64 rows, const at::Tensor& like) {
  const i64 width = like.size(1), first = token * width;
  const at::Tensor counters =
      at::arange(first, first + rows * width, like.options().dtype(at::kLong)) + static_cast<i64>(key);
  const at::Tensor uniform = shifted_right(mixed(counters), 11).to(at::kDouble).add_(0.5).mul_(0x1.0p-53);
  return uniform.mul_(2).sub_(1).mul_(jitter.size).add_(1).view({rows, width});
}

/// Calls f(first row, rows) for blocks of at most kMost elements (or a row) that lie within a sequence.
template <class F>
void for_each_block_of_rows(const at::Tensor& x_TD, const RouterJitter& jitter, F f) {
  constexpr i64 kMost = 1 << 18;
  const i64 most = std::max<i64>(1, kMost / std::max<i64>(1, x_TD.size(1)));
  for (i64 row = 0; row < x_TD.size(0);) {
    const i64 left = jitter.seq_len - (jitter.first_token + row) % jitter.seq_len;
    const i64 rows = std::min({most, left, x_TD.size(0) - row});
    f(row, rows);
    row += rows;
  }
}

/// linear() of jittered x. Keeps x as it is.
struct JitteredLinear : torch::autograd::Function<JitteredLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            at::ScalarType wide, const RouterJitter& jitter) {
    context->save_for_backward({weight.requires_grad() ? x : at::Tensor(), weight});
    context->saved_data["dtype"] = x.scalar_type();
    context->saved_data["size"] = jitter.size;
    context->saved_data["place"] = std::vector<i64>{static_cast<i64>(jitter.key), jitter.first_sequence,
                                                    jitter.first_token, jitter.seq_len};
    return at::linear(jittered(x, jitter, wide), weight.to(wide));
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const std::vector<i64> place = context->saved_data["place"].toIntVector();
    const RouterJitter jitter{context->saved_data["size"].toDouble(), static_cast<u64>(place[0]), place[1],
                              place[2], place[3]};
    const at::Tensor &grad = grads[0], &weight = saved[1];
    const at::ScalarType wide = grad.scalar_type(), dtype = context->saved_data["dtype"].toScalarType();
    at::Tensor dweight;
    if (context->needs_input_grad(1))
      dweight = at::mm(grad.t(), jittered(saved[0], jitter, wide)).to(weight.scalar_type());
    return {jittered(at::mm(grad, weight.to(wide)), jitter, dtype), dweight, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

RouterJitter router_jitter(const RouterTraining& training, i64 layer, i64 first_sequence, i64 first_token,
                           i64 seq_len) {
  u64 key = training.seed;
  for (const i64 part : {training.step, layer}) key = splitmix64(key ^ static_cast<u64>(part));
  return {training.jitter, key, training.first_sequence + first_sequence, first_token, seq_len};
}

at::Tensor jittered(const at::Tensor& x_TD, const RouterJitter& jitter, at::ScalarType dtype, Path path) {
  if (runs_on_kernels(x_TD, path)) return gpu_jittered(x_TD, jitter, dtype);
  const bool fp64 = x_TD.scalar_type() == at::kDouble || dtype == at::kDouble;
  const at::ScalarType wide = fp64 ? at::kDouble : at::kFloat;
  at::Tensor out = at::empty(x_TD.sizes(), x_TD.options().dtype(dtype));
  for_each_block_of_rows(x_TD, jitter, [&](i64 row, i64 rows) {
    const i64 token = jitter.first_token + row;
    const u64 key = splitmix64(jitter.key ^ static_cast<u64>(jitter.first_sequence + token / jitter.seq_len));
    const at::Tensor block = factors(jitter, key, token % jitter.seq_len, rows, x_TD).to(wide);
    out.narrow(0, row, rows).copy_(x_TD.narrow(0, row, rows).to(wide) * block);
  });
  return out;
}

at::Tensor apply_jittered_linear(const at::Tensor& x_TD, const at::Tensor& weight, at::ScalarType wide,
                                 const RouterJitter& jitter) {
  return JitteredLinear::apply(x_TD, weight, wide, jitter);
}

}  // namespace hetermoe
