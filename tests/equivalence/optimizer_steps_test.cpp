#include <gtest/gtest.h>

#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

// What the optimizer does over several steps.
namespace hetermoe::testing {
namespace {

/// AdamW as in its paper, one tensor at a time.
class PlainAdamw {
 public:
  void step(TensorsByName& values, const TensorsByName& grads, const StepInput& input) {
    ++step_;
    double squares = 0;
    for (const auto& [name, grad] : grads) squares += grad.pow(2).sum().item<double>();
    norm = std::sqrt(squares);
    const double clip = input.max_grad_norm > 0 ? std::min(1.0, input.max_grad_norm / norm) : 1;
    const AdamwOptions& o = input.adamw;
    for (const auto& [name, grad] : grads) {
      const at::Tensor g = grad * clip;
      at::Tensor& value = values.at(name);
      auto& [m, v] = moments_[name];
      m = m.defined() ? o.beta1 * m + (1 - o.beta1) * g : (1 - o.beta1) * g;
      v = v.defined() ? o.beta2 * v + (1 - o.beta2) * g * g : (1 - o.beta2) * g * g;
      const at::Tensor m_hat = m / (1 - std::pow(o.beta1, step_)), v_hat = v / (1 - std::pow(o.beta2, step_));
      const double decay = value.dim() > 1 ? o.weight_decay : 0;
      value = value - input.learning_rate * (m_hat / (v_hat.sqrt() + o.eps) + decay * value);
    }
  }
  double norm = 0;

 private:
  int step_ = 0;
  std::map<std::string, std::pair<at::Tensor, at::Tensor>> moments_;
};

// Claim: five optimizer steps equal a plain loop
TEST(OptimizerSteps, FiveEqualAPlainLoop) {
  for (const ModelConfig& model : {tiny_qwen3(), tiny_deepseek_v3()}) {
    const Cluster cluster = make_cluster(4);
    const StepOptions options{.balance = model.aux_loss_coef > 0, .aux_group = 1};
    StrategyRequest request;
    request.seq_len = 4, request.sequences = 5, request.microbatches = 2;
    for (const NamedPlan& named : strategy_plans(model, cluster, request)) {
      Rig rig(model, cluster, named.plan, {options, {}, {}, {}, {}, {}});
      TensorsByName values = lively_values(model);
      rig.load(values);
      PlainAdamw adamw;
      i64 clipped = 0;
      for (i64 step = 0; step < 5; ++step) {
        StepInput input = random_input(named.plan, model, static_cast<u64>(step));
        input.step = step;
        input.learning_rate = 2e-3;
        input.max_grad_norm = step == 1 ? 0 : 0.8;
        const StepResult result = rig.executor().run(input);
        adamw.step(values, reference_step(model, values, input.tokens, input.targets, {1}).grads, input);
        EXPECT_LE(relative(result.grad_norm, adamw.norm), 1e-9) << named.name << " step " << step;
        clipped += input.max_grad_norm > 0 && adamw.norm > input.max_grad_norm ? 1 : 0;
        EXPECT_TRUE(rig.differing_replicas().empty()) << named.name << " step " << step;
      }
      EXPECT_GT(clipped, 0);
      for (const auto& [name, value] : rig.values()) {
        const double error = (value - values.at(name)).abs().max().item<double>();
        EXPECT_LE(error, 1e-9) << named.name << " " << name;
      }
    }
  }
}

}  // namespace
}  // namespace hetermoe::testing
