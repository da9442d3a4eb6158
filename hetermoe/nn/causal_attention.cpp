#include "hetermoe/nn/causal_attention.h"

#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "hetermoe/nn/cpu_attention.h"
#include "hetermoe/nn/cpu_kernels.h"

namespace hetermoe {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Views of a fused projection [T, (heads + 2 kv_heads) * dim]: q, k, v as [B, S, heads, dim].
std::vector<at::Tensor> head_views(const at::Tensor& qkv, const HeadShape& shape) {
  const at::Tensor heads = qkv.view({-1, shape.seq_len, shape.num_heads + 2 * shape.num_kv_heads, shape.dim});
  return heads.split_with_sizes({shape.num_heads, shape.num_kv_heads, shape.num_kv_heads}, 2);
}

HeadRows head_rows(const at::Tensor& x_BShd) {
  const at::ScalarType dtype = x_BShd.scalar_type();
  const Element element = dtype == at::kBFloat16 ? Element::kBFloat16
                          : dtype == at::kHalf   ? Element::kHalf
                                                 : Element::kFloat;
  return {x_BShd.mutable_data_ptr(), x_BShd.stride(0), x_BShd.stride(1), x_BShd.stride(2), element};
}

AttentionShape attention_shape(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  return {q.size(0), q.size(1), q.size(2), k.size(2), q.size(3), v.size(3), static_cast<float>(scale)};
}

/// What attention keeps for its backward.
struct AttentionForward {
  at::Tensor out_BShd, log_sums_BhS;
};

AttentionForward cpu_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  AttentionForward out{at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options()),
                       at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat))};
  cpu_attention_forward(attention_shape(q, k, v, scale), head_rows(q), head_rows(k), head_rows(v),
                        head_rows(out.out_BShd), out.log_sums_BhS.mutable_data_ptr<float>());
  return out;
}

/// parts, dparts: q, k, v and where their gradients go.
void cpu_attention_gradients(const std::vector<at::Tensor>& parts, const AttentionForward& forward,
                             const at::Tensor& dout, const std::vector<at::Tensor>& dparts, double scale) {
  const at::Tensor d = dout.stride(-1) == 1 ? dout : dout.contiguous();
  cpu_attention_backward(
      attention_shape(parts[0], parts[1], parts[2], scale),
      {head_rows(parts[0]), head_rows(parts[1]), head_rows(parts[2]), head_rows(forward.out_BShd),
       head_rows(d), forward.log_sums_BhS.const_data_ptr<float>(), head_rows(dparts[0]), head_rows(dparts[1]),
       head_rows(dparts[2])});
}

struct CausalAttentionFunction : torch::autograd::Function<CausalAttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, double scale) {
    const AttentionForward out = cpu_attention(q, k, v, scale);
    context->save_for_backward({q, k, v, out.out_BShd, out.log_sums_BhS});
    context->saved_data["scale"] = scale;
    return out.out_BShd;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const variable_list dparts = {at::empty(saved[0].sizes(), saved[0].options()),
                                  at::empty(saved[1].sizes(), saved[1].options()),
                                  at::empty(saved[2].sizes(), saved[2].options())};
    cpu_attention_gradients({saved[0], saved[1], saved[2]}, {saved[3], saved[4]}, grads[0], dparts,
                            context->saved_data["scale"].toDouble());
    return {dparts[0], dparts[1], dparts[2], at::Tensor()};
  }
};

void turn_in_place(const at::Tensor& x_BShd, const RopeTable& table, RopeLayout layout,
                   RopeDirection direction) {
  const at::Tensor front = turned_part(x_BShd, table.cos);
  cpu_rotate(front, front, table, layout, direction);
}

/// Rotates q and k inside the projection's own memory: its backward needs its input alone, so that nobody
/// misses what was there.
struct RotaryAttentionFunction : torch::autograd::Function<RotaryAttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv, const at::Tensor& cos,
                            const at::Tensor& sin, const HeadShape& shape, i64 layout) {
    const std::vector<at::Tensor> parts = head_views(qkv, shape);
    for (std::size_t i = 0; i < 2; ++i)
      turn_in_place(parts[i], {cos, sin}, static_cast<RopeLayout>(layout), RopeDirection::kForward);
    const AttentionForward out = cpu_attention(parts[0], parts[1], parts[2], shape.scale());
    context->save_for_backward({qkv, out.out_BShd, out.log_sums_BhS, cos, sin});
    context->saved_data["shape"] =
        std::vector<i64>{shape.seq_len, shape.num_heads, shape.num_kv_heads, shape.dim, layout};
    return out.out_BShd.view({qkv.size(0), -1});
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const std::vector<i64> numbers = context->saved_data["shape"].toIntVector();
    const HeadShape shape{numbers[0], numbers[1], numbers[2], numbers[3]};
    const at::Tensor dqkv = at::empty(saved[0].sizes(), saved[0].options());
    const std::vector<at::Tensor> dparts = head_views(dqkv, shape);
    cpu_attention_gradients(head_views(saved[0], shape), {saved[1], saved[2]},
                            grads[0].reshape(saved[1].sizes()), dparts, shape.scale());
    for (std::size_t i = 0; i < 2; ++i) {
      turn_in_place(dparts[i], {saved[3], saved[4]}, static_cast<RopeLayout>(numbers[4]),
                    RopeDirection::kBackward);
    }
    return {dqkv, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

bool is_windowed(const AttentionHow& how, i64 seq_len) { return how.window > 0 && how.window < seq_len; }

at::Tensor pad_width(const at::Tensor& x, i64 width) {
  return x.size(-1) == width ? x : at::constant_pad_nd(x, {0, width - x.size(-1)});
}

/// [B, h, S, dim] with every head as often as query heads share it.
at::Tensor repeat_heads(const at::Tensor& x, i64 num_heads) {
  const i64 times = num_heads / x.size(1);
  if (times == 1) return x;
  return x.unsqueeze(2).expand({x.size(0), x.size(1), times, x.size(2), x.size(3)}).flatten(1, 2);
}

/// [queries, keys] true where a query sees a key. The first query is that of key number `first`.
at::Tensor window_mask(i64 queries, i64 keys, i64 first, i64 window, c10::Device device) {
  const at::Tensor ones = at::ones({queries, keys}, at::TensorOptions().dtype(at::kBool).device(device));
  return ones.tril(first).triu(first + 1 - window);
}

/// The device's fused kernel: [B, h, S, dim]. mask: [queries, keys]; none = causal.
at::Tensor fused_kernel(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                        const std::optional<at::Tensor>& mask) {
  return at::scaled_dot_product_attention(q, k, v, mask, /*dropout_p=*/0.0, /*is_causal=*/!mask.has_value(),
                                          scale);
}

/// The same with sinks: a key in front of all others, whose product with every query is the sink and whose
/// value is zero. For that queries and keys have one more column: 1 in queries, sink / scale in this key, 0
/// in the others. Causal masks want a query in front, too.
at::Tensor kernel_with_sinks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const AttentionHow& how, const std::optional<at::Tensor>& mask) {
  constexpr i64 kAligned = 8;  // kernels want rows of 16 bytes
  const i64 width = q.size(-1), padded = (width / kAligned + 1) * kAligned;
  const i64 batch = q.size(0), num_heads = q.size(1);
  const at::Tensor ones = at::ones({batch, num_heads, q.size(2), 1}, q.options());
  at::Tensor queries = pad_width(at::cat({q, ones}, -1), padded);
  const at::Tensor sink = at::constant_pad_nd((how.sinks / how.scale).to(k.scalar_type()).view({-1, 1, 1}),
                                              {width, padded - width - 1});
  const at::Tensor keys =
      at::cat({sink.unsqueeze(0).expand({batch, num_heads, 1, padded}), pad_width(k, padded)}, 2);
  const at::Tensor values = at::constant_pad_nd(v, {0, padded - width, 1, 0});
  if (mask) return fused_kernel(queries, keys, values, how.scale, at::constant_pad_nd(*mask, {1, 0}, true));
  queries = at::constant_pad_nd(queries, {0, 0, 1, 0});
  return fused_kernel(queries, keys, values, how.scale, std::nullopt).narrow(2, 1, q.size(2));
}

/// By the device's fused kernel, which wants equal widths and heads. Zero columns change nothing: neither the
/// scores nor the kept columns. mask: [queries, keys] true where a query sees a key; none = causal.
at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionHow& how, const std::optional<at::Tensor>& mask) {
  const i64 width = std::max(q.size(-1), v.size(-1)), num_heads = q.size(2);
  const auto operand = [&](const at::Tensor& x) {
    return pad_width(repeat_heads(x.transpose(1, 2), num_heads), width);
  };
  const at::Tensor queries = operand(q), keys = operand(k), values = operand(v);
  const at::Tensor out = how.sinks.defined() ? kernel_with_sinks(queries, keys, values, how, mask)
                                             : fused_kernel(queries, keys, values, how.scale, mask);
  return out.narrow(-1, 0, v.size(-1)).transpose(1, 2);
}

/// Blocks of queries, each with the keys that some of them see: nothing is as large as all scores.
at::Tensor windowed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const AttentionHow& how) {
  constexpr i64 kLeast = 128;
  const i64 seq_len = q.size(1), block = std::max(kLeast, how.window);
  std::vector<at::Tensor> out;
  for (i64 begin = 0; begin < seq_len; begin += block) {
    const i64 queries = std::min(block, seq_len - begin);
    const i64 first = std::max(i64{0}, begin + 1 - how.window), keys = begin + queries - first;
    out.push_back(fused_attention(q.narrow(1, begin, queries), k.narrow(1, first, keys),
                                  v.narrow(1, first, keys), how,
                                  window_mask(queries, keys, begin - first, how.window, q.device())));
  }
  return at::cat(out, 1);
}

at::Tensor generic_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const AttentionHow& how) {
  return is_windowed(how, q.size(1)) ? windowed_attention(q, k, v, how)
                                     : fused_attention(q, k, v, how, std::nullopt);
}

/// Nothing of one document is in the scores of another, so that no mask is needed and nothing is computed in
/// vain.
at::Tensor attention_by_documents(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionHow& how, Path path) {
  const i64 num_tokens = q.size(0) * q.size(1);
  const auto documents_of = [&](const at::Tensor& x) {
    return x.reshape({1, num_tokens, x.size(2), x.size(3)})
        .split_with_sizes({how.documents.data(), how.documents.size()}, 1);
  };
  const std::vector<at::Tensor> queries = documents_of(q), keys = documents_of(k), values = documents_of(v);
  std::vector<at::Tensor> out;
  for (std::size_t d = 0; d < queries.size(); ++d)
    out.push_back(
        causal_attention(queries[d], keys[d], values[d], {how.scale, how.window, {}, how.sinks}, path));
  return at::cat(out, 1).view({q.size(0), q.size(1), q.size(2), v.size(3)});
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionHow& how, Path path) {
  if (!how.documents.empty()) return attention_by_documents(q, k, v, how, path);
  const bool own = path == Path::kAuto && !how.sinks.defined() && is_cpu_float(q) &&
                   !is_windowed(how, q.size(1)) && fits_cpu_attention(attention_shape(q, k, v, how.scale));
  if (!own) return generic_attention(q, k, v, how);
  const auto rows = [](const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); };
  return CausalAttentionFunction::apply(rows(q), rows(k), rows(v), how.scale);
}

at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionHow& how) {
  const i64 count = q.size(1), total = k.size(1);
  const i64 window = how.window > 0 ? how.window : total;
  return fused_attention(q, k, v, how, window_mask(count, total, total - count, window, q.device()));
}

at::Tensor rotary_attention(const at::Tensor& qkv, const HeadShape& shape, const RopeTable& table,
                            RopeLayout layout, Path path) {
  const std::vector<at::Tensor> parts = head_views(qkv, shape);
  if (runs_on_cpu(qkv, path) && shape.documents.empty() && !shape.sinks.defined() &&
      !is_windowed(shape.how(), shape.seq_len) &&
      fits_cpu_attention(attention_shape(parts[0], parts[1], parts[2], shape.scale())))
    return RotaryAttentionFunction::apply(qkv, table.cos, table.sin, shape, static_cast<i64>(layout));
  return causal_attention(rope(parts[0], table, layout), rope(parts[1], table, layout), parts[2], shape.how(),
                          path)
      .reshape({qkv.size(0), -1});
}

}  // namespace hetermoe
