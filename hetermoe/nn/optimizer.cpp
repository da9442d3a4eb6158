#include "hetermoe/nn/optimizer.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "hetermoe/base/error.h"
#include "hetermoe/base/hash.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/nn/cpu_kernels.h"
#include "hetermoe/nn/gpu_kernels.h"
#include "hetermoe/nn/params.h"
#include "hetermoe/nn/stochastic_rounding.h"

namespace hetermoe {
namespace {

constexpr i64 kNormBlock = 1 << 16;

/// Sum of squares in fp64 of a CPU's contiguous fp32 or 16-bit numbers. Blocks of fixed size, added in order:
/// the same with any number of threads.
at::Tensor blockwise_square_sum(const at::Tensor& x) {
  const at::Tensor flat = x.view(-1);
  const i64 num_blocks = (flat.numel() + kNormBlock - 1) / kNormBlock;
  at::Tensor sums = at::zeros({num_blocks}, at::kDouble);
  double* out = sums.mutable_data_ptr<double>();
  at::parallel_for(0, num_blocks, 1, [&](i64 first, i64 last) {
    const c10::NoGradGuard no_grad;  // thread-local
    for (i64 b = first; b < last; ++b) {
      const i64 count = std::min(kNormBlock, flat.numel() - b * kNormBlock);
      const at::Tensor block = flat.narrow(0, b * kNormBlock, count).to(at::kFloat);
      out[b] = sum_of_squares(block.const_data_ptr<float>(), count);
    }
  });
  return sums.sum();
}

/// Sum of squares in fp64.
at::Tensor square_sum(const at::Tensor& x) {
  if (x.scalar_type() == at::kDouble) return x.square().sum();
  const at::Tensor contiguous = x.contiguous();
  if (x.device().is_cpu()) return blockwise_square_sum(contiguous);
  // libtorch's own norm in fp64 would make an fp64 copy of the whole tensor.
  at::Tensor sum = at::zeros({}, x.options().dtype(at::kDouble));
  for (const at::Tensor& block : contiguous.view(-1).split(kUpdateBlockBytes / 8))
    sum += block.to(at::kDouble).square_().sum();
  return sum;
}

/// One AdamW update of many storages by the fused kernel. What the kernel cannot take as it is, gradients of
/// another dtype and those that must be scaled in fp64, is converted block by block, so that never more than
/// kUpdateBlockBytes of converted gradients exist. The kernel is element-wise: blocks change no bit.
class AdamwPass {
 public:
  AdamwPass(const AdamwOptions& options, double learning_rate, double grad_factor, i64 step,
            const at::Tensor& like)
      : options_(options),
        learning_rate_(learning_rate),
        fp64_factor_(like.scalar_type() == at::kDouble ? grad_factor : 1),
        step_(at::full({}, static_cast<double>(step), like.options().dtype(at::kFloat))) {
    // The kernel divides by grad_scale, which is fp32: not exact enough for fp64.
    if (grad_factor != 1 && like.scalar_type() != at::kDouble)
      grad_scale_ = at::full({}, 1 / grad_factor, like.options().dtype(at::kFloat));
  }

  void add(const at::Tensor& value, const at::Tensor& grad, const at::Tensor& exp_avg,
           const at::Tensor& exp_avg_sq, bool decays) {
    Batch& batch = decays ? decayed_ : plain_;
    const bool converts = grad.scalar_type() != value.scalar_type() || fp64_factor_ != 1;
    if (!converts) return batch.add(value, grad, exp_avg, exp_avg_sq);
    const i64 size = static_cast<i64>(value.element_size()), most = kUpdateBlockBytes / size;
    for (i64 first = 0; first < value.numel(); first += most) {
      const i64 count = std::min(most, value.numel() - first);
      if (held_ + count * size > kUpdateBlockBytes) run();
      const auto part = [&](const at::Tensor& x) { return x.view(-1).narrow(0, first, count); };
      at::Tensor block = part(grad).to(value.scalar_type());
      if (fp64_factor_ != 1) block = block * fp64_factor_;
      batch.add(part(value), block, part(exp_avg), part(exp_avg_sq));
      held_ += count * size;
    }
  }

  /// Updates all that was added since the last call.
  void run() {
    run(decayed_, options_.weight_decay);
    run(plain_, 0);
    held_ = 0;
  }

 private:
  struct Batch {
    std::vector<at::Tensor> values, grads, exp_avg, exp_avg_sq;
    void add(const at::Tensor& value, const at::Tensor& grad, const at::Tensor& mean,
             const at::Tensor& mean_sq) {
      values.push_back(value);
      grads.push_back(grad);
      exp_avg.push_back(mean);
      exp_avg_sq.push_back(mean_sq);
    }
  };

  void run(Batch& batch, double weight_decay) {
    if (batch.values.empty()) return;
    const std::vector<at::Tensor> steps(batch.values.size(), step_);
    at::_fused_adamw_(batch.values, batch.grads, batch.exp_avg, batch.exp_avg_sq, /*max_exp_avg_sqs=*/{},
                      steps, learning_rate_, options_.beta1, options_.beta2, weight_decay, options_.eps,
                      /*amsgrad=*/false, /*maximize=*/false, grad_scale_);
    batch = {};
  }

  const AdamwOptions& options_;
  const double learning_rate_, fp64_factor_;
  const at::Tensor step_;
  std::optional<at::Tensor> grad_scale_;
  Batch decayed_, plain_;
  i64 held_ = 0;  ///< bytes of converted gradients in the batches
};

/// Whether cpu_adamw takes it.
bool is_one_pass(const at::Tensor& value, const at::Tensor& grad) {
  return value.device().is_cpu() && at::elementSize(value.scalar_type()) < 4 && value.is_contiguous() &&
         is_cpu_float(grad) && grad.is_contiguous();
}

/// A block of a tensor in fp32: a view, or for bf16 numbers a copy that put_back() rounds.
class WideBlock {
 public:
  WideBlock(const at::Tensor& tensor, i64 first, i64 count)
      : own_(tensor.view(-1).narrow(0, first, count)), wide_(own_.to(at::kFloat)) {}
  const at::Tensor& wide() const { return wide_; }
  void put_back(u64 key, i64 first) {
    if (own_.scalar_type() == at::kBFloat16) round_stochastically(wide_, own_, key, first);
  }

 private:
  at::Tensor own_, wide_;
};

/// Where values or moments are bf16: block by block in fp32, then rounded.
void update_narrow(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& grads,
                   const AdamwState& state, const AdamwOptions& options, double learning_rate,
                   double grad_factor) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const at::Tensor& kept = state.master.empty() ? values[i] : state.master[i];
    const auto [key, origin] = draws_of(state, i);
    for (i64 begin = 0; begin < kept.numel(); begin += kNarrowBlock) {
      const i64 count = std::min(kNarrowBlock, kept.numel() - begin);
      WideBlock value(kept, begin, count), mean(state.exp_avg[i], begin, count),
          mean_sq(state.exp_avg_sq[i], begin, count);
      AdamwPass pass(options, learning_rate, grad_factor, state.step, value.wide());
      pass.add(value.wide(), grads[i].view(-1).narrow(0, begin, count), mean.wide(), mean_sq.wide(),
               values[i].dim() > 1);
      pass.run();
      value.put_back(key, origin + begin);
      mean.put_back(splitmix64(key + 1), origin + begin);
      mean_sq.put_back(splitmix64(key + 2), origin + begin);
    }
    if (!state.master.empty()) at::Tensor(values[i]).copy_(kept);
  }
}

}  // namespace

Draws draws_of(const AdamwState& state, std::size_t i) {
  return {splitmix64(state.rounding_key ^ splitmix64(static_cast<u64>(state.step)) ^ i),
          state.first.empty() ? 0 : state.first[i]};
}

AdamwState make_adamw_state(const std::vector<at::Tensor>& values, const OptimizerWidths& kept) {
  AdamwState state;
  for (const at::Tensor& value : values) {
    const at::TensorOptions wide = value.options().dtype(accumulate_type(value.scalar_type()));
    const at::TensorOptions moment =
        wide.dtype() == at::kFloat && kept.moment < 4 ? wide.dtype(at::kBFloat16) : wide;
    state.exp_avg.push_back(at::zeros(value.sizes(), moment));
    state.exp_avg_sq.push_back(at::zeros(value.sizes(), moment));
    if (value.scalar_type() == wide.dtype()) continue;
    HM_CHECK(kept.master || value.scalar_type() == at::kBFloat16, "values other than bf16 need a master");
    if (kept.master) state.master.push_back(value.to(at::kFloat));
  }
  HM_CHECK(state.master.empty() || state.master.size() == values.size(),
           "storages of one list have one dtype");
  return state;
}

void adamw_update(std::vector<at::Tensor>& values, const std::vector<at::Tensor>& grads, AdamwState& state,
                  const AdamwOptions& options, double learning_rate, double grad_factor, Path path) {
  if (values.empty()) return;
  const std::vector<at::Tensor>& wide = state.master.empty() ? values : state.master;
  ++state.step;
  if (runs_on_kernels(values[0], path) &&
      gpu_adamw_update(values, grads, state, options, learning_rate, grad_factor))
    return;
  if (wide[0].scalar_type() == at::kBFloat16 || state.exp_avg[0].scalar_type() == at::kBFloat16)
    return update_narrow(values, grads, state, options, learning_rate, grad_factor);
  AdamwPass pass(options, learning_rate, grad_factor, state.step, wide[0]);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].numel() == 0) continue;
    if (is_one_pass(values[i], grads[i])) {
      cpu_adamw({values[i], grads[i], wide[i], state.exp_avg[i], state.exp_avg_sq[i]}, options, state.step,
                learning_rate, values[i].dim() > 1 ? options.weight_decay : 0, grad_factor);
    } else {
      pass.add(wide[i], grads[i], state.exp_avg[i], state.exp_avg_sq[i], wide[i].dim() > 1);
    }
  }
  pass.run();
  for (std::size_t i = 0; i < state.master.size(); ++i) {
    if (!is_one_pass(values[i], grads[i])) values[i].copy_(state.master[i]);
  }
}

void clear(const std::vector<at::Tensor>& tensors) {
  const bool own = !tensors.empty() && runs_on_kernels(tensors[0]) &&
                   std::all_of(tensors.begin(), tensors.end(),
                               [](const at::Tensor& tensor) { return tensor.is_contiguous(); });
  if (own) return gpu_clear(tensors);
  for (const at::Tensor& tensor : tensors) tensor.zero_();
}

at::Tensor squared_norm(const std::vector<at::Tensor>& grads, Path path) {
  HM_CHECK(!grads.empty(), "squared norm of no tensors");
  const bool alike = std::all_of(grads.begin(), grads.end(), [&](const at::Tensor& grad) {
    return grad.scalar_type() == grads[0].scalar_type();
  });
  if (alike && runs_on_kernels(grads[0], path)) return gpu_squared_norm(grads);
  at::Tensor sum = at::zeros({}, grads[0].options().dtype(at::kDouble));
  for (const at::Tensor& grad : grads) sum += square_sum(grad);
  return sum;
}

double clip_factor(double squared_norm, double max_norm) {
  const double norm = std::sqrt(squared_norm);
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
}

}  // namespace hetermoe
