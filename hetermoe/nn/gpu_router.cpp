#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "hetermoe/kernels/router.h"
#include "hetermoe/nn/gpu_kernels.h"
#include "hetermoe/nn/router.h"

namespace hetermoe {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

kernels::RouterShape shape_of(const ModelConfig& model) {
  const bool sigmoid = model.router_score == RouterScore::kSigmoid, grouped = model.has_expert_groups();
  kernels::RouterShape out{};
  out.experts = model.num_experts, out.top_k = model.top_k;
  out.groups = grouped ? model.num_expert_groups : 0;
  out.kept_groups = grouped ? model.top_k_groups : 0;
  out.sigmoid = sigmoid;
  out.two_best = model.group_score == GroupScore::kTopTwoSum;
  out.normalizes = model.normalize_top_k;
  out.floor = sigmoid ? 1e-20 : 0;  // as routing_weights()
  out.scale = model.routed_scale;
  return out;
}

/// A warp has a token.
struct Warps {
  i32 threads;
  i64 per_block;
  i64 blocks(i64 tokens) const { return kernels::blocks_for((tokens + per_block - 1) / per_block); }
};

Warps warps_for(i64 team_bytes, c10::Device device) {
  constexpr i64 kSharedBytes = 40 << 10, kMostWarps = 8, kWarp = 32;
  const i64 warps = std::clamp<i64>(kSharedBytes / std::max<i64>(1, team_bytes), 1, kMostWarps);
  const auto threads = static_cast<i32>(warps * kWarp);
  return {threads, kernels::warps_per_block(threads, device)};
}

/// topk undefined = choose now; then counts are made as well.
Routed forward(const ModelConfig& model, const at::Tensor& logits_TE, const at::Tensor& bias_E, i64 seq_len,
               const at::Tensor& topk_TK) {
  const i64 tokens = logits_TE.size(0);
  const at::TensorOptions whole = logits_TE.options().dtype(at::kLong);
  Routed out{at::empty_like(logits_TE), topk_TK, at::empty({tokens, model.top_k}, logits_TE.options()), {}};
  if (!topk_TK.defined()) {
    out.topk_TK = at::empty({tokens, model.top_k}, whole);
    out.counts_BE = at::zeros({tokens / seq_len, model.num_experts}, whole);
  }
  const at::Tensor bias = bias_E.defined() ? bias_E.to(logits_TE.scalar_type()).contiguous() : bias_E;
  const kernels::RouterShape shape = shape_of(model);
  const i64 team_bytes = (shape.experts + shape.groups) * (8 + 4) / 8 * 8 + 8;
  const Warps warps = warps_for(team_bytes, logits_TE.device());
  kernels::launch(
      "route", {logits_TE.scalar_type()}, {warps.blocks(tokens), warps.threads, warps.per_block * team_bytes},
      kernels::Route{shape, logits_TE.const_data_ptr(), data_or_null(bias), out.scores_TE.mutable_data_ptr(),
                     out.topk_TK.mutable_data_ptr<i64>(), out.weights_TK.mutable_data_ptr(),
                     out.counts_BE.defined() ? out.counts_BE.mutable_data_ptr<i64>() : nullptr, tokens,
                     seq_len, team_bytes},
      logits_TE.device());
  return out;
}

/// The shape as saved data of a graph, which may outlive the model's description.
void keep(AutogradContext& context, const kernels::RouterShape& s) {
  context.saved_data["whole"] =
      std::vector<i64>{s.experts, s.top_k, s.groups, s.kept_groups, s.sigmoid, s.two_best, s.normalizes};
  context.saved_data["real"] = std::vector<double>{s.floor, s.scale};
}
kernels::RouterShape kept(AutogradContext& context) {
  const std::vector<i64> n = context.saved_data["whole"].toIntVector();
  const std::vector<double> x = context.saved_data["real"].toDoubleVector();
  return {n[0], n[1], n[2], n[3], static_cast<i32>(n[4]), static_cast<i32>(n[5]), static_cast<i32>(n[6]),
          x[0], x[1]};
}

/// What no gradient belongs to; may be undefined, as the arguments of a graph's functions may not.
struct Given {
  at::Tensor bias_E, topk_TK;
};

struct RouteFunction : torch::autograd::Function<RouteFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& logits, const Given& given,
                               const ModelConfig* model, i64 seq_len) {
    const at::Tensor topk = given.topk_TK.defined() ? given.topk_TK.contiguous() : given.topk_TK;
    const Routed out = hetermoe::forward(*model, logits.contiguous(), given.bias_E, seq_len, topk);
    context->set_materialize_grads(false);
    context->save_for_backward({out.scores_TE, out.topk_TK});
    keep(*context, shape_of(*model));
    if (!out.counts_BE.defined()) return {out.scores_TE, out.weights_TK};
    context->mark_non_differentiable({out.topk_TK, out.counts_BE});
    return {out.scores_TE, out.weights_TK, out.topk_TK, out.counts_BE};
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& scores = saved[0];
    const at::Tensor dscores = grads[0].defined() ? grads[0].contiguous() : grads[0];
    const at::Tensor dweights = grads[1].defined() ? grads[1].contiguous() : grads[1];
    const at::Tensor dlogits = at::empty_like(scores);
    const Warps warps = warps_for(0, scores.device());
    kernels::launch(
        "route_backward", {scores.scalar_type()}, {warps.blocks(scores.size(0)), warps.threads},
        kernels::RouteBackward{kept(*context), scores.const_data_ptr(), saved[1].const_data_ptr<i64>(),
                               data_or_null(dscores), data_or_null(dweights), dlogits.mutable_data_ptr(),
                               scores.size(0)},
        scores.device());
    return {dlogits, {}, {}, {}};
  }
};

}  // namespace

Routed gpu_route(const ModelConfig& model, const at::Tensor& logits_TE, const at::Tensor& bias_E, i64 seq_len,
                 const at::Tensor& topk_TK) {
  const variable_list out = RouteFunction::apply(logits_TE, Given{bias_E, topk_TK}, &model, seq_len);
  if (out.size() == 2) return {out[0], topk_TK, out[1], {}};
  return {out[0], out[2], out[1], out[3]};
}

}  // namespace hetermoe
