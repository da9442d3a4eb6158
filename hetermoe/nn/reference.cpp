#include "hetermoe/nn/reference.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "hetermoe/base/error.h"
#include "hetermoe/base/hash.h"
#include "hetermoe/model/tensor_names.h"
#include "hetermoe/nn/reference_rope.h"

namespace hetermoe {
namespace {

/// What the load-balancing loss needs of one MoE layer.
struct RouterRecord {
  at::Tensor probabilities;              ///< [T, E]
  std::vector<std::vector<i64>> chosen;  ///< [T][K]
  at::Tensor logits;                     ///< [T, E]
};

/// A plain forward pass. Everything is [B*S, ...] unless said otherwise.
class Reference {
 public:
  Reference(const ModelConfig& model, const TensorsByName& params, i64 num_sequences, i64 seq_len,
            const std::vector<at::Tensor>& choices = {}, const at::Tensor& starts_BS = {},
            const RouterTraining& router = {})
      : model_(model),
        params_(params),
        choices_(choices),
        router_(router),
        num_sequences_(num_sequences),
        seq_len_(seq_len) {
    if (starts_BS.defined()) document_BS_ = starts_BS.to(at::kLong).cumsum(1);
  }

  at::Tensor logits(const at::Tensor& tokens) {
    at::Tensor x = weight("model.embed_tokens").index_select(0, tokens.reshape({-1}));
    for (i64 layer = 0; layer < model_.num_layers; ++layer) {
      prefix_ = fmt::format("model.layers.{}.", layer);
      window_ = model_.window_of(layer);
      const at::Tensor normed = norm(x, prefix_ + "input_layernorm", model_.norm_eps);
      x = x + (model_.attention == AttentionKind::kMla ? latent_attention(normed) : attention(normed));
      const at::Tensor y = norm(x, prefix_ + "post_attention_layernorm", model_.norm_eps);
      x = x + (model_.is_moe(layer) ? moe(y, layer) : mlp(y, prefix_ + "mlp."));
    }
    x = norm(x, "model.norm", model_.norm_eps);
    return at::linear(x, weight(model_.tie_embeddings ? "model.embed_tokens" : "lm_head"));
  }

  const std::vector<RouterRecord>& routers() const { return routers_; }

 private:
  const at::Tensor& tensor(const std::string& name) const {
    const auto it = params_.find(name);
    if (it == params_.end()) fail<InputError>("reference model", "tensor \"{}\" is missing", name);
    return it->second;
  }
  const at::Tensor& weight(const std::string& name) const { return tensor(name + ".weight"); }

  at::Tensor norm(const at::Tensor& x, const std::string& name, double eps) const {
    const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor xw = x.to(wide);
    return weight(name) * (xw / at::sqrt(at::mean(xw * xw, {-1}, true) + eps)).to(x.scalar_type());
  }

  /// The logits of a router.
  at::Tensor router(const at::Tensor& x, i64 layer) const {
    const std::string name = router_name(model_, layer);
    const at::Tensor logits = at::linear(x, tensor(name).to(x.scalar_type()));
    return model_.router_linear_bias ? logits + tensor(bias_of(name)).to(x.scalar_type()) : logits;
  }

  /// An expert with biases, whose activation has limits.
  at::Tensor limited(const at::Tensor& x, const std::array<std::string, 3>& names) const {
    const auto product = [&](const at::Tensor& in, const std::string& name) {
      return at::linear(in, tensor(name), tensor(bias_of(name)));
    };
    const at::Tensor g = at::clamp_max(product(x, names[0]), model_.swiglu_limit);
    const at::Tensor u = at::clamp(product(x, names[1]), -model_.swiglu_limit, model_.swiglu_limit);
    return product((u + 1) * g * at::sigmoid(model_.swiglu_alpha * g), names[2]);
  }

  static at::Tensor gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up,
                          const at::Tensor& down) {
    const at::Tensor g = at::linear(x, gate), u = at::linear(x, up);
    return at::linear(g * at::sigmoid(g) * u, down);
  }
  at::Tensor mlp(const at::Tensor& x, const std::string& prefix) const {
    return gated(x, weight(prefix + "gate_proj"), weight(prefix + "up_proj"), weight(prefix + "down_proj"));
  }

  /// q, k [B, h, S, d], v [B, h, S, dv] -> [B*S, h*dv]: the textbook form.
  at::Tensor softmax_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const {
    double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
    if (model_.attention == AttentionKind::kMla && model_.rope_scaling.factor > 1)
      scale *=
          std::pow(1 + 0.1 * model_.rope_scaling.mscale_all_dim * std::log(model_.rope_scaling.factor), 2);
    at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) * scale;
    const at::Tensor place = at::arange(seq_len_, q.options().dtype(at::kLong));
    const at::Tensor back = place.unsqueeze(1) - place;  // [query, key]
    at::Tensor hidden = back < 0;
    if (window_ > 0) hidden = hidden.logical_or(back >= window_);
    if (document_BS_.defined()) {
      const at::Tensor other = document_BS_.unsqueeze(2) != document_BS_.unsqueeze(1);  // [B, query, key]
      hidden = hidden.logical_or(other.unsqueeze(1));
    }
    scores = scores.masked_fill(hidden, -INFINITY);
    at::Tensor shares;
    if (model_.attention_sinks) {
      const at::Tensor sinks = tensor(prefix_ + "self_attn.sinks").view({1, -1, 1, 1});
      shares = at::softmax(at::cat({scores, sinks.expand({scores.size(0), -1, seq_len_, 1})}, -1), -1)
                   .slice(-1, 0, seq_len_);
    } else {
      shares = at::softmax(scores, -1);
    }
    return at::matmul(shares, v).transpose(1, 2).reshape({num_sequences_ * seq_len_, -1});
  }

  at::Tensor to_heads(const at::Tensor& x, i64 num_heads) const {
    return x.reshape({num_sequences_, seq_len_, num_heads, -1}).transpose(1, 2);
  }

  at::Tensor attention(const at::Tensor& x) const {
    const std::string p = prefix_ + "self_attn.";
    const auto project = [&](const char* name) {
      const at::Tensor out = at::linear(x, weight(p + name));
      return model_.qkv_bias ? out + tensor(p + name + ".bias") : out;
    };
    at::Tensor q = project("q_proj"), k = project("k_proj"), v = project("v_proj");
    if (model_.qk_norm == QkNorm::kWhole) {
      q = norm(q, p + "q_norm", model_.norm_eps);
      k = norm(k, p + "k_norm", model_.norm_eps);
    }
    for (at::Tensor* part : {&q, &k, &v})
      if (model_.clip_qkv > 0) *part = at::clamp(*part, -model_.clip_qkv, model_.clip_qkv);
    q = to_heads(q, model_.num_heads);
    k = to_heads(k, model_.num_kv_heads);
    v = to_heads(v, model_.num_kv_heads);
    if (model_.qk_norm == QkNorm::kPerHead) {
      q = norm(q, p + "q_norm", model_.norm_eps);
      k = norm(k, p + "k_norm", model_.norm_eps);
    }
    const i64 times = model_.num_heads / model_.num_kv_heads;
    k = reference_turn(model_, k).repeat_interleave(times, 1);
    v = v.repeat_interleave(times, 1);
    const at::Tensor out =
        at::linear(softmax_attention(reference_turn(model_, q), k, v), weight(p + "o_proj"));
    return model_.output_bias ? out + tensor(p + "o_proj.bias") : out;
  }

  at::Tensor latent_attention(const at::Tensor& x) const {
    const std::string p = prefix_ + "self_attn.";
    constexpr double kEps = 1e-6;
    const at::Tensor q_flat =
        model_.q_lora_rank > 0
            ? at::linear(norm(at::linear(x, weight(p + "q_a_proj")), p + "q_a_layernorm", kEps),
                         weight(p + "q_b_proj"))
            : at::linear(x, weight(p + "q_proj"));
    const at::Tensor q = to_heads(q_flat, model_.num_heads);
    const at::Tensor a = at::linear(x, weight(p + "kv_a_proj_with_mqa"));
    const at::Tensor latent = norm(a.slice(1, 0, model_.kv_lora_rank), p + "kv_a_layernorm", kEps);
    const at::Tensor kv = to_heads(at::linear(latent, weight(p + "kv_b_proj")), model_.num_heads);
    const at::Tensor shared_key = reference_turn(model_, to_heads(a.slice(1, model_.kv_lora_rank), 1));
    std::vector<at::Tensor> heads;
    const i64 nope = model_.qk_nope_dim;
    for (i64 head = 0; head < model_.num_heads; ++head) {
      const at::Tensor qh = q.slice(1, head, head + 1), kvh = kv.slice(1, head, head + 1);
      const at::Tensor query = at::cat({qh.slice(3, 0, nope), reference_turn(model_, qh.slice(3, nope))}, -1);
      const at::Tensor key = at::cat({kvh.slice(3, 0, nope), shared_key}, -1);
      heads.push_back(softmax_attention(query, key, kvh.slice(3, nope)));
    }
    return at::linear(at::cat(heads, -1), weight(p + "o_proj"));
  }

  /// The chosen experts of one token from its scores, by sorting.
  std::vector<i64> choose(const std::vector<double>& scores, const std::vector<double>& bias) const {
    const i64 num_experts = model_.num_experts;
    std::vector<double> value(scores);
    for (std::size_t e = 0; e < bias.size(); ++e) value[e] += bias[e];
    if (model_.has_expert_groups()) {
      const i64 size = num_experts / model_.num_expert_groups;
      std::vector<double> group_value;
      for (i64 g = 0; g < model_.num_expert_groups; ++g) {
        std::vector<double> members(value.begin() + g * size, value.begin() + (g + 1) * size);
        std::sort(members.rbegin(), members.rend());
        group_value.push_back(model_.group_score == GroupScore::kMax || size == 1 ? members[0]
                                                                                  : members[0] + members[1]);
      }
      const std::vector<i64> order = descending(group_value);
      for (std::size_t rank = static_cast<std::size_t>(model_.top_k_groups); rank < order.size(); ++rank) {
        std::fill_n(value.begin() + order[rank] * size, size, -INFINITY);
      }
    }
    std::vector<i64> order = descending(value);
    order.resize(static_cast<std::size_t>(model_.top_k));
    return order;
  }

  static std::vector<i64> descending(const std::vector<double>& values) {
    std::vector<i64> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](i64 a, i64 b) {
      return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
    });
    return order;
  }

  static std::vector<double> to_vector(const at::Tensor& x) {
    const at::Tensor flat = x.detach().to(at::kCPU, at::kDouble).contiguous();
    return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
  }

  /// [T][K] recorded ids, -1 = none; empty = nothing is replayed.
  std::vector<std::vector<i64>> replayed(i64 layer) const {
    std::vector<std::vector<i64>> out;
    if (choices_.empty()) return out;
    const at::Tensor ids = choices_[static_cast<std::size_t>(layer)].to(at::kLong).reshape({-1});
    for (i64 i = 0; i < ids.numel(); ++i) {
      if (i % model_.top_k == 0) out.emplace_back();
      out.back().push_back(ids[i].item<i64>());
    }
    return out;
  }

  /// Each element of a router's input times a number drawn for it.
  at::Tensor jittered(const at::Tensor& x, i64 layer) const {
    if (router_.jitter == 0) return x;
    const at::Tensor factors = at::empty(x.sizes(), at::kDouble);
    double* next = factors.mutable_data_ptr<double>();
    for (i64 s = 0; s < num_sequences_; ++s) {
      u64 key = splitmix64(router_.seed ^ static_cast<u64>(router_.step));
      key = splitmix64(key ^ static_cast<u64>(layer));
      key = splitmix64(key ^ static_cast<u64>(router_.first_sequence + s));
      for (i64 i = 0; i < seq_len_ * model_.hidden; ++i) {
        const u64 bits = splitmix64(key + static_cast<u64>(i));
        const double uniform = (static_cast<double>(bits >> 11) + 0.5) / 9007199254740992.0;
        *next++ = 1 + router_.jitter * (2 * uniform - 1);
      }
    }
    return x * factors.to(x.device(), x.scalar_type());
  }

  /// The choices without those that come when their expert has its share of the sequence.
  std::vector<std::vector<i64>> with_room(const std::vector<std::vector<i64>>& chosen) const {
    if (router_.capacity_factor == 0) return chosen;
    const double even =
        static_cast<double>(seq_len_ * model_.top_k) / static_cast<double>(model_.num_experts);
    const auto capacity = static_cast<i64>(std::ceil(router_.capacity_factor * even));
    std::vector<std::vector<i64>> out(chosen.size());
    std::vector<i64> taken;
    for (std::size_t t = 0; t < chosen.size(); ++t) {
      if (t % static_cast<std::size_t>(seq_len_) == 0)
        taken.assign(static_cast<std::size_t>(model_.num_experts), 0);
      for (const i64 e : chosen[t]) {
        if (taken[static_cast<std::size_t>(e)]++ < capacity) out[t].push_back(e);
      }
    }
    return out;
  }

  at::Tensor moe(const at::Tensor& x, i64 layer) {
    const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor z = router(jittered(x.to(wide), layer), layer);
    const bool sigmoid = model_.router_score == RouterScore::kSigmoid;
    const at::Tensor scores = sigmoid ? at::sigmoid(z) : at::softmax(z, -1);
    const std::vector<double> bias =
        model_.router_bias ? to_vector(tensor(correction_bias_name(model_, layer))) : std::vector<double>();
    RouterRecord record;
    record.probabilities = sigmoid ? scores / scores.sum(-1, true) : scores;
    at::Tensor factor = at::zeros_like(scores);  // 1 where an expert is chosen
    const std::vector<std::vector<i64>> given = replayed(layer);
    for (i64 t = 0; t < x.size(0); ++t) {
      const bool chooses = given.empty() || given[static_cast<std::size_t>(t)][0] < 0;
      record.chosen.push_back(chooses ? choose(to_vector(scores[t]), bias)
                                      : given[static_cast<std::size_t>(t)]);
      for (const i64 e : record.chosen.back()) factor[t][e] = 1;
    }
    at::Tensor weights = scores * factor;
    if (model_.normalize_top_k) {
      const at::Tensor sum = weights.sum(-1, true) + (sigmoid ? 1e-20 : 0.0);
      weights = weights / at::clamp_min(sum, model_.least_weight_sum);
    }
    weights = weights * model_.routed_scale;
    record.logits = z;
    const std::vector<std::vector<i64>> taken = with_room(record.chosen);
    at::Tensor out = at::zeros_like(x);
    for (i64 e = 0; e < model_.num_experts; ++e) out = out + expert(x, layer, e, weights, taken);
    if (model_.num_shared_experts > 0) {
      at::Tensor shared = mlp(x, shared_prefix(model_, layer));
      if (model_.shared_gate)
        shared = at::sigmoid(at::linear(x, tensor(shared_gate_name(model_, layer)))) * shared;
      out = out + shared;
    }
    routers_.push_back(std::move(record));
    return out;
  }

  at::Tensor expert(const at::Tensor& x, i64 layer, i64 e, const at::Tensor& weights,
                    const std::vector<std::vector<i64>>& chosen) const {
    std::vector<i64> tokens;
    for (std::size_t t = 0; t < chosen.size(); ++t) {
      if (std::count(chosen[t].begin(), chosen[t].end(), e) > 0) tokens.push_back(static_cast<i64>(t));
    }
    const at::Tensor index = at::tensor(tokens, at::kLong).to(x.device());
    const std::array<std::string, 3> names = expert_matrices(model_, layer, static_cast<ExpertId>(e));
    const at::Tensor rows = x.index_select(0, index);
    const at::Tensor out = model_.expert_bias
                               ? limited(rows, names)
                               : gated(rows, tensor(names[0]), tensor(names[1]), tensor(names[2]));
    const at::Tensor weighted = out * weights.select(1, e).index_select(0, index).unsqueeze(1);
    return at::zeros_like(x).index_add(0, index, weighted.to(x.scalar_type()));
  }

  const ModelConfig& model_;
  const TensorsByName& params_;
  const std::vector<at::Tensor> choices_;
  const RouterTraining router_;
  i64 num_sequences_, seq_len_, window_ = 0;
  at::Tensor document_BS_;  // number of a token's document in its sequence
  std::string prefix_;
  std::vector<RouterRecord> routers_;
};

/// coef * E * sum_e f_e P_e over tokens [begin, end) of these layers jointly.
at::Tensor joint_balance_loss(const ModelConfig& model, std::span<const RouterRecord> routers, i64 begin,
                              i64 end) {
  std::vector<at::Tensor> probabilities;
  std::vector<double> fraction(static_cast<std::size_t>(model.num_experts), 0);
  const double rows = static_cast<double>(end - begin) * static_cast<double>(routers.size());
  for (const RouterRecord& router : routers) {
    probabilities.push_back(router.probabilities.slice(0, begin, end));
    for (i64 t = begin; t < end; ++t) {
      for (const i64 e : router.chosen[static_cast<std::size_t>(t)])
        fraction[static_cast<std::size_t>(e)] += 1 / rows;
    }
  }
  const at::Tensor mean = at::cat(probabilities, 0).mean(0);
  const at::Tensor f = at::tensor(fraction, at::kDouble).to(mean.device(), mean.scalar_type());
  return model.aux_loss_coef * static_cast<double>(model.num_experts) * (f * mean).sum();
}

at::Tensor group_balance_loss(const ModelConfig& model, const std::vector<RouterRecord>& routers, i64 begin,
                              i64 end, bool per_layer) {
  if (!per_layer) return joint_balance_loss(model, routers, begin, end);
  at::Tensor sum = at::zeros({}, routers[0].probabilities.options());
  for (const RouterRecord& router : routers) sum = sum + joint_balance_loss(model, {&router, 1}, begin, end);
  return sum / static_cast<double>(routers.size());
}

at::Tensor balance_loss(const ModelConfig& model, const std::vector<RouterRecord>& routers,
                        const at::Tensor& tokens_BS, const AuxLoss& aux) {
  const i64 num_sequences = tokens_BS.size(0), seq_len = tokens_BS.size(1);
  const i64 group = aux.group == 0 ? num_sequences : aux.group;
  at::Tensor sum = at::zeros({}, routers[0].probabilities.options());
  for (i64 first = 0; first < num_sequences; first += group) {
    const i64 last = std::min(first + group, num_sequences);
    const double share = static_cast<double>(last - first) / static_cast<double>(num_sequences);
    sum = sum + share * group_balance_loss(model, routers, first * seq_len, last * seq_len, aux.per_layer);
  }
  return sum;
}

}  // namespace

ReferenceResult reference_step(const ModelConfig& model, const TensorsByName& params,
                               const at::Tensor& tokens_BS, const at::Tensor& targets_BS, const AuxLoss& aux,
                               const std::vector<at::Tensor>& choices, const at::Tensor& starts_BS,
                               const RouterTraining& router) {
  const at::AutoGradMode mode(true);
  TensorsByName leaves;
  std::vector<std::string> names;
  std::vector<at::Tensor> inputs;
  for (const auto& [name, value] : params) {
    const bool buffer = name.ends_with("e_score_correction_bias");
    leaves[name] = buffer ? value : value.detach().clone().requires_grad_();
    if (buffer) continue;
    names.push_back(name);
    inputs.push_back(leaves[name]);
  }
  Reference reference(model, leaves, tokens_BS.size(0), tokens_BS.size(1), choices, starts_BS, router);
  const at::Tensor logits = reference.logits(tokens_BS);
  const at::ScalarType wide = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor loss =
      at::cross_entropy_loss(logits.to(wide), targets_BS.reshape({-1}), {}, at::Reduction::Mean, -100);
  ReferenceResult out;
  if (model.aux_loss_coef > 0 && !reference.routers().empty()) {
    const at::Tensor balance = balance_loss(model, reference.routers(), tokens_BS, aux);
    out.aux_loss = balance.item<double>();
    loss = loss + balance;
  }
  for (const RouterRecord& record : reference.routers()) {
    if (router.z_loss == 0) break;
    const at::Tensor z = router.z_loss * record.logits.exp().sum(1).log().square().mean();
    out.aux_loss += z.item<double>();
    loss = loss + z;
  }
  out.loss = loss.item<double>();
  const auto grads = torch::autograd::grad({loss}, inputs, {}, false, false, /*allow_unused=*/true);
  for (std::size_t i = 0; i < names.size(); ++i) {
    out.grads[names[i]] = grads[i].defined() ? grads[i] : at::zeros_like(inputs[i]);
  }
  return out;
}

at::Tensor reference_logits(const ModelConfig& model, const TensorsByName& params,
                            const at::Tensor& tokens_BS) {
  const c10::NoGradGuard no_grad;
  Reference reference(model, params, tokens_BS.size(0), tokens_BS.size(1));
  return reference.logits(tokens_BS).view({tokens_BS.size(0), tokens_BS.size(1), -1});
}

}  // namespace hetermoe
