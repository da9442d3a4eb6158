#include "hetermoe/nn/team_attention.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <vector>

#include "hetermoe/nn/attention.h"
#include "hetermoe/nn/products.h"
#include "hetermoe/nn/rms_norm.h"

namespace hetermoe {

/// Rows of a weight of the state, or of a matrix of an adapter, as a leaf.
struct UsedRows {
  at::Tensor leaf;
  std::size_t position = 0;  // as StateGroup::grad_at() counts
  i64 first = 0;
};

struct PartGraph {
  std::optional<Leaves> leaves;     // of a projection
  std::vector<at::Tensor> inputs;   // y, or queries, keys and values
  std::vector<at::Tensor> outputs;  // queries, keys and values, or the context
  std::vector<UsedRows> rows;       // that scores trains
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

TokenHeads heads_of_no_token(const ModelConfig& model, KeyForm form, const at::TensorOptions& options) {
  const auto of = [&](i64 heads, i64 width) { return at::empty({0, heads, width}, options); };
  const at::Tensor q = of(model.num_heads, model.head_dim);
  if (form == KeyForm::kLatents) return {q, of(1, model.qk_rope_dim), of(1, model.kv_lora_rank)};
  return {q, of(model.num_kv_heads, model.head_dim), of(model.num_kv_heads, model.value_dim())};
}

}  // namespace

ProjectionOutput projection_forward(const ModelConfig& model, i64 layer, const StateGroup& state,
                                    const at::Tensor& y_TD, const Sequences& sequences, KeyForm form,
                                    bool keep) {
  ProjectionOutput out;
  if (keep) out.graph = std::make_shared<PartGraph>();
  if (y_TD.size(0) == 0) {
    out.heads = heads_of_no_token(model, form, y_TD.options());
    if (keep) out.graph->inputs = {y_TD};
    return out;
  }
  const at::AutoGradMode mode(keep);
  const at::Tensor y = y_TD.detach().requires_grad_(keep);
  Leaves leaves(state, keep ? Leaves::Grad::kYes : Leaves::Grad::kNo);
  const at::Tensor normed = rms_norm(y, leaves[Weight::kInputNorm], model.norm_eps);
  const TokenHeads heads =
      without_batch(form == KeyForm::kLatents ? projected_latents(model, leaves, normed, sequences)
                                              : projected_heads(model, layer, leaves, normed, sequences));
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

namespace {

/// Makes leaves of the rows of weights that some heads use, and keeps those that are trained.
class RowLeaves {
 public:
  RowLeaves(const StateGroup& state, bool keep, std::vector<UsedRows>& trained)
      : state_(state), keep_(keep), trained_(trained) {}

  at::Tensor sinks(i64 first, i64 count) const {
    const std::size_t position = position_of(Weight::kSinks);
    return leaf(state_.values[position], position, {first, count}, state_.trainable());
  }

  /// What kv_b and its adapters make of latents for some heads.
  at::Tensor kv(const ModelConfig& model, const at::Tensor& latent_TR, i64 first, i64 count) const {
    const i64 width = model.qk_nope_dim + model.v_dim;
    const Rows own{first * width, count * width};
    const std::size_t position = position_of(Weight::kKvB);
    const at::Tensor weight = leaf(state_.values[position], position, own, state_.trainable());
    at::Tensor out = apply_linear(latent_TR, weight);
    for (std::size_t i = 0; i < state_.adapters.size(); ++i) {
      const Adapter& adapter = state_.adapters[i];
      if (adapter.weight != position) continue;
      const std::size_t of_a = state_.values.size() + 2 * i;
      const at::Tensor a = leaf(adapter.a, of_a, {0, adapter.a.size(0)}, true);
      const at::Tensor b = leaf(adapter.b, of_a + 1, own, true);
      out = out + apply_linear(apply_linear(latent_TR, a), b) * adapter.scale;
    }
    return out;
  }

 private:
  struct Rows {
    i64 first, count;
  };
  std::size_t position_of(Weight weight) const { return static_cast<std::size_t>(state_.find(weight)); }
  at::Tensor leaf(const at::Tensor& value, std::size_t position, const Rows& rows, bool trains) const {
    const at::Tensor own = value.narrow(0, rows.first, rows.count).detach().requires_grad_(keep_ && trains);
    if (keep_ && trains) trained_.push_back({own, position, rows.first});
    return own;
  }

  const StateGroup& state_;
  bool keep_;
  std::vector<UsedRows>& trained_;
};

}  // namespace

ScoresOutput scores_forward(const ModelConfig& model, i64 layer, const OwnHeads& own, const TokenHeads& heads,
                            const Sequences& sequences, bool keep) {
  ScoresOutput out;
  if (keep) out.graph = std::make_shared<PartGraph>();
  const i64 tokens = heads.q.size(0), count = heads.q.size(1);
  if (count == 0 || tokens == 0) {
    out.context_TA = at::empty({tokens, count * model.value_dim()}, heads.q.options());
    if (keep) out.graph->inputs = list_of(heads);
    return out;
  }
  const at::AutoGradMode mode(keep);
  const std::vector<at::Tensor> in = detached(list_of(heads), keep);
  Heads all{in[0].unsqueeze(0), in[1].unsqueeze(0), in[2].unsqueeze(0)};
  std::vector<UsedRows> trained;
  at::Tensor sinks;
  if (model.attention_sinks) sinks = RowLeaves(*own.weights, keep, trained).sinks(own.first, count);
  if (own.form == KeyForm::kLatents) {
    const RowLeaves rows(*own.weights, keep, trained);
    all = heads_of_latents(model, all, rows.kv(model, in[2].squeeze(1), own.first, count));
    all.v = all.v.contiguous();  // so that the product need not be kept
  }
  const at::Tensor context = attention_of_heads(model, layer, all, {own.first, sinks}, sequences);
  out.context_TA = context.detach();
  if (keep) out.graph->inputs = in, out.graph->outputs = {context}, out.graph->rows = std::move(trained);
  return out;
}

TokenHeads scores_backward(StateGroup* weights, PartGraph& graph, const at::Tensor& dcontext_TA) {
  std::vector<at::Tensor> grads;
  if (graph.outputs.empty()) {
    for (const at::Tensor& x : graph.inputs) grads.push_back(at::empty_like(x));
    return {grads[0], grads[1], grads[2]};
  }
  const at::AutoGradMode mode(true);
  std::vector<at::Tensor> wanted = graph.inputs;
  for (const UsedRows& rows : graph.rows) wanted.push_back(rows.leaf);
  grads = torch::autograd::grad(graph.outputs, wanted, {dcontext_TA}, /*retain_graph=*/false,
                                /*create_graph=*/false);
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const UsedRows& rows = graph.rows[i];
    add_gradient_(weights->grad_at(rows.position).narrow(0, rows.first, rows.leaf.size(0)),
                  grads[graph.inputs.size() + i]);
  }
  return {grads[0], grads[1], grads[2]};
}

}  // namespace hetermoe
