#include "hetermoe/nn/attention_part.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "hetermoe/base/error.h"
#include "hetermoe/nn/attention.h"
#include "hetermoe/nn/gpu_kernels.h"
#include "hetermoe/nn/kv_cache.h"
#include "hetermoe/nn/products.h"
#include "hetermoe/nn/rms_norm.h"
#include "hetermoe/nn/router.h"
#include "hetermoe/nn/swiglu.h"

namespace hetermoe {

struct AttentionGraph {
  Leaves leaves;
  at::Tensor y;
  // x, weights, scores and topk are undefined in dense layers; counts also where nobody counted yet.
  at::Tensor u, x, weights, scores, topk, counts;
  at::Tensor context = {};  // of a team: input of the output projection
  at::Tensor log_sum;       // [T] logsumexp of the router's logits, with a z-loss
  // With KeepGraph::kSelected what the second norm and the activation of an MLP start from.
  at::Tensor h = {}, gate_up = {};
  bool selected() const { return h.defined(); }
};

struct AttentionLeft {
  std::vector<std::shared_ptr<LeftProduct>> products;
  /// Gradients of the weights of norms and of adapters, by StateGroup::grad_at: they come with those of
  /// inputs.
  std::vector<std::pair<std::size_t, at::Tensor>> direct;
};

namespace {

/// The dense MLP or the shared expert, which may have a gate.
at::Tensor mlp(AttentionGraph& graph, const at::Tensor& x, bool has_gate, bool selects) {
  const at::Tensor gate_up = graph.leaves.product(x, Weight::kMlpGateUp);
  if (selects) graph.gate_up = gate_up.detach();
  const at::Tensor out = graph.leaves.product(swiglu(gate_up), Weight::kMlpDown);
  return has_gate ? graph.leaves.product(x, Weight::kSharedGate).sigmoid() * out : out;
}

/// The given choice, and where it has gaps what the router chose.
at::Tensor without_gaps(const at::Tensor& given_TK, const at::Tensor& chosen_TK) {
  return at::where(given_TK.lt(0), chosen_TK, given_TK);
}

/// One pass through the part. cache: of the tokens before, null = there are none.
AttentionGraph run(const ModelConfig& model, i64 layer, const StateGroup& state, const at::Tensor& y_TD,
                   const Sequences& sequences, const RouterTask& task, KeepGraph keep_graph,
                   const at::Tensor& context_TA = {}, KvCache* cache = nullptr) {
  const Leaves::Grad grad = keep_graph == KeepGraph::kNo ? Leaves::Grad::kNo : Leaves::Grad::kLater;
  const bool selects = keep_graph == KeepGraph::kSelected;
  const auto input = [&](const at::Tensor& x) {
    return grad != Leaves::Grad::kNo && x.defined() ? x.detach().requires_grad_() : x;
  };
  at::Tensor y = input(y_TD);
  AttentionGraph out{Leaves(state, grad), y, {}, {}, {}, {}, task.has_gaps ? at::Tensor() : task.topk_TK, {},
                     input(context_TA),   {}};
  const Leaves& leaves = out.leaves;
  at::Tensor attended;
  if (out.context.defined()) {
    attended = attention_output(model, leaves, out.context);
  } else {
    const at::Tensor normed = rms_norm(y, leaves[Weight::kInputNorm], model.norm_eps);
    attended = cache != nullptr ? decode_attention(model, layer, leaves, normed, *cache)
                                : self_attention(model, layer, leaves, normed, sequences);
  }
  const auto [h, x] = residual_norm(y, attended, leaves[Weight::kPostNorm], model.norm_eps);
  if (selects) out.h = h.detach();
  const bool moe = model.is_moe(layer);
  out.u = !moe || model.num_shared_experts > 0 ? h + mlp(out, x, moe && model.shared_gate, selects) : h;
  if (!moe) return out;
  out.x = x;
  const at::ScalarType wide = accumulate_type(y.scalar_type());
  at::Tensor logits = leaves.wide_product(x, Weight::kRouter, wide, task.jitter);
  if (model.router_linear_bias) logits = logits + leaves[Weight::kRouterLinearBias].to(wide);
  if (task.z_loss) out.log_sum = logits.logsumexp(1);
  if (runs_on_kernels(logits) && model.least_weight_sum == 0) {
    const i64 rows = logits.size(0);
    const bool whole = sequences.are_whole(rows);
    const i64 seq_len = whole ? sequences.seq_len : rows;
    Routed routed = gpu_route(model, logits, state.buffer, seq_len, out.topk);
    if (task.has_gaps)
      routed = gpu_route(model, logits, state.buffer, seq_len, without_gaps(task.topk_TK, routed.topk_TK));
    out.scores = routed.scores_TE, out.topk = routed.topk_TK;
    out.weights = routed.weights_TK;
    if (whole) out.counts = routed.counts_BE;
    return out;
  }
  out.scores = router_scores(model, logits);
  if (!out.topk.defined()) out.topk = choose_experts(model, out.scores, state.buffer);
  if (task.has_gaps) out.topk = without_gaps(task.topk_TK, out.topk);
  out.weights = routing_weights(model, out.scores, out.topk);
  return out;
}

/// [rows] the sequence of each, counted from that of the first.
at::Tensor sequence_of_rows(const Sequences& sequences, i64 rows, const at::TensorOptions& options) {
  return at::arange(sequences.first, sequences.first + rows, options.dtype(at::kLong))
      .floor_divide_(sequences.seq_len);
}

at::Tensor count_experts(const ModelConfig& model, const at::Tensor& topk, const Sequences& sequences) {
  const i64 seq_len = sequences.seq_len, rows = topk.size(0);
  if (!sequences.are_whole(rows)) {
    const at::Tensor at =
        (sequence_of_rows(sequences, rows, topk.options()) * model.num_experts).unsqueeze(1) + topk;
    return at::zeros({sequences.count(rows) * model.num_experts}, topk.options())
        .scatter_add_(0, at.flatten(), at::ones({at.numel()}, topk.options()))
        .view({-1, model.num_experts});
  }
  const at::Tensor by_sequence = topk.reshape({topk.size(0) / seq_len, seq_len * model.top_k});
  return at::zeros({by_sequence.size(0), model.num_experts}, topk.options())
      .scatter_add_(1, by_sequence, at::ones_like(by_sequence));
}

AttentionOutput empty_output(const ModelConfig& model, i64 layer, const at::Tensor& y_TD) {
  AttentionOutput out;
  out.u_TD = at::empty_like(y_TD);
  if (!model.is_moe(layer)) return out;
  out.x_TD = at::empty_like(y_TD);
  out.topk_TK = at::empty({0, model.top_k}, y_TD.options().dtype(at::kLong));
  out.weights_TK = at::empty({0, model.top_k}, y_TD.options().dtype(accumulate_type(y_TD.scalar_type())));
  out.counts_BE = at::empty({0, model.num_experts}, y_TD.options().dtype(at::kLong));
  return out;
}

/// Outputs of the graph that receive a gradient, with these gradients.
struct Seeds {
  std::vector<at::Tensor> outputs, grads;
  void add(const at::Tensor& output, const at::Tensor& grad) {
    if (!output.defined() || !grad.defined()) return;
    outputs.push_back(output);
    grads.push_back(grad.to(output.scalar_type()));
  }
};

/// Adds the loss sum(balance * probabilities), whose gradient by these is known. Returns the loss.
at::Tensor add_balance_loss(Seeds& seeds, const ModelConfig& model, const AttentionGraph& graph,
                            const at::Tensor& balance_AE, const Sequences& sequences) {
  const at::Tensor probabilities = router_probabilities(model, graph.scores);
  const i64 num_tokens = probabilities.size(0), parts = balance_AE.size(0);
  if (!sequences.are_whole(num_tokens)) {
    const at::Tensor of_rows =
        balance_AE.to(probabilities.scalar_type())
            .index_select(0, sequence_of_rows(sequences, num_tokens, graph.topk.options()));
    seeds.add(probabilities, of_rows);
    return (probabilities.detach() * of_rows).sum();
  }
  HM_CHECK(num_tokens % parts == 0, "{} tokens do not split into {} balancing groups", num_tokens, parts);
  const at::Tensor balance = balance_AE.to(probabilities.scalar_type());
  seeds.add(probabilities, balance.unsqueeze(1)
                               .expand({parts, num_tokens / parts, model.num_experts})
                               .reshape({num_tokens, model.num_experts}));
  const at::Tensor by_part = probabilities.detach().view({parts, -1, model.num_experts}).sum(1);
  return (by_part * balance).sum();
}

/// Adds the loss factor * sum of squares of the logsumexp. Returns the loss.
at::Tensor add_z_loss(Seeds& seeds, const AttentionGraph& graph, double factor) {
  const at::Tensor value = graph.log_sum.detach();
  seeds.add(graph.log_sum, value * (2 * factor));
  return value.square().sum() * factor;
}

/// [position in leaves.all()] whether its gradient comes with those of inputs: not those of products.
std::vector<bool> direct_weights(const AttentionGraph& graph, const StateGroup& state) {
  std::vector<bool> direct(graph.leaves.all().size(), true);
  std::fill_n(direct.begin(), state.values.size(), state.trainable());
  for (const std::shared_ptr<LeftProduct>& product : graph.leaves.left()) direct[product->weight] = false;
  return direct;
}

/// Whose inputs norms and the activation make.
enum class MadeBy { kNothing, kInputNorm, kPostNorm, kActivation };
MadeBy input_made_by(Weight weight) {
  switch (weight) {
    case Weight::kQkv:
    case Weight::kQ:
    case Weight::kQA:
    case Weight::kKvA:
      return MadeBy::kInputNorm;
    case Weight::kRouter:
    case Weight::kMlpGateUp:
    case Weight::kSharedGate:
      return MadeBy::kPostNorm;
    case Weight::kMlpDown:
      return MadeBy::kActivation;
    default:
      return MadeBy::kNothing;
  }
}

/// Lets go of what make_again() makes. Products of the graph leave the gradients of their weights, so nothing
/// else holds their inputs.
void let_go(AttentionGraph& graph, const StateGroup& state) {
  for (const std::shared_ptr<LeftProduct>& product : graph.leaves.left()) {
    if (input_made_by(state.weights[product->weight]) != MadeBy::kNothing) product->x.reset();
  }
  graph.u = stand_in(graph.u);
  if (graph.x.defined()) graph.x = stand_in(graph.x);
}

void make_again(const AttentionGraph& graph, const ModelConfig& model, const StateGroup& state) {
  if (graph.leaves.left().empty()) return;
  const at::Tensor normed = rms_norm_forward(graph.y, state.value(Weight::kInputNorm), model.norm_eps).out;
  const at::Tensor x = rows_of_experts(model, state, graph);
  for (const std::shared_ptr<LeftProduct>& product : graph.leaves.left()) {
    switch (input_made_by(state.weights[product->weight])) {
      case MadeBy::kNothing:
        break;
      case MadeBy::kInputNorm:
        product->x = normed;
        break;
      case MadeBy::kPostNorm:
        product->x = x;
        break;
      case MadeBy::kActivation:
        product->x = swiglu_forward(graph.gate_up, at::Tensor());
        break;
    }
  }
}

}  // namespace

at::Tensor rows_of_experts(const ModelConfig& model, const StateGroup& state, const AttentionGraph& graph) {
  const c10::NoGradGuard no_grad;
  return rms_norm_forward(graph.h, state.value(Weight::kPostNorm), model.norm_eps).out;
}

AttentionOutput attention_forward(const ModelConfig& model, i64 layer, const StateGroup& state,
                                  const at::Tensor& y_TD, const Sequences& sequences, KeepGraph keep_graph,
                                  const RouterTask& task, const at::Tensor& context_TA) {
  HM_CHECK(context_TA.defined() || sequences.are_whole(y_TD.size(0)),
           "{} tokens are not whole sequences of {}", y_TD.size(0), sequences.seq_len);
  if (y_TD.size(0) == 0) return empty_output(model, layer, y_TD);
  const bool keep = keep_graph != KeepGraph::kNo;
  const at::AutoGradMode mode(keep);
  AttentionGraph graph = run(model, layer, state, y_TD, sequences, task, keep_graph, context_TA);
  AttentionOutput out;
  out.u_TD = graph.u.detach();
  if (model.is_moe(layer)) {
    out.x_TD = graph.x.detach();
    out.topk_TK = graph.topk;
    out.weights_TK = graph.weights.detach();
    out.counts_BE = graph.counts.defined() ? graph.counts : count_experts(model, graph.topk, sequences);
  }
  if (keep_graph == KeepGraph::kSelected) let_go(graph, state);
  if (keep) out.graph = std::make_shared<AttentionGraph>(std::move(graph));
  return out;
}

AttentionOutput attention_decode(const ModelConfig& model, i64 layer, const StateGroup& state,
                                 const at::Tensor& y_TD, KvCache& cache) {
  const c10::NoGradGuard no_grad;
  AttentionGraph graph = run(model, layer, state, y_TD, y_TD.size(0), {}, KeepGraph::kNo, {}, &cache);
  AttentionOutput out;
  out.u_TD = graph.u, out.x_TD = graph.x, out.topk_TK = graph.topk, out.weights_TK = graph.weights;
  return out;
}

AttentionGradient attention_backward(const ModelConfig& model, i64 layer, StateGroup& state,
                                     const AttentionBackwardInput& input, const Sequences& sequences) {
  const at::TensorOptions scalar = input.y_TD.options().dtype(accumulate_type(input.y_TD.scalar_type()));
  if (input.y_TD.size(0) == 0) {
    const at::Tensor none = input.context_TA.defined() ? at::empty_like(input.context_TA) : at::Tensor();
    return {at::empty_like(input.y_TD), none, at::zeros({}, scalar)};
  }
  AttentionGradient out;
  const at::AutoGradMode mode(true);
  const AttentionGraph graph =
      input.graph != nullptr
          ? std::move(*input.graph)
          : run(model, layer, state, input.y_TD, sequences,
                {.topk_TK = input.topk_TK, .jitter = input.jitter, .z_loss = input.z_factor > 0},
                KeepGraph::kYes, input.context_TA);
  Seeds seeds;
  seeds.add(graph.u, input.du_TD);
  seeds.add(graph.x, input.dx_TD);
  seeds.add(graph.weights, input.dweights_TK);
  out.aux_loss = input.balance_AE.defined() && graph.scores.defined()
                     ? add_balance_loss(seeds, model, graph, input.balance_AE, sequences)
                     : at::zeros({}, scalar);
  if (input.z_factor > 0 && graph.log_sum.defined())
    out.aux_loss = out.aux_loss + add_z_loss(seeds, graph, input.z_factor);
  if (!input.leaves_weights && !graph.selected()) {
    for (const std::shared_ptr<LeftProduct>& product : graph.leaves.left())
      product->sum = state.grads[product->weight];
  }
  const std::vector<bool> direct = direct_weights(graph, state);
  std::vector<at::Tensor> inputs;
  std::vector<std::size_t> weights;
  for (std::size_t i = 0; i < direct.size(); ++i) {
    if (direct[i]) inputs.push_back(graph.leaves.all()[i]), weights.push_back(i);
  }
  if (graph.context.defined()) inputs.push_back(graph.context);
  inputs.push_back(graph.y);
  const std::vector<at::Tensor> grads =
      torch::autograd::grad(seeds.outputs, inputs, seeds.grads, /*retain_graph=*/false,
                            /*create_graph=*/false, /*allow_unused=*/true);
  out.dy_TD = grads.back();
  if (graph.context.defined()) out.dcontext_TA = grads[grads.size() - 2];
  const c10::NoGradGuard no_grad;
  if (graph.selected()) make_again(graph, model, state);
  AttentionLeft left{graph.leaves.left(), {}};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (grads[i].defined()) left.direct.emplace_back(weights[i], grads[i]);
  }
  if (input.leaves_weights)
    out.left = std::make_shared<AttentionLeft>(std::move(left));
  else
    attention_weight_gradients(state, left);
  return out;
}

void attention_weight_gradients(StateGroup& state, AttentionLeft& left) {
  const c10::NoGradGuard no_grad;
  for (const auto& [weight, gradient] : left.direct) add_gradient_(state.grad_at(weight), gradient);
  for (const std::shared_ptr<LeftProduct>& product : left.products) {
    if (product->dout.defined()) add_left_(state.grads[product->weight], *product);
  }
}

}  // namespace hetermoe
