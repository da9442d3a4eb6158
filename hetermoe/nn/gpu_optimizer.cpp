#include <algorithm>
#include <array>
#include <cmath>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/kernels/optimizer.h"
#include "hetermoe/nn/gpu_kernels.h"

namespace hetermoe {
namespace {

i64 chunks_of(i64 count, i64 chunk) { return (count + chunk - 1) / chunk; }

using AdamwTypes = std::array<at::ScalarType, 4>;  ///< of values (or masters), gradients, moments, copies

/// One launch after the other, each over as many tensors as its arguments hold.
class AdamwLaunches {
 public:
  AdamwLaunches(const kernels::Adamw& constants, const AdamwTypes& types, c10::Device device)
      : next_(constants), types_(types), device_(device) {}

  void add(const kernels::Adamw::Tensor& tensor) {
    kernels::Adamw::Tensor& place = next_.tensors[next_.num_tensors++] = tensor;
    place.first_block = next_.num_blocks;
    next_.num_blocks += static_cast<i32>(chunks_of(tensor.count, kernels::kUpdateChunk));
    if (next_.num_tensors == kernels::kUpdateTensors) run();
  }
  void run() {
    if (next_.num_tensors == 0) return;
    kernels::launch("adamw", {types_[0], types_[1], types_[2], types_[3]},
                    {.blocks = next_.num_blocks, .threads = 256}, next_, device_);
    next_.num_tensors = next_.num_blocks = 0;
  }

 private:
  kernels::Adamw next_;
  AdamwTypes types_;
  c10::Device device_;
};

kernels::Adamw constants_of(const AdamwOptions& options, i64 step, double learning_rate, double grad_factor) {
  kernels::Adamw out{};
  const auto n = static_cast<double>(step);
  out.beta1 = options.beta1, out.beta2 = options.beta2, out.eps = options.eps;
  out.decay = 1 - learning_rate * options.weight_decay;
  out.step_size = learning_rate / (1 - std::pow(options.beta1, n));
  out.root_factor = 1 / std::sqrt(1 - std::pow(options.beta2, n));
  out.grad_factor = grad_factor;
  return out;
}

}  // namespace

bool gpu_adamw_update(std::vector<at::Tensor>& values, const std::vector<at::Tensor>& grads,
                      AdamwState& state, const AdamwOptions& options, double learning_rate,
                      double grad_factor) {
  const bool copies = !state.master.empty();
  const std::vector<at::Tensor>& kept = copies ? state.master : values;
  const AdamwTypes types = {kept[0].scalar_type(), grads[0].scalar_type(), state.exp_avg[0].scalar_type(),
                            values[0].scalar_type()};
  if (!kernels::has_kernel("adamw", types)) return false;
  const auto takes = [](const at::Tensor& x, at::ScalarType type) {
    return x.scalar_type() == type && x.is_contiguous();
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!takes(kept[i], types[0]) || !takes(grads[i], types[1]) || !takes(state.exp_avg[i], types[2]) ||
        !takes(state.exp_avg_sq[i], types[2]) || !takes(values[i], types[3]))
      return false;
  }
  AdamwLaunches launches(constants_of(options, state.step, learning_rate, grad_factor), types,
                         values[0].device());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].numel() == 0) continue;
    const Draws draws = draws_of(state, i);
    launches.add({kept[i].mutable_data_ptr(), grads[i].const_data_ptr(), state.exp_avg[i].mutable_data_ptr(),
                  state.exp_avg_sq[i].mutable_data_ptr(), copies ? values[i].mutable_data_ptr() : nullptr,
                  draws.key, draws.first, values[i].numel(), 0, values[i].dim() > 1});
  }
  launches.run();
  return true;
}

void gpu_clear(const std::vector<at::Tensor>& tensors) {
  for (std::size_t first = 0; first < tensors.size(); first += kernels::kNormTensors) {
    kernels::Clear arguments{};
    i32 blocks = 0;
    for (std::size_t i = first; i < std::min(tensors.size(), first + kernels::kNormTensors); ++i) {
      const auto bytes = static_cast<i64>(tensors[i].nbytes());
      arguments.tensors[arguments.num_tensors++] = {tensors[i].mutable_data_ptr(), bytes, blocks};
      blocks += static_cast<i32>(chunks_of(bytes, kernels::kClearChunk));
    }
    kernels::launch("clear", {}, {.blocks = blocks, .threads = 256}, arguments, tensors[first].device());
  }
}

at::Tensor gpu_squared_norm(const std::vector<at::Tensor>& grads) {
  std::vector<at::Tensor> kept;
  i64 num_blocks = 0;
  for (const at::Tensor& grad : grads) {
    kept.push_back(grad.contiguous());
    num_blocks += chunks_of(grad.numel(), kernels::kNormChunk);
  }
  const at::TensorOptions options = grads[0].options().dtype(at::kDouble);
  const at::Tensor partial = at::empty({num_blocks}, options), sum = at::empty({}, options);
  i64 done = 0;
  for (std::size_t first = 0; first < kept.size(); first += kernels::kNormTensors) {
    kernels::SquareSum arguments{};
    i32 blocks = 0;
    arguments.partial = partial.mutable_data_ptr<double>() + done;
    for (std::size_t i = first; i < std::min(kept.size(), first + kernels::kNormTensors); ++i) {
      arguments.tensors[arguments.num_tensors++] = {kept[i].const_data_ptr(), kept[i].numel(), blocks,
                                                    is_packed(16, {kept[i]})};
      blocks += static_cast<i32>(chunks_of(kept[i].numel(), kernels::kNormChunk));
    }
    kernels::launch("square_sum", {grads[0].scalar_type()}, {.blocks = blocks, .threads = 256}, arguments,
                    partial.device());
    done += blocks;
  }
  kernels::launch(
      "sum_up", {}, {.blocks = 1, .threads = 256},
      kernels::SumUp{partial.const_data_ptr<double>(), sum.mutable_data_ptr<double>(), num_blocks},
      partial.device());
  return sum;
}

}  // namespace hetermoe
