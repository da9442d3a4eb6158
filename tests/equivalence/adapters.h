#pragma once
#include <gtest/gtest.h>

#include "hetermoe/train/job/freeze.h"
#include "hetermoe/train/run/verify.h"
#include "hetermoe/train/session/session.h"
#include "tests/support/rig.h"

// Steps that train adapters, and the reference for them.
namespace hetermoe::testing {

using Patterns = std::vector<std::string>;

/// A step that trains adapters of the matrices that these patterns name.
inline StepOptions with_lora(const ModelConfig& model, const Patterns& patterns, i64 rank = 3) {
  std::vector<std::string> targets;
  for (const ParamInfo& parameter : parameters(model)) {
    for (const std::string& pattern : patterns) {
      if (can_have_adapter(parameter) && matches_pattern(pattern, parameter.name))
        targets.push_back(parameter.name);
    }
  }
  EXPECT_FALSE(targets.empty());
  auto lora = std::make_shared<const Lora>(make_lora(model, rank, 5, targets));
  return {.balance = model.aux_loss_coef > 0,
          .aux_group = 1,
          .backward = true,
          .frozen = units_without(model, *lora),
          .lora = lora};
}

inline Session make_session(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                            const StepOptions& step) {
  Session::Options options;
  options.step = step;
  return {model, cluster, plan, std::move(options)};
}

/// Values of matrices and adapters of which all matter.
inline TensorsByName lively(const ModelConfig& model, const Lora& lora) {
  TensorsByName values = lively_values(model);
  at::Generator generator = at::detail::createCPUGenerator(11);
  const auto drawn = [&](i64 rows, i64 columns) {
    return at::randn({rows, columns}, generator, at::TensorOptions().dtype(at::kDouble)) * 0.2;
  };
  for (const std::string& name : lora.targets) {
    const at::Tensor matrix = values.at(name);
    values[lora_a_name(name)] = drawn(lora.rank, matrix.size(1));
    values[lora_b_name(name)] = drawn(matrix.size(0), lora.rank);
  }
  return values;
}

inline void load(Session& session, const TensorsByName& values) {
  for (DeviceState* state : session.states()) {
    for (const LogicalTensor& tensor : state->store().tensors()) tensor.value.copy_(values.at(tensor.name));
  }
}

/// Of the adapters, from those of the merged matrices of the plain model.
inline ReferenceResult reference_of(const ModelConfig& model, const Lora& lora, const TensorsByName& values,
                                    const StepInput& input, const AuxLoss& aux = {.group = 1}) {
  ReferenceResult out = reference_step(model, with_merged(values, &lora), input.tokens, input.targets, aux);
  add_adapter_gradients(out.grads, values, lora);
  std::erase_if(out.grads, [](const auto& entry) { return !is_adapter(entry.first); });
  return out;
}

}  // namespace hetermoe::testing
