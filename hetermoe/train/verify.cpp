#include "hetermoe/train/verify.h"

#include <algorithm>
#include <cmath>

namespace hetermoe {

bool VerifyResult::passed() const {
  return missing.empty() && loss_error <= tolerance &&
         std::all_of(gradients.begin(), gradients.end(),
                     [&](const GradientError& g) { return g.error <= tolerance; });
}

double relative_error(const at::Tensor& a, const at::Tensor& b, double floor) {
  if (a.numel() == 0) return 0;
  const double difference = (a - b).abs().max().item<double>();
  const double scale = std::max(b.abs().max().item<double>(), floor);
  // NaN must not pass as equal.
  if (!(difference == difference)) return std::numeric_limits<double>::infinity();
  return difference == 0 ? 0 : difference / scale;
}

VerifyResult verify_plan(const Job& job, const ModelConfig& model, const Cluster& cluster, Plan plan,
                         const Batch& batch) {
  std::fill(plan.dtype.begin(), plan.dtype.end(), Dtype::kFp64);
  plan.wire_forward = plan.wire_backward = Dtype::kFp64;
  Session::Options options;
  options.step = {model.aux_loss_coef > 0, job.train.aux_group, true};
  options.executor.watchdog = job.clock.watchdog_s;
  Session session(model, cluster, std::move(plan), std::move(options));
  session.initialize(job.train.seed);
  const TensorsByName values = session.values();
  StepInput input;
  input.tokens = batch.tokens;
  input.targets = batch.targets;
  input.target_count = batch.target_count;
  const StepResult step = session.train_step(input);
  const TensorsByName gradients = session.gradients();
  const ReferenceResult reference =
      reference_step(model, values, batch.tokens, batch.targets, job.train.aux_group);

  VerifyResult result;
  result.loss = step.loss + step.aux_loss;
  result.reference_loss = reference.loss;
  result.loss_error = std::abs(result.loss - reference.loss) / std::abs(reference.loss);
  double largest = 0;
  for (const auto& [name, grad] : reference.grads) {
    largest = std::max(largest, grad.abs().max().item<double>());
    if (gradients.count(name) == 0) result.missing.push_back(name);
  }
  for (const auto& [name, grad] : gradients) {
    const auto found = reference.grads.find(name);
    if (found == reference.grads.end())
      result.missing.push_back(name);
    else
      result.gradients.push_back({name, relative_error(grad, found->second, 1e-6 * largest)});
  }
  std::sort(result.gradients.begin(), result.gradients.end(),
            [](const GradientError& a, const GradientError& b) { return a.error > b.error; });
  return result;
}

}  // namespace hetermoe
