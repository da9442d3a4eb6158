#include "hetermoe/nn/causal_attention.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "hetermoe/device/accelerator.h"
#include "hetermoe/device/host_copy.h"
#include "hetermoe/nn/cpu_attention.h"
#include "hetermoe/nn/cpu_kernels.h"
#include "hetermoe/nn/gpu_kernels.h"
#include "hetermoe/nn/routing.h"

namespace hetermoe {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A fused projection [T, (heads + 2 kv_heads) * dim] as [B, S, heads + 2 kv_heads, dim].
at::Tensor all_heads(const at::Tensor& qkv, const HeadShape& shape) {
  return qkv.view({-1, shape.seq_len, shape.num_heads + 2 * shape.num_kv_heads, shape.dim});
}
/// Its views q, k, v: [B, S, heads, dim].
std::vector<at::Tensor> head_views(const at::Tensor& qkv, const HeadShape& shape) {
  return all_heads(qkv, shape).split_with_sizes({shape.num_heads, shape.num_kv_heads, shape.num_kv_heads}, 2);
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
  if (runs_on_kernels(front))
    gpu_rotate(front, front, table, layout, direction);
  else
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

/// Where q, k and v lie in a fused projection, and how q and k are turned.
struct FusedHeads {
  HeadShape shape;
  RopeTable table;
  RopeLayout layout;
};

/// q, k and v of a fused projection as views of it, q and k turned where they lie: the kernel of attention
/// then keeps the projection and no copy. For devices with kernels of our own.
struct TurnedHeadsFunction : torch::autograd::Function<TurnedHeadsFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& qkv, const FusedHeads& how) {
    const at::Tensor own = qkv.variable_data();  // its views are none of autograd's
    turn_in_place(all_heads(own, how.shape).narrow(2, 0, how.shape.num_heads + how.shape.num_kv_heads),
                  how.table, how.layout, RopeDirection::kForward);
    context->save_for_backward({how.table.cos, how.table.sin});
    context->saved_data["shape"] =
        std::vector<i64>{how.shape.seq_len, how.shape.num_heads, how.shape.num_kv_heads, how.shape.dim,
                         static_cast<i64>(how.layout)};
    return head_views(own, how.shape);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const std::vector<i64> numbers = context->saved_data["shape"].toIntVector();
    const FusedHeads how{{numbers[0], numbers[1], numbers[2], numbers[3]},
                         {saved[0], saved[1]},
                         static_cast<RopeLayout>(numbers[4])};
    const i64 tokens = grads[0].size(0) * grads[0].size(1), heads = numbers[1] + 2 * numbers[2];
    const at::Tensor dqkv = at::empty({tokens, heads * numbers[3]}, grads[0].options());
    const variable_list dparts = head_views(dqkv, how.shape);
    const bool whole = 2 * how.table.cos.size(-1) == how.shape.dim;
    for (std::size_t i = 0; i < 2; ++i) {
      if (whole && grads[i].stride(-1) == 1) {
        gpu_rotate(dparts[i], grads[i], how.table, how.layout, RopeDirection::kBackward);
      } else {
        dparts[i].copy_(grads[i]);
        turn_in_place(dparts[i], how.table, how.layout, RopeDirection::kBackward);
      }
    }
    dparts[2].copy_(grads[2]);
    return {dqkv, at::Tensor()};
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

/// Whether FlashAttention takes heads of such a width, forward and backward: the GPUs of compute
/// capability 8.6, 8.9 and 12 do no wider ones backward. HostKernels brings the kernel along for any dtype.
bool has_flash_attention(const at::Tensor& q, i64 width) {
  constexpr i64 kWidest = 192;
  if (q.device().is_cpu()) return kernels::HostKernels::on() && width <= kWidest;
  return q.element_size() == 2 && width <= kWidest && compute_capability(q.device()) >= 80;
}

/// Whether the fused kernel reads keys and values of fewer heads where they lie, and keeps them so. On a GPU
/// (libtorch 2.11) the kernels of cuDNN and of FlashAttention do, forward and backward: for 16 bits, without
/// a mask. The memory-efficient kernel, which serves all else, wants as many heads as queries have. On a CPU
/// libtorch's kernel does.
bool shares_heads(const at::Tensor& q, i64 width, bool has_mask) {
  return !has_mask && (q.device().is_cpu() || has_flash_attention(q, width));
}

/// The device's fused kernel: [B, h, S, dim]; k and v may have fewer heads if it shares_heads(). mask:
/// [queries, keys]; none = causal.
at::Tensor fused_kernel(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                        const std::optional<at::Tensor>& mask) {
  return at::scaled_dot_product_attention(q, k, v, mask, /*dropout_p=*/0.0, /*is_causal=*/!mask.has_value(),
                                          scale, /*enable_gqa=*/k.size(1) != q.size(1));
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

/// By the device's fused kernel, which wants equal widths. Zero columns change nothing: neither the scores
/// nor the kept columns. mask: [queries, keys] true where a query sees a key; none = causal.
at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionHow& how, const std::optional<at::Tensor>& mask) {
  const i64 width = std::max(q.size(-1), v.size(-1)), num_heads = q.size(2);
  const bool shares = shares_heads(q, width, mask.has_value()) && !how.sinks.defined();
  const auto operand = [&](const at::Tensor& x) {
    const at::Tensor heads = x.transpose(1, 2);
    return pad_width(shares ? heads : repeat_heads(heads, num_heads), width);
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

/// All documents in one call of FlashAttention, which knows where each ends.
at::Tensor attention_of_documents(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionHow& how) {
  constexpr i64 kAligned = 8;  // the kernel wants rows of 16 bytes
  const i64 longest = *std::max_element(how.documents.begin(), how.documents.end());
  std::vector<i64> ends = {0};
  for (const i64 tokens : how.documents) ends.push_back(ends.back() + tokens);
  const at::Tensor ends_D1 = to_device(int32_tensor(ends), q.device());
  const i64 widest = std::max(q.size(-1), v.size(-1)), width = (widest + kAligned - 1) / kAligned * kAligned;
  const auto operand = [&](const at::Tensor& x) { return pad_width(x.flatten(0, 1), width); };
  const bool windowed = is_windowed(how, longest);
  const at::Tensor out = std::get<0>(at::_flash_attention_forward(
      operand(q), operand(k), operand(v), ends_D1, ends_D1, longest, longest, /*dropout_p=*/0.0,
      /*is_causal=*/true, /*return_debug_mask=*/false, how.scale,
      windowed ? std::optional(how.window - 1) : std::nullopt,
      windowed ? std::optional<i64>(0) : std::nullopt));
  return out.narrow(-1, 0, v.size(-1)).view({q.size(0), q.size(1), q.size(2), v.size(3)});
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
  if (!how.documents.empty()) {
    const bool at_once = path == Path::kAuto && takes_gpu_operators(q) && !how.sinks.defined() &&
                         has_flash_attention(q, std::max(q.size(-1), v.size(-1)));
    return at_once ? attention_of_documents(q, k, v, how) : attention_by_documents(q, k, v, how, path);
  }
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
  if (path == Path::kAuto && takes_gpu_operators(qkv) && runs_on_kernels(qkv)) {
    const variable_list turned = TurnedHeadsFunction::apply(qkv, FusedHeads{shape, table, layout});
    return causal_attention(turned[0], turned[1], turned[2], shape.how()).reshape({qkv.size(0), -1});
  }
  if (runs_on_cpu(qkv, path) && shape.documents.empty() && !shape.sinks.defined() &&
      !is_windowed(shape.how(), shape.seq_len) &&
      fits_cpu_attention(attention_shape(parts[0], parts[1], parts[2], shape.scale())))
    return RotaryAttentionFunction::apply(qkv, table.cos, table.sin, shape, static_cast<i64>(layout));
  return causal_attention(rope(parts[0], table, layout), rope(parts[1], table, layout), parts[2], shape.how(),
                          path)
      .reshape({qkv.size(0), -1});
}

}  // namespace hetermoe
