#include <ATen/Parallel.h>

#include <cmath>

#include "hetermoe/nn/cpu_kernels.h"
#include "hetermoe/nn/cpu_rows.h"
#include "hetermoe/nn/simd.h"

namespace hetermoe {
namespace {

/// What is the same for every element.
struct Factors {
  float grad, keep, mean, mean_sq, step, root, eps;
};

HM_CLONES void update_floats(const Factors& f, const float* __restrict grad, float* __restrict master,
                             float* __restrict exp_avg, float* __restrict exp_avg_sq, i64 count) {
  const Factors k = f;
  for (i64 i = 0; i < count; ++i) {
    const float g = k.grad * grad[i];
    const float mean = exp_avg[i] + k.mean * (g - exp_avg[i]);
    const float mean_sq = (1 - k.mean_sq) * exp_avg_sq[i] + k.mean_sq * g * g;
    exp_avg[i] = mean;
    exp_avg_sq[i] = mean_sq;
    master[i] = k.keep * master[i] - k.step * mean / (std::sqrt(mean_sq) * k.root + k.eps);
  }
}

template <class Value, class Grad>
void update(const Factors& factors, const AdamwTensors& x) {
  constexpr i64 kBlock = 2048;
  const i64 count = x.value.numel();
  Value* value = x.value.mutable_data_ptr<Value>();
  const Grad* grad = x.grad.const_data_ptr<Grad>();
  float* master = x.master.mutable_data_ptr<float>();
  float* exp_avg = x.exp_avg.mutable_data_ptr<float>();
  float* exp_avg_sq = x.exp_avg_sq.mutable_data_ptr<float>();
  at::parallel_for(0, (count + kBlock - 1) / kBlock, 8, [&](i64 begin, i64 end) {
    FloatRow<Grad> grad_row(kBlock);
    for (i64 first = begin * kBlock; first < std::min(count, end * kBlock); first += kBlock) {
      const i64 part = std::min(kBlock, count - first);
      update_floats(factors, grad_row.read(grad + first, part), master + first, exp_avg + first,
                    exp_avg_sq + first, part);
      narrow(master + first, value + first, part);
    }
  });
}

}  // namespace

void cpu_adamw(const AdamwTensors& x, const AdamwOptions& options, i64 step, double learning_rate,
               double weight_decay, double grad_factor) {
  const auto steps = static_cast<double>(step);
  const double rate = learning_rate / (1 - std::pow(options.beta1, steps));
  const double root = 1 / std::sqrt(1 - std::pow(options.beta2, steps));
  const Factors factors{static_cast<float>(grad_factor),
                        static_cast<float>(1 - learning_rate * weight_decay),
                        static_cast<float>(1 - options.beta1),
                        static_cast<float>(1 - options.beta2),
                        static_cast<float>(rate),
                        static_cast<float>(root),
                        static_cast<float>(options.eps)};
  with_row_type(x.grad, [&](auto of_grad) {
    if (x.value.scalar_type() == at::kBFloat16)
      update<at::BFloat16, decltype(of_grad)>(factors, x);
    else
      update<at::Half, decltype(of_grad)>(factors, x);
  });
}

}  // namespace hetermoe
