#include "hetermoe/kernels/host_operators.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "hetermoe/base/error.h"
#include "hetermoe/base/types.h"

// Letters: T tokens of all sequences, one after another, h heads, d their width.
namespace hetermoe::kernels {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using OptionalInt = std::optional<i64>;

/// An fp32 copy in memory that no allocator of tensors counts: a GPU needs none.
struct WideCopy {
  std::vector<float> values;
  at::Tensor tensor;
  explicit WideCopy(const at::Tensor& x) : values(static_cast<std::size_t>(x.numel())) {
    tensor = at::from_blob(values.data(), x.sizes(), at::kFloat);
    tensor.copy_(x);
  }
};

at::Tensor& add_wide_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b,
                             at::ScalarType wide, const at::Scalar& beta, const at::Scalar& alpha,
                             at::Tensor& out) {
  const at::DisableRecordFunctionGuard whole;  // it counts as one operator
  HM_CHECK(wide == at::kFloat && out.scalar_type() == wide, "addmm: a sum that is not fp32");
  HM_CHECK(a.scalar_type() == b.scalar_type() && a.element_size() == 2,
           "addmm: factors of other than 16 bits");
  HM_CHECK(sum.scalar_type() == wide || sum.scalar_type() == a.scalar_type(),
           "addmm: dtype of the first sum");
  const WideCopy a32(a), b32(b);
  return at::addmm_out(out, sum, a32.tensor, b32.tensor, beta, alpha);
}

at::Tensor wide_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType wide) {
  const at::DisableRecordFunctionGuard whole;  // it counts as one operator
  HM_CHECK(wide == at::kFloat, "mm: a result that is not fp32");
  HM_CHECK(a.scalar_type() == b.scalar_type() && a.element_size() == 2, "mm: factors of other than 16 bits");
  const WideCopy a32(a), b32(b);
  return at::mm(a32.tensor, b32.tensor);
}

/// Sequences that lie one after another.
struct Packed {
  at::Tensor ends;  // [n + 1] on the host, beginning with 0
  bool causal;
  double scale;
  OptionalInt window_left;

  template <class F>
  void for_each(F f) const {
    const auto* at = ends.const_data_ptr<i32>();
    for (i64 i = 0; i + 1 < ends.numel(); ++i) f(at[i], at[i + 1] - at[i]);
  }
  /// [h, S, S] in fp64, before softmax. q, k: of one sequence [S, h, d].
  at::Tensor scores(const at::Tensor& q, const at::Tensor& k) const {
    at::Tensor out = at::matmul(q.transpose(0, 1), k.permute({1, 2, 0})) * scale;
    const at::Tensor ones = at::ones({q.size(0), q.size(0)}, at::kBool);
    if (causal) out = out.masked_fill(ones.triu(1), -INFINITY);
    if (window_left) out = out.masked_fill(ones.tril(-*window_left - 1), -INFINITY);
    return out;
  }
};

/// [S, h, d] of one sequence in fp64, each head as often as query heads share it.
at::Tensor part_of(const at::Tensor& x_Thd, i64 begin, i64 count, i64 num_heads) {
  return x_Thd.narrow(0, begin, count).to(at::kDouble).repeat_interleave(num_heads / x_Thd.size(1), 1);
}

Packed packed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const OptionalTensor& ends_q,
              const OptionalTensor& ends_k, i64 longest_q, i64 longest_k, bool causal,
              std::optional<double> scale, OptionalInt window_left, OptionalInt window_right) {
  HM_CHECK(ends_q && ends_k && at::equal(*ends_q, *ends_k), "attention of sequences one after another alone");
  HM_CHECK(ends_q->scalar_type() == at::kInt && ends_q->is_contiguous(), "ends of sequences are int32");
  HM_CHECK(q.dim() == 3 && q.stride(-1) == 1 && k.stride(-1) == 1 && v.stride(-1) == 1, "[T, h, d]");
  HM_CHECK(q.size(2) == k.size(2) && q.size(2) == v.size(2) && q.size(2) % 8 == 0, "width {}", q.size(2));
  HM_CHECK(k.size(1) == v.size(1) && q.size(1) % k.size(1) == 0, "{} heads of {}", k.size(1), q.size(1));
  HM_CHECK(!window_right || *window_right == 0, "a window to the right");
  HM_CHECK(scale.has_value(), "a scale");
  const i64 longest = ends_q->diff().max().item<i64>();
  HM_CHECK(longest_q == longest && longest_k == longest, "longest sequence {}, not {}", longest, longest_q);
  HM_CHECK((*ends_q)[-1].item<i64>() == q.size(0), "sequences of {} tokens", q.size(0));
  return {*ends_q, causal, *scale, window_left};
}

using FlashForward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

FlashForward flash_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const OptionalTensor& ends_q, const OptionalTensor& ends_k, i64 longest_q,
                           i64 longest_k, double, bool causal, bool, std::optional<double> scale,
                           OptionalInt window_left, OptionalInt window_right, const OptionalTensor&,
                           const OptionalTensor&) {
  const at::DisableRecordFunctionGuard whole;
  const Packed p =
      packed(q, k, v, ends_q, ends_k, longest_q, longest_k, causal, scale, window_left, window_right);
  const i64 heads = q.size(1);
  at::Tensor out = at::empty(q.sizes(), q.options());
  at::Tensor log_sums = at::empty({heads, q.size(0)}, q.options().dtype(at::kFloat));
  p.for_each([&](i64 begin, i64 count) {
    const auto part = [&](const at::Tensor& x) { return part_of(x, begin, count, heads); };
    const at::Tensor scores = p.scores(part(q), part(k));
    log_sums.narrow(1, begin, count).copy_(scores.logsumexp(-1));
    out.narrow(0, begin, count)
        .copy_(at::matmul(scores.softmax(-1), part(v).transpose(0, 1)).transpose(0, 1));
  });
  const at::Tensor none = at::empty({0}, q.options().dtype(at::kLong));
  return {out, log_sums, none, none.clone(), at::empty({0}, q.options())};
}

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Gradients flash_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v, const at::Tensor& out, const at::Tensor&,
                         const at::Tensor& ends_q, const at::Tensor& ends_k, i64 longest_q, i64 longest_k,
                         double, bool causal, const at::Tensor&, const at::Tensor&,
                         std::optional<double> scale, OptionalInt window_left, OptionalInt window_right) {
  const at::DisableRecordFunctionGuard whole;
  const Packed p =
      packed(q, k, v, ends_q, ends_k, longest_q, longest_k, causal, scale, window_left, window_right);
  const i64 heads = q.size(1), kv_heads = k.size(1);
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const at::Tensor dq = like(q), dk = like(k), dv = like(v);
  p.for_each([&](i64 begin, i64 count) {
    const auto part = [&](const at::Tensor& x) { return part_of(x, begin, count, heads).transpose(0, 1); };
    const auto into = [&](const at::Tensor& to, const at::Tensor& from_hSd) {
      to.narrow(0, begin, count).copy_(from_hSd.transpose(0, 1));
    };
    const auto of_groups = [&](const at::Tensor& x_hSd) {
      return x_hSd.unflatten(0, {kv_heads, heads / kv_heads}).sum(1);
    };
    const at::Tensor d = part(dout), q1 = part(q), k1 = part(k);
    const at::Tensor shares = p.scores(q1.transpose(0, 1), k1.transpose(0, 1)).softmax(-1);
    const at::Tensor dshares = at::matmul(d, part(v).transpose(1, 2));
    const at::Tensor dscores = shares * (dshares - (d * part(out)).sum(-1, /*keepdim=*/true)) * p.scale;
    into(dq, at::matmul(dscores, k1));
    into(dk, of_groups(at::matmul(dscores.transpose(1, 2), q1)));
    into(dv, of_groups(at::matmul(shares.transpose(1, 2), d)));
  });
  return {dq, dk, dv};
}

}  // namespace

void register_host_operators() {
  static std::once_flag once;
  std::call_once(once, [] {
    static auto& library =  // never taken back
        *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    library.impl("mm.dtype", TORCH_FN(wide_product));
    library.impl("addmm.dtype_out", TORCH_FN(add_wide_product));
    library.impl("_flash_attention_forward", TORCH_FN(flash_forward));
    library.impl("_flash_attention_backward", TORCH_FN(flash_backward));
  });
}

}  // namespace hetermoe::kernels
