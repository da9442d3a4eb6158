#include <gtest/gtest.h>

#include <cmath>
#include <iostream>

#include "tests/nn/compare.h"
#include "tests/nn/expert_case.h"
#include "tests/nn/newer_models.h"
#include "tests/nn/task_chain.h"

// Gradients of 16-bit parameters that are summed in fp32.
namespace hetermoe::testing {
namespace {

void use_fp32_grads(StateGroup& state) {
  for (at::Tensor& grad : state.grads) grad = grad.to(at::kFloat);
}

void use_fp32_grads(ExpertSlab& slab) {
  slab.gate_up_grad = slab.gate_up_grad.to(at::kFloat);
  slab.down_grad = slab.down_grad.to(at::kFloat);
}

void use_fp32_grads(Parameters& parameters) {
  use_fp32_grads(parameters.embed);
  use_fp32_grads(parameters.head);
  for (StateGroup& state : parameters.attention) use_fp32_grads(state);
  for (auto& layer : parameters.slabs) {
    for (ExpertSlab& slab : layer) use_fp32_grads(slab);
  }
}

/// Values that bf16 holds exactly, whatever the dtype of the storages.
Parameters make_bf16_valued(const ModelConfig& model, at::ScalarType dtype) {
  Parameters out = make_parameters(model, {}, dtype);
  init_parameters(all_views(model, out), 7);
  for (const NamedView& view : all_views(model, out)) view.value.copy_(view.value.to(at::kBFloat16));
  return out;
}

struct Batch {
  at::Tensor tokens, targets;
};

/// `count` microbatches of two sequences each.
std::vector<Batch> make_batches(const ModelConfig& model, i64 count) {
  at::manual_seed(5);
  std::vector<Batch> out;
  for (i64 i = 0; i < count; ++i)
    out.push_back({at::randint(model.vocab, {2, 8}, at::kLong), at::randint(model.vocab, {2, 8}, at::kLong)});
  return out;
}

TensorsByName sum_over(const ModelConfig& model, Parameters parameters, const std::vector<Batch>& batches) {
  TensorsByName grads;
  for (const Batch& batch : batches)
    grads = run_chain(model, parameters, batch.tokens, batch.targets, {}).grads;
  return grads;
}

/// Distance to the exact gradient of all tensors together, as a share of its length. The exact one is that of
/// `exact` times `scale`.
double distance_of_all(const TensorsByName& got, const TensorsByName& exact, double scale = 1) {
  double off = 0, length = 0;
  for (const auto& [name, tensor] : exact) {
    const at::Tensor wide = tensor.to(at::kDouble) * scale;
    off += (got.at(name).to(at::kDouble) - wide).square().sum().item<double>();
    length += wide.square().sum().item<double>();
  }
  return std::sqrt(off / length);
}

/// Every token goes to every expert, so that rounding changes no choice.
ModelConfig without_choice(ModelConfig model) {
  model.num_experts = model.top_k = 3;
  model.num_expert_groups = model.top_k_groups = 1;
  model.group_score = GroupScore::kNone;
  model.aux_loss_coef = 0;
  return model;
}

/// Sums over 64 microbatches of a model in bf16, and what they should be.
struct Sums {
  TensorsByName in_bf16, in_fp32;
  TensorsByName of_batches;  ///< the microbatches' own bf16 gradients, added in fp64
  TensorsByName exact;       ///< all in fp64
  TensorsByName one_batch;   ///< all tokens at once in bf16; its loss is the mean and not the sum
};

constexpr i64 kMicrobatches = 64;

Sums make_sums(const ModelConfig& model) {
  const std::vector<Batch> batches = make_batches(model, kMicrobatches);
  std::vector<at::Tensor> tokens, targets;
  for (const Batch& batch : batches) tokens.push_back(batch.tokens), targets.push_back(batch.targets);
  Parameters wide = make_bf16_valued(model, at::kBFloat16);
  use_fp32_grads(wide);
  Sums out;
  out.in_bf16 = sum_over(model, make_bf16_valued(model, at::kBFloat16), batches);
  out.in_fp32 = sum_over(model, wide, batches);
  out.exact = sum_over(model, make_bf16_valued(model, at::kDouble), batches);
  out.one_batch =
      sum_over(model, make_bf16_valued(model, at::kBFloat16), {{at::cat(tokens), at::cat(targets)}});
  for (const Batch& batch : batches) {
    for (const auto& [name, grad] : sum_over(model, make_bf16_valued(model, at::kBFloat16), {batch})) {
      at::Tensor& sum = out.of_batches[name];
      sum = sum.defined() ? sum + grad : grad.to(at::kDouble);
    }
  }
  return out;
}

TEST(GradientSumsInFp32, OfSixtyFourMicrobatchesAreAsGoodAsOneBatch) {
  const Sums sums = make_sums(without_choice(tiny_mixtral()));
  TensorsByName rounded;
  for (const auto& [name, sum] : sums.of_batches) rounded[name] = sum.to(at::kBFloat16);
  const double once = distance_of_all(rounded, sums.of_batches),
               bf16 = distance_of_all(sums.in_bf16, sums.of_batches),
               fp32 = distance_of_all(sums.in_fp32, sums.of_batches);
  std::cout << "[          ] adding alone: rounded once " << once << ", sum of 64 in bf16 " << bf16
            << ", in fp32 " << fp32 << "\n";
  EXPECT_GE(bf16, 5 * once);
  EXPECT_LE(fp32, 1.5 * once);
  const double one_batch = distance_of_all(sums.one_batch, sums.exact, 1.0 / kMicrobatches),
               whole_bf16 = distance_of_all(sums.in_bf16, sums.exact),
               whole_fp32 = distance_of_all(sums.in_fp32, sums.exact);
  std::cout << "[          ] against fp64: one batch " << one_batch << ", sum of 64 in bf16 " << whole_bf16
            << ", in fp32 " << whole_fp32 << "\n";
  EXPECT_LE(whole_fp32, 1.5 * one_batch);
  EXPECT_GE(whole_bf16, 2 * whole_fp32);
}

TEST(GradientSumsInFp32, EveryTaskOfEveryFamilyAddsToThem) {
  for (ModelConfig model : models_of_all_families()) {
    model = without_choice(model);
    const std::vector<Batch> batches = make_batches(model, 2);
    Parameters narrow = make_bf16_valued(model, at::kBFloat16), wide = make_bf16_valued(model, at::kBFloat16);
    use_fp32_grads(wide);
    const TensorsByName expected = sum_over(model, narrow, batches), got = sum_over(model, wide, batches);
    for (const auto& [name, grad] : got) EXPECT_EQ(grad.scalar_type(), at::kFloat) << name;
    std::string worst;
    EXPECT_LE(worst_deviation(got, expected, &worst), 0.02) << model.name << " " << worst;
  }
}

TEST(GradientSumsInFp32, OfExpertsInOneKernelEqualOneAfterAnother) {
  ExpertCase each = make_uneven_case(at::kBFloat16), grouped = make_uneven_case(at::kBFloat16);
  use_fp32_grads(each.slab);
  use_fp32_grads(grouped.slab);
  const auto backward = [](ExpertCase& c, ExpertProducts products) {
    experts_backward(c.slab, c.rows, c.groups, c.weights, nullptr, c.dout, products);
  };
  backward(each, ExpertProducts::kEach);
  backward(grouped, ExpertProducts::kGrouped);
  EXPECT_EQ(grouped.slab.down_grad.scalar_type(), at::kFloat);
  EXPECT_LE(deviation(grouped.slab.gate_up_grad, each.slab.gate_up_grad), 0.02);
  EXPECT_LE(deviation(grouped.slab.down_grad, each.slab.down_grad), 0.02);
}

}  // namespace
}  // namespace hetermoe::testing
