#include "hetermoe/nn/rope.h"

#include <torch/csrc/autograd/custom_function.h>

#include <map>
#include <mutex>
#include <tuple>

#include "hetermoe/device/accelerator.h"
#include "hetermoe/nn/cpu_kernels.h"
#include "hetermoe/nn/gpu_kernels.h"
#include "hetermoe/nn/params.h"

namespace hetermoe {
namespace {

RopeTable make_table(i64 seq_len, const RopeAngles& angles, const at::TensorOptions& options) {
  // Angles in fp64: in fp32 a late position would turn by an angle with few right digits.
  const at::TensorOptions wide = options.dtype(at::kDouble);
  const at::Tensor frequency = at::tensor(angles.frequencies, at::kDouble).to(options.device());
  const at::Tensor angle = at::outer(at::arange(seq_len, wide), frequency);
  const at::ScalarType dtype = accumulate_type(c10::typeMetaToScalarType(options.dtype()));
  return {(angle.cos() * angles.scale).to(dtype), (angle.sin() * angles.scale).to(dtype)};
}

/// Tables of devices with kernels of our own, kept for good: a run has few.
RopeTable kept_table(i64 seq_len, const RopeAngles& angles, const at::TensorOptions& options) {
  using Key = std::tuple<i64, RopeAngles, at::ScalarType, std::string>;
  static std::mutex mutex;
  static auto& tables = *new std::map<Key, RopeTable>();  // never destroyed: CUDA may be gone before
  const Key key{seq_len, angles, c10::typeMetaToScalarType(options.dtype()), options.device().str()};
  const std::lock_guard lock(mutex);
  const auto found = tables.find(key);
  if (found != tables.end()) return found->second;
  const RopeTable made = make_table(seq_len, angles, options);
  finish_stream(options.device());  // other threads have other streams
  return tables.emplace(key, made).first->second;
}

at::Tensor rotate_generic(const at::Tensor& x_BShd, const RopeTable& table, RopeLayout layout,
                          RopeDirection direction) {
  const i64 half = x_BShd.size(-1) / 2;
  const bool pairs = layout == RopeLayout::kPairs;
  const at::Tensor x = x_BShd.unflatten(-1, pairs ? at::IntArrayRef{half, 2} : at::IntArrayRef{2, half});
  const i64 part = pairs ? -1 : -2;
  const at::Tensor first = x.select(part, 0), second = x.select(part, 1);
  const at::Tensor cos = table.cos.unsqueeze(1);
  const at::Tensor sin =
      direction == RopeDirection::kForward ? table.sin.unsqueeze(1) : -table.sin.unsqueeze(1);
  const at::Tensor turned = at::stack({first * cos - second * sin, second * cos + first * sin}, part);
  return turned.flatten(-2).to(x_BShd.scalar_type());
}

}  // namespace

RopeTable rope_table(i64 seq_len, const RopeAngles& angles, const at::TensorOptions& options) {
  return kernels::has_kernels(options.device()) ? kept_table(seq_len, angles, options)
                                                : make_table(seq_len, angles, options);
}

at::Tensor rotate(const at::Tensor& x_BShd, const RopeTable& table, RopeLayout layout,
                  RopeDirection direction) {
  if (runs_on_kernels(x_BShd) && x_BShd.stride(-1) == 1) {
    const at::Tensor out = at::empty(x_BShd.sizes(), x_BShd.options());
    gpu_rotate(out, x_BShd, table, layout, direction);
    return out;
  }
  const bool fast = is_cpu_float(x_BShd) && x_BShd.stride(-1) == 1;
  if (!fast) return rotate_generic(x_BShd, table, layout, direction);
  at::Tensor out = at::empty(x_BShd.sizes(), x_BShd.options());
  cpu_rotate(out, x_BShd, table, layout, direction);
  return out;
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin, i64 layout) {
    context->save_for_backward({cos, sin});
    context->saved_data["layout"] = layout;
    return rotate(x, {cos, sin}, static_cast<RopeLayout>(layout), RopeDirection::kForward);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto layout = static_cast<RopeLayout>(context->saved_data["layout"].toInt());
    return {rotate(grads[0], {saved[0], saved[1]}, layout, RopeDirection::kBackward), at::Tensor(),
            at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor turned_part(const at::Tensor& x_BShd, const at::Tensor& cos) {
  return x_BShd.narrow(-1, 0, 2 * cos.size(-1));
}

at::Tensor rope(const at::Tensor& x_BShd, const RopeTable& table, RopeLayout layout) {
  const auto turn = [&](const at::Tensor& x) {
    return RopeFunction::apply(x, table.cos, table.sin, static_cast<i64>(layout));
  };
  const i64 turned = 2 * table.cos.size(-1), dim = x_BShd.size(-1);
  if (turned == dim) return turn(x_BShd);
  return at::cat({turn(turned_part(x_BShd, table.cos)), x_BShd.narrow(-1, turned, dim - turned)}, -1);
}

}  // namespace hetermoe
