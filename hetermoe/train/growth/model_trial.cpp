#include "hetermoe/train/growth/model_trial.h"

#include <cmath>

#include "hetermoe/base/index.h"
#include "hetermoe/train/job/gpu_run.h"
#include "hetermoe/train/session/batch.h"
#include "hetermoe/weights/upcycle.h"

namespace hetermoe {

ModelTrial::ModelTrial(const Job& job, const ModelConfig& model, const HfWeights& weights,
                       const Dataset& data)
    : job_(job), model_(model), sampler_(data, {job.train.seq_len, job.train.seed}) {
  const Cluster cluster = load_cluster(job.cluster);
  Session::Options options;
  options.step = step_options(job, model_);
  options.executor.watchdog = job.clock.watchdog_s;
  Plan plan = make_job_plan(job, model_, cluster);
  options.where = places_of(job, cluster, Processes(), /*uses_fp64=*/true);
  session_ = std::make_unique<Session>(model_, cluster, std::move(plan), std::move(options));
  load_weights(weights, session_->states());
}

ModelTrial::~ModelTrial() = default;

StepInput ModelTrial::input_of(i64 batch, i64 first) const {
  const i64 count = job_.train.sequences;
  StepInput input = hetermoe::input_of(sampler_.batch(first + batch * count, count, model_.vocab));
  input.step = batch;
  return input;
}

double ModelTrial::loss(i64 first, i64 batches) {
  double sum = 0, targets = 0;
  for (i64 b = 0; b < batches; ++b) {
    const StepInput input = input_of(b, first);
    sum += session_->evaluate(input).loss;
    targets += real(input.target_count);
  }
  return sum / targets;
}

TensorsByName ModelTrial::mean_gradients(i64 first, i64 batches) {
  TensorsByName sum;
  for (i64 b = 0; b < batches; ++b) {
    // A learning rate of 0: weights stay as they are.
    const StepResult step = session_->train_step(input_of(b, first));
    if (!step.updated)
      fail<InputError>("--score", "gradients of batch {} are NaN or infinite: they say nothing of experts",
                       b + 1);
    for (const auto& [name, gradient] : session_->gradients()) {
      const at::Tensor wide = gradient.to(at::kCPU, at::kDouble);
      const auto [found, fresh] = sum.try_emplace(name, wide);
      if (!fresh) found->second.add_(wide);
    }
  }
  for (auto& [name, gradient] : sum) gradient.div_(real(batches));
  return sum;
}

ExpertScores utility_scores(Utility utility, const HfWeights& weights, const ModelConfig& model,
                            const TensorsByName& gradients) {
  ExpertScores squares(idx(model.num_layers));
  for (i64 l = 0; l < model.num_layers; ++l) {
    if (model.is_moe(l)) squares[idx(l)].assign(idx(model.num_experts), 0);
  }
  for (const ParamInfo& parameter : parameters(model)) {
    const auto found = gradients.find(parameter.name);
    // A frozen expert has no gradient, and gains nothing.
    if (parameter.expert < 0 || found == gradients.end()) continue;
    squares[idx(parameter.layer)][idx(parameter.expert)] += found->second.square().sum().item<double>();
  }
  if (utility == Utility::kGradient) return squares;
  const ExpertScores of_weights = weight_scores(weights, model);
  for (std::size_t l = 0; l < squares.size(); ++l) {
    for (std::size_t e = 0; e < squares[l].size(); ++e)
      squares[l][e] = std::sqrt(squares[l][e] * of_weights[l][e]);
  }
  return squares;
}

}  // namespace hetermoe
