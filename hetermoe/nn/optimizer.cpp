#include "hetermoe/nn/optimizer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "hetermoe/base/error.h"
#include "hetermoe/nn/kernels.h"
#include "hetermoe/nn/params.h"

namespace hetermoe {
namespace {

/// The tensors of one call: those with or those without weight decay.
struct Batch {
  std::vector<at::Tensor> values, grads, exp_avg, exp_avg_sq, steps;

  void update(const AdamwOptions& options, double learning_rate, double weight_decay,
              const std::optional<at::Tensor>& grad_scale) {
    if (values.empty()) return;
    at::_fused_adamw_(values, grads, exp_avg, exp_avg_sq, /*max_exp_avg_sqs=*/{}, steps, learning_rate,
                      options.beta1, options.beta2, weight_decay, options.eps, /*amsgrad=*/false,
                      /*maximize=*/false, grad_scale);
  }
};

/// Sum of squares in fp64. Blocks of fixed size, added in order: the same with any number of threads.
at::Tensor square_sum(const at::Tensor& x) {
  if (!x.device().is_cpu() || x.scalar_type() != at::kFloat || !x.is_contiguous()) {
    return x.to(at::kDouble).square().sum();
  }
  constexpr i64 kBlock = 1 << 16;
  const i64 num_blocks = (x.numel() + kBlock - 1) / kBlock;
  const float* values = x.const_data_ptr<float>();
  at::Tensor sums = at::zeros({num_blocks}, at::kDouble);
  double* out = sums.mutable_data_ptr<double>();
  at::parallel_for(0, num_blocks, 1, [&](i64 first, i64 last) {
    for (i64 b = first; b < last; ++b) {
      out[b] = sum_of_squares(values + b * kBlock, std::min(kBlock, x.numel() - b * kBlock));
    }
  });
  return sums.sum();
}

}  // namespace

AdamwState make_adamw_state(const std::vector<at::Tensor>& values) {
  AdamwState state;
  for (const at::Tensor& value : values) {
    const at::TensorOptions wide = value.options().dtype(accumulate_type(value.scalar_type()));
    state.exp_avg.push_back(at::zeros(value.sizes(), wide));
    state.exp_avg_sq.push_back(at::zeros(value.sizes(), wide));
    if (value.scalar_type() != wide.dtype()) state.master.push_back(value.to(at::kFloat));
  }
  HM_CHECK(state.master.empty() || state.master.size() == values.size(),
           "storages of one list have one dtype");
  return state;
}

void adamw_update(std::vector<at::Tensor>& values, const std::vector<at::Tensor>& grads, AdamwState& state,
                  const AdamwOptions& options, double learning_rate, double grad_factor) {
  if (values.empty()) return;
  const bool low_precision = !state.master.empty(), wide = values[0].scalar_type() == at::kDouble;
  ++state.step;
  Batch decayed, plain;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i].numel() == 0) continue;
    Batch& batch = values[i].dim() > 1 ? decayed : plain;
    const at::Tensor& value = low_precision ? state.master[i] : values[i];
    batch.values.push_back(value);
    const at::Tensor grad = grads[i].to(value.scalar_type());
    batch.grads.push_back(wide ? grad * grad_factor : grad);
    batch.exp_avg.push_back(state.exp_avg[i]);
    batch.exp_avg_sq.push_back(state.exp_avg_sq[i]);
    batch.steps.push_back(at::full({}, static_cast<double>(state.step), value.options().dtype(at::kFloat)));
  }
  // The fused kernel divides by grad_scale, which is fp32: not exact enough for fp64.
  std::optional<at::Tensor> grad_scale;
  if (grad_factor != 1 && !wide)
    grad_scale = at::full({}, 1 / grad_factor, values[0].options().dtype(at::kFloat));
  decayed.update(options, learning_rate, options.weight_decay, grad_scale);
  plain.update(options, learning_rate, 0, grad_scale);
  if (!low_precision) return;
  for (std::size_t i = 0; i < values.size(); ++i) values[i].copy_(state.master[i]);
}

at::Tensor squared_norm(const std::vector<at::Tensor>& grads) {
  HM_CHECK(!grads.empty(), "squared norm of no tensors");
  at::Tensor sum = at::zeros({}, grads[0].options().dtype(at::kDouble));
  for (const at::Tensor& grad : grads) sum += square_sum(grad);
  return sum;
}

double clip_factor(double squared_norm, double max_norm) {
  const double norm = std::sqrt(squared_norm);
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
}

double learning_rate_at(const LearningRate& schedule, i64 step) {
  if (step < schedule.warmup_steps) {
    return schedule.peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  }
  if (schedule.total_steps <= schedule.warmup_steps) return schedule.peak;
  const double progress =
      std::min(1.0, static_cast<double>(step - schedule.warmup_steps) /
                        static_cast<double>(schedule.total_steps - schedule.warmup_steps));
  const double cosine = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return schedule.peak * (schedule.final_share + (1 - schedule.final_share) * cosine);
}

}  // namespace hetermoe
