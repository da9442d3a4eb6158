#include <gtest/gtest.h>

#include "hetermoe/train/session/session.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

// In which precision gradients of many microbatches are summed.
namespace hetermoe::testing {
namespace {

constexpr i64 kSequences = 64;

struct Case {
  ModelConfig model = load_model("tiny");
  Cluster cluster = load_cluster("demo");
  TensorsByName values;

  Case() {
    model.top_k = model.num_experts;  // no choice that rounding could turn
    values = lively_values(model);
    for (auto& [name, value] : values) value = value.to(at::kBFloat16).to(at::kDouble);  // 16 bits hold them
  }
  Plan plan(const char* strategy, Dtype dtype, i64 sequences, i64 microbatches,
            std::optional<Dtype> grad_dtype = {}) const {
    StrategyRequest request;
    request.seq_len = 16;
    request.sequences = sequences;
    request.microbatches = microbatches;
    Plan made = find_strategy(strategy).make(model, cluster, request);
    use_dtype(made, dtype);
    made.grad_dtype = grad_dtype;
    EXPECT_EQ(validate(made, model, cluster), std::vector<std::string>{});
    return made;
  }
  /// The gradients of a step, in fp64.
  TensorsByName gradients(const Plan& of, const StepInput& input) const {
    Session session(model, cluster, of, {});
    for (DeviceState* state : session.states()) {
      for (const LogicalTensor& tensor : state->store().tensors()) tensor.value.copy_(values.at(tensor.name));
    }
    session.train_step(input);
    TensorsByName all = session.gradients();
    for (auto& [name, gradient] : all) gradient = gradient.to(at::kDouble);
    return all;
  }
  TensorsByName gradients(const Plan& of) const { return gradients(of, random_input(of, model)); }
};

/// Root mean square of the deviation from `exact`, relative to exact's, over all parameters.
double error(const TensorsByName& got, const TensorsByName& exact) {
  double deviation = 0, size = 0;
  for (const auto& [name, grad] : exact) {
    deviation += (got.at(name) - grad).square().sum().item<double>();
    size += grad.square().sum().item<double>();
  }
  return std::sqrt(deviation / size);
}

/// What the sum itself loses: the addends are the same 64 gradients, each computed in bf16.
TEST(GradDtype, SumsOf64MicrobatchesAreAsExactAsOneGradientIn16Bits) {
  const Case c;
  const Plan whole = c.plan("single", Dtype::kBf16, kSequences, kSequences);
  const Plan narrow = c.plan("single", Dtype::kBf16, kSequences, kSequences, Dtype::kBf16);
  const StepInput input = random_input(whole, c.model);
  const Plan each = c.plan("single", Dtype::kBf16, 1, 1);
  TensorsByName sum, first, rounded;
  for (i64 s = 0; s < kSequences; ++s) {
    StepInput part = input;
    part.tokens = input.tokens.narrow(0, s, 1);
    part.targets = input.targets.narrow(0, s, 1);
    const TensorsByName addend = c.gradients(each, part);
    if (s == 0) first = addend;
    for (const auto& [name, gradient] : addend) {
      const auto [found, fresh] = sum.try_emplace(name, gradient.clone());
      if (!fresh) found->second.add_(gradient);
    }
  }
  for (const auto& [name, gradient] : first) rounded[name] = gradient.to(at::kBFloat16).to(at::kDouble);
  const double one = error(rounded, first);
  const double many = error(c.gradients(whole, input), sum), in_16 = error(c.gradients(narrow, input), sum);
  std::cout << fmt::format(
      "[          ] one gradient rounded to bf16 {:.3g}; sum of {} in fp32 {:.3g} ({:.2g} x), in bf16 {:.3g} "
      "({:.1f} x)\n",
      one, kSequences, many, many / one, in_16, in_16 / one);
  EXPECT_LE(many, 1.5 * one);
  EXPECT_GE(in_16, 5 * one);
}

class GradDtypeOfStrategies : public ::testing::TestWithParam<const char*> {};

/// Against fp64 the products' own rounding weighs most; 64 microbatches add nothing to it.
TEST_P(GradDtypeOfStrategies, ManyMicrobatchesInBf16AreAsExactAsOne) {
  const Case c;
  const TensorsByName exact = c.gradients(c.plan(GetParam(), Dtype::kFp64, kSequences, 1));
  const double one = error(c.gradients(c.plan(GetParam(), Dtype::kBf16, kSequences, 1)), exact);
  const double many = error(c.gradients(c.plan(GetParam(), Dtype::kBf16, kSequences, kSequences)), exact);
  std::cout << fmt::format("[          ] {}: one batch {:.3g}, {} microbatches {:.3g} ({:.2f} x)\n",
                           GetParam(), one, kSequences, many, many / one);
  EXPECT_LE(many, 1.5 * one);
}

INSTANTIATE_TEST_SUITE_P(Train, GradDtypeOfStrategies, ::testing::Values("single", "ep", "zebra"),
                         [](const auto& info) { return std::string(info.param); });

TEST(GradDtypeOfAPlan, IsThatOfTheStorages) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  Plan plan = find_strategy("zebra").make(model, cluster, small_step());
  const auto grad_type = [&](Dtype dtype, std::optional<Dtype> grad) {
    use_dtype(plan, dtype);
    plan.grad_dtype = grad;
    Session session(model, cluster, plan, {});
    std::set<at::ScalarType> types;
    for (DeviceState* state : session.states()) {
      for (const LogicalTensor& tensor : state->store().tensors()) types.insert(tensor.grad.scalar_type());
    }
    EXPECT_EQ(types.size(), 1);
    return *types.begin();
  };
  EXPECT_EQ(grad_type(Dtype::kBf16, {}), at::kFloat);
  EXPECT_EQ(grad_type(Dtype::kFp16, {}), at::kFloat);
  EXPECT_EQ(grad_type(Dtype::kFp32, {}), at::kFloat);
  EXPECT_EQ(grad_type(Dtype::kFp64, {}), at::kDouble);
  EXPECT_EQ(grad_type(Dtype::kBf16, Dtype::kBf16), at::kBFloat16);
  EXPECT_EQ(grad_type(Dtype::kBf16, Dtype::kFp16), at::kHalf);
}

}  // namespace
}  // namespace hetermoe::testing
