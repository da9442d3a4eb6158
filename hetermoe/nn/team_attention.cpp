#include "hetermoe/nn/team_attention.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <vector>

#include "hetermoe/nn/attention.h"
#include "hetermoe/nn/products.h"
#include "hetermoe/nn/rms_norm.h"

namespace hetermoe {

struct PartGraph {
  std::optional<Leaves> leaves;     // of a projection
  std::vector<at::Tensor> inputs;   // y, or queries, keys and values
  std::vector<at::Tensor> outputs;  // queries, keys and values, or the context
  at::Tensor sinks;                 // of the heads from first_head on; undefined = there are none
  i64 first_head = 0;
};

namespace {

/// None holds the memory of more than itself.
TokenHeads without_batch(const Heads& heads) {
  return {heads.q.squeeze(0).contiguous(), heads.k.squeeze(0).contiguous(), heads.v.squeeze(0).contiguous()};
}

std::vector<at::Tensor> list_of(const TokenHeads& heads) { return {heads.q, heads.k, heads.v}; }

std::vector<at::Tensor> detached(const std::vector<at::Tensor>& all, bool requires_grad) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& x : all) out.push_back(x.detach().requires_grad_(requires_grad));
  return out;
}

TokenHeads zero_heads(const ModelConfig& model, i64 rows, const at::TensorOptions& options) {
  const auto of = [&](i64 heads, i64 width) { return at::empty({rows, heads, width}, options); };
  return {of(model.num_heads, model.head_dim), of(model.num_kv_heads, model.head_dim),
          of(model.num_kv_heads, model.value_dim())};
}

}  // namespace

ProjectionOutput projection_forward(const ModelConfig& model, i64 layer, const StateGroup& state,
                                    const at::Tensor& y_TD, const Sequences& sequences, bool keep) {
  ProjectionOutput out;
  if (keep) out.graph = std::make_shared<PartGraph>();
  if (y_TD.size(0) == 0) {
    out.heads = zero_heads(model, 0, y_TD.options());
    if (keep) out.graph->inputs = {y_TD};
    return out;
  }
  const at::AutoGradMode mode(keep);
  const at::Tensor y = y_TD.detach().requires_grad_(keep);
  Leaves leaves(state, keep ? Leaves::Grad::kYes : Leaves::Grad::kNo);
  const at::Tensor normed = rms_norm(y, leaves[Weight::kInputNorm], model.norm_eps);
  const TokenHeads heads = without_batch(projected_heads(model, layer, leaves, normed, sequences));
  const std::vector<at::Tensor> made = detached(list_of(heads), false);
  out.heads = {made[0], made[1], made[2]};
  if (!keep) return out;
  out.graph->leaves.emplace(std::move(leaves));
  out.graph->inputs = {y};
  for (const at::Tensor& x : list_of(heads)) out.graph->outputs.push_back(stand_in(x));  // they travel
  return out;
}

at::Tensor projection_backward(StateGroup& state, PartGraph& graph, const TokenHeads& gradient) {
  if (!graph.leaves) return at::empty_like(graph.inputs[0]);
  std::vector<std::size_t> weights;
  std::vector<at::Tensor> wanted = graph.inputs;
  for (std::size_t i = 0; i < graph.leaves->all().size(); ++i) {
    const at::Tensor& leaf = graph.leaves->all()[i];
    if (leaf.requires_grad()) wanted.push_back(leaf), weights.push_back(i);
  }
  const at::AutoGradMode mode(true);
  const std::vector<at::Tensor> grads =
      torch::autograd::grad(graph.outputs, wanted, list_of(gradient), /*retain_graph=*/false,
                            /*create_graph=*/false, /*allow_unused=*/true);
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (grads[i + 1].defined()) add_gradient_(state.grad_at(weights[i]), grads[i + 1]);
  }
  return grads[0];
}

ScoresOutput scores_forward(const ModelConfig& model, i64 layer, const StateGroup* sinks,
                            const TokenHeads& heads, i64 first_head, const Sequences& sequences, bool keep) {
  ScoresOutput out;
  if (keep) out.graph = std::make_shared<PartGraph>();
  if (heads.q.size(1) == 0 || heads.q.size(0) == 0) {
    out.context_TA = at::empty({heads.q.size(0), heads.q.size(1) * model.value_dim()}, heads.q.options());
    if (keep) out.graph->inputs = list_of(heads);
    return out;
  }
  const at::AutoGradMode mode(keep);
  const std::vector<at::Tensor> in = detached(list_of(heads), keep);
  const Heads all{in[0].unsqueeze(0), in[1].unsqueeze(0), in[2].unsqueeze(0)};
  at::Tensor own_sinks;
  if (sinks != nullptr)
    own_sinks = sinks->value(Weight::kSinks)
                    .narrow(0, first_head, heads.q.size(1))
                    .detach()
                    .requires_grad_(keep && sinks->trainable());
  const at::Tensor context = attention_of_heads(model, layer, all, {first_head, own_sinks}, sequences);
  out.context_TA = context.detach();
  if (keep) {
    out.graph->inputs = in, out.graph->outputs = {context};
    out.graph->sinks = own_sinks, out.graph->first_head = first_head;
  }
  return out;
}

TokenHeads scores_backward(StateGroup* sinks, PartGraph& graph, const at::Tensor& dcontext_TA) {
  std::vector<at::Tensor> grads;
  if (graph.outputs.empty()) {
    for (const at::Tensor& x : graph.inputs) grads.push_back(at::empty_like(x));
  } else {
    const at::AutoGradMode mode(true);
    std::vector<at::Tensor> wanted = graph.inputs;
    const bool trains = graph.sinks.defined() && graph.sinks.requires_grad();
    if (trains) wanted.push_back(graph.sinks);
    grads = torch::autograd::grad(graph.outputs, wanted, {dcontext_TA}, /*retain_graph=*/false,
                                  /*create_graph=*/false);
    const c10::NoGradGuard no_grad;
    if (trains)
      add_gradient_(sinks->grad(Weight::kSinks).narrow(0, graph.first_head, graph.sinks.size(0)),
                    grads.back());
  }
  return {grads[0], grads[1], grads[2]};
}

}  // namespace hetermoe
