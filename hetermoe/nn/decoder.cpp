#include "hetermoe/nn/decoder.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>

#include "hetermoe/base/error.h"
#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"
#include "hetermoe/device/host_copy.h"
#include "hetermoe/nn/embed_head.h"
#include "hetermoe/nn/experts.h"
#include "hetermoe/nn/products.h"
#include "hetermoe/nn/rms_norm.h"
#include "hetermoe/nn/routing.h"
#include "hetermoe/nn/rows.h"

namespace hetermoe {

ModelState make_model_state(const ModelConfig& model, const at::TensorOptions& options) {
  StorageOptions storage(options);
  storage.trainable = false;
  ModelState out;
  out.embed = make_embed_state(model, storage);
  if (!model.tie_embeddings) out.head = make_head_state(model, storage);
  for (i64 layer = 0; layer < model.num_layers; ++layer) {
    out.attention.push_back(make_attention_state(model, layer, storage));
    std::vector<ExpertId> experts(idx(model.is_moe(layer) ? model.num_experts : 0));
    std::iota(experts.begin(), experts.end(), 0);
    out.experts.push_back(model.is_moe(layer) ? make_expert_slab(model, layer, experts, storage, 0)
                                              : ExpertSlab{});
  }
  return out;
}

std::vector<NamedView> ModelState::views(const ModelConfig& model) const {
  std::vector<NamedView> out = embed.views();
  const auto add = [&](const std::vector<NamedView>& more) {
    out.insert(out.end(), more.begin(), more.end());
  };
  add(head.views());
  for (i64 layer = 0; layer < model.num_layers; ++layer) {
    add(attention[idx(layer)].views());
    if (model.is_moe(layer)) add(experts[idx(layer)].views(model));
  }
  return out;
}

Decoder::Decoder(const ModelConfig& model, const ModelState& state, i64 capacity)
    : model_(model), state_(state) {
  const at::TensorOptions options = state.embed.values[0].options();
  for (i64 layer = 0; layer < model.num_layers; ++layer)
    caches_.push_back(make_kv_cache(model, capacity, options));
}

at::Tensor Decoder::add_experts(i64 layer, const AttentionOutput& out) const {
  const ExpertSlab& slab = state_.experts[idx(layer)];
  const OwnerTable all_here(idx(model_.num_experts), {{0, 1.0}});
  const SendIndex send = split_by_owner(to_host(out.topk_TK, "routing"), all_here, 1, RowDedup::kOn).at(0);
  const CopyGroups groups =
      group_copies({{send.num_rows(), send.row_C, send.expert_C}}, slab.slot_of, slab.num_slots());
  const at::Tensor weights =
      out.weights_TK.reshape({-1}).index_select(0, to_device(send.flat_C, out.weights_TK.device()));
  const at::Tensor rows =
      experts_forward(slab, gather_rows(out.x_TD, send.token_R), groups, to_grouped(groups, weights));
  at::Tensor y = out.u_TD.clone();
  add_rows_(y, send.token_R, rows);
  return y;
}

at::Tensor Decoder::read(const at::Tensor& tokens_T) {
  const c10::NoGradGuard no_grad;
  return logits_of(hidden_states(tokens_T));
}

at::Tensor Decoder::read_prompt(const at::Tensor& tokens_T, i64 part) {
  const c10::NoGradGuard no_grad;
  // Attention masks a part against all tokens before it: that many numbers, 32 MiB in fp32.
  constexpr i64 kMostMasked = i64{1} << 23;
  if (part == 0) part = std::clamp<i64>(kMostMasked / caches_[0].capacity(), 16, 1024);
  at::Tensor last;
  for (i64 first = 0; first < tokens_T.size(0); first += part) {
    const at::Tensor y = hidden_states(tokens_T.narrow(0, first, std::min(part, tokens_T.size(0) - first)));
    last = y.narrow(0, y.size(0) - 1, 1).clone();
  }
  return logits_of(last)[0];
}

at::Tensor Decoder::hidden_states(const at::Tensor& tokens_T) {
  at::Tensor y = embed_forward(state_.embed, tokens_T);
  for (i64 layer = 0; layer < model_.num_layers; ++layer) {
    const AttentionOutput out =
        attention_decode(model_, layer, state_.attention[idx(layer)], y, caches_[idx(layer)]);
    y = model_.is_moe(layer) ? add_experts(layer, out) : out.u_TD;
  }
  return y;
}

at::Tensor Decoder::logits_of(const at::Tensor& y) const {
  const StateGroup& head = model_.tie_embeddings ? state_.embed : state_.head;
  const at::Tensor normed = rms_norm(y, head.value(Weight::kFinalNorm), model_.norm_eps);
  const at::Tensor& weight = head.value(model_.tie_embeddings ? Weight::kEmbedding : Weight::kLmHead);
  return apply_linear(normed, weight).to(accumulate_type(y.scalar_type()));
}

i64 choose_token(const at::Tensor& logits_V, const SamplingOptions& options, i64 position) {
  if (options.temperature == 0) return logits_V.argmax().item<i64>();
  const at::Tensor probabilities =
      at::softmax(logits_V.to(at::kDouble) / options.temperature, 0).cpu().contiguous();
  const double* p = probabilities.const_data_ptr<double>();
  std::vector<i64> order(idx(logits_V.size(0)));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](i64 a, i64 b) { return p[a] > p[b]; });
  double kept = 0;
  std::size_t count = 0;
  while (count < order.size() && (count == 0 || kept < options.top_p)) kept += p[order[count++]];
  // 53 random bits: a number in [0, 1) that doubles hold exactly
  const u64 bits = splitmix64(options.seed ^ splitmix64(static_cast<u64>(position))) >> 11;
  double left = kept * static_cast<double>(bits) / static_cast<double>(u64{1} << 53);
  for (std::size_t i = 0; i < count; ++i) {
    left -= p[order[i]];
    if (left < 0) return order[i];
  }
  return order[count - 1];
}

}  // namespace hetermoe
