#include <gtest/gtest.h>

#include "hetermoe/train/session.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

// In which precision gradients of many microbatches are summed.
namespace hetermoe::testing {
namespace {

constexpr i64 kSequences = 64;

/// Gradients of one step over kSequences sequences.
TensorsByName gradients(const ModelConfig& model, const char* strategy, const TensorsByName& values,
                        Dtype dtype, i64 microbatches, std::optional<Dtype> grad_dtype = {}) {
  const Cluster cluster = load_cluster("demo");
  StrategyRequest request;
  request.seq_len = 16;
  request.sequences = kSequences;
  request.microbatches = microbatches;
  Plan plan = find_strategy(strategy).make(model, cluster, request);
  use_dtype(plan, dtype);
  plan.grad_dtype = grad_dtype;
  EXPECT_EQ(validate(plan, model, cluster), std::vector<std::string>{});
  Session session(model, cluster, plan, {});
  for (DeviceState* state : session.states()) {
    for (const LogicalTensor& tensor : state->store().tensors()) tensor.value.copy_(values.at(tensor.name));
  }
  session.train_step(random_input(plan, model));
  return session.gradients();
}

/// Root mean square of the deviation from `exact`, relative to exact's, over all parameters.
double error(const TensorsByName& got, const TensorsByName& exact) {
  double deviation = 0, size = 0;
  for (const auto& [name, grad] : exact) {
    deviation += (got.at(name).to(at::kDouble) - grad).square().sum().item<double>();
    size += grad.square().sum().item<double>();
  }
  return std::sqrt(deviation / size);
}

/// Values that 16 bits hold, and experts far enough apart that rounding turns no choice.
TensorsByName rounded_values(const ModelConfig& model) {
  TensorsByName values = lively_values(model);
  for (auto& [name, value] : values) value = value.to(at::kBFloat16).to(at::kDouble);
  return values;
}

class GradDtype : public ::testing::TestWithParam<const char*> {};

TEST_P(GradDtype, ManyMicrobatchesInBf16AreAsExactAsOne) {
  ModelConfig model = load_model("tiny");
  model.top_k = model.num_experts;  // no choice that rounding could turn
  const TensorsByName values = rounded_values(model);
  const TensorsByName exact = gradients(model, GetParam(), values, Dtype::kFp64, 1);
  const double one = error(gradients(model, GetParam(), values, Dtype::kBf16, 1), exact);
  const double many = error(gradients(model, GetParam(), values, Dtype::kBf16, kSequences), exact);
  const double one_narrow = error(gradients(model, GetParam(), values, Dtype::kBf16, 1, Dtype::kBf16), exact);
  const double narrow =
      error(gradients(model, GetParam(), values, Dtype::kBf16, kSequences, Dtype::kBf16), exact);
  std::cout << fmt::format(
      "[          ] {}: one batch {:.3g}; {} microbatches {:.3g} ({:.2f} x); in bf16 one {:.3g}, {} {:.3g} "
      "({:.1f} x)\n",
      GetParam(), one, kSequences, many, many / one, one_narrow, kSequences, narrow, narrow / one);
  EXPECT_LE(many, 1.5 * one);
  EXPECT_GE(narrow, 2 * many);
}

INSTANTIATE_TEST_SUITE_P(Train, GradDtype, ::testing::Values("single", "ep", "zebra"),
                         [](const auto& info) { return std::string(info.param); });

/// One device, so that the gradient storage and nothing else decides: sums of 64 equal addends.
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
