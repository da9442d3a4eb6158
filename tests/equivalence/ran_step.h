#pragma once
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/rig.h"

// One step of a plan in fp64 beside the same step on one device, with choices that are given.
namespace hetermoe::testing {

struct Ran {
  Comparison difference;
  StepResult result;
  TensorsByName gradients;
  i64 guests = 0;  ///< of all layers and microbatches
};

inline i64 count_guests(Rig& rig) {
  const RecordedRouting routing = rig.executor().recorded_routing();
  i64 guests = 0;
  for (const Op& op : rig.schedule().ops) {
    if (op.kind != OpKind::kLend || op.phase != Phase::kForward) continue;
    const ExchangeLoad load = routing.exchange(rig.placement(), op.group, op.layer, op.microbatch, 0);
    guests += static_cast<i64>(load.guests.size());
  }
  return guests;
}

/// The experts that these tokens choose, as a replayed trace gives them.
inline std::vector<at::Tensor> random_choices(const Plan& plan, const ModelConfig& model, u64 seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  std::vector<at::Tensor> choices;
  for (i64 l = 0; l < model.num_layers; ++l) {
    const i64 sequences = total_sequences(plan);
    // The first experts are chosen most.
    const at::Tensor scores =
        at::rand({sequences, plan.seq_len, model.num_experts}, generator, at::TensorOptions()) *
        at::arange(2 * model.num_experts, model.num_experts, -1);
    choices.push_back(model.is_moe(l) ? std::get<1>(scores.topk(model.top_k)).to(at::kInt).contiguous()
                                      : at::Tensor());
  }
  return choices;
}

/// The plan's step on equal weights and random tokens. choices: see StepInput. change: brings what the plan
/// computes, not what one device does, into another form, such as another order of sequences.
inline Ran run_step(const ModelConfig& model, const Cluster& cluster, const Plan& plan,
                    const StepOptions& step, const std::vector<at::Tensor>& choices = {},
                    RigOptions options = {}, const std::function<void(StepInput&)>& change = {}) {
  options.step = step;
  Rig rig(model, cluster, plan, options);
  const TensorsByName values = lively_values(model);
  rig.load(values);
  StepInput input = random_input(plan, model);
  input.choices = choices;
  const ReferenceResult reference =
      reference_step(model, values, input.tokens, input.targets, aux_of(step), choices);
  if (change) change(input);
  Ran out;
  out.result = rig.executor().run(input);
  out.gradients = rig.gradients();
  EXPECT_TRUE(rig.differing_replicas().empty());
  out.difference = compare(out.result, out.gradients, reference);
  out.guests = count_guests(rig);
  return out;
}

/// To the bit.
inline void expect_same_bits(const Ran& a, const Ran& b, const std::string& what) {
  EXPECT_EQ(a.result.loss, b.result.loss) << what;
  for (const auto& [name, gradient] : a.gradients)
    EXPECT_TRUE(at::equal(gradient, b.gradients.at(name))) << what << " " << name;
}

}  // namespace hetermoe::testing
