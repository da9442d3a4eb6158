#include "hetermoe/model/op_cost.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

constexpr Bytes kStatBytes = 4;      ///< norm statistics, log-sum-exps and router scores are fp32
constexpr Bytes kExpertIdBytes = 8;  ///< as top-k returns them
constexpr Bytes kRouteWeightBytes = 4;

bool is_mla(const ModelConfig& model) { return model.attention == AttentionKind::kMla; }

/// A gated MLP has three matrices: gate and up [width, H], down [H, width].
i64 mlp_weights(const ModelConfig& model, i64 width) { return 3 * model.hidden * width; }

/// Width of the MLP that runs beside the routed experts on every token of a layer.
i64 local_mlp_width(const ModelConfig& model, i64 layer) {
  return model.is_moe(layer) ? model.shared_hidden() : model.dense_hidden;
}

bool has_shared_gate(const ModelConfig& model, i64 layer) { return model.shared_gate && model.is_moe(layer); }

i64 norm_weights(const ModelConfig& model) {
  i64 sum = 2 * model.hidden;
  if (is_mla(model)) return sum + model.q_lora_rank + model.kv_lora_rank;
  if (model.qk_norm == QkNorm::kPerHead) sum += 2 * model.head_dim;
  if (model.qk_norm == QkNorm::kWhole) sum += model.query_width() + model.key_width();
  return sum;
}

/// Elements of q, k and v as the attention kernel takes them. MLA repeats the shared rotary part of k for
/// each head.
i64 qkv_width(const ModelConfig& model) {
  return model.query_width() + model.key_width() + model.value_width();
}

}  // namespace

i64 attention_projection_weights(const ModelConfig& m) {
  const i64 output = m.output_width() * m.hidden;
  if (!is_mla(m)) return m.hidden * qkv_width(m) + output;
  const i64 query =
      m.q_lora_rank == 0 ? m.hidden * m.query_width() : m.q_lora_rank * (m.hidden + m.query_width());
  const i64 key_value =
      m.hidden * (m.kv_lora_rank + m.qk_rope_dim) + m.kv_lora_rank * m.num_heads * (m.qk_nope_dim + m.v_dim);
  return query + key_value + output;
}

i64 expert_weights(const ModelConfig& model) {
  const i64 biases = model.expert_bias ? 2 * model.expert_hidden + model.hidden : 0;
  return mlp_weights(model, model.expert_hidden) + biases;
}

LayerWeights layer_weights(const ModelConfig& model, i64 layer) {
  LayerWeights out;
  out.projections = attention_projection_weights(model);
  out.biases = (model.qkv_bias ? qkv_width(model) : 0) + (model.output_bias ? model.hidden : 0) +
               (model.attention_sinks ? model.num_heads : 0);
  out.norms = norm_weights(model);
  if (!model.is_moe(layer)) {
    out.dense = mlp_weights(model, model.dense_hidden);
    return out;
  }
  const i64 biases = (model.router_bias ? 1 : 0) + (model.router_linear_bias ? 1 : 0);
  out.router = model.num_experts * (model.hidden + biases);
  out.shared = mlp_weights(model, model.shared_hidden()) + (model.shared_gate ? model.hidden : 0);
  out.experts = model.num_experts * expert_weights(model);
  return out;
}

StateBytes state_bytes_per_parameter(Bytes element, const OptimizerWidths& kept) {
  return state_bytes_per_parameter(element, std::max(element, 4.0), kept);
}

StateBytes state_bytes_per_parameter(Bytes element, Bytes gradient, const OptimizerWidths& kept) {
  const bool has_master = element < 4 && kept.master;
  return {element, gradient, has_master ? 4.0 : 0.0, 2 * (element > 4 ? element : kept.moment)};
}

Bytes norm_work_bytes(double params, Bytes gradient_element) {
  if (gradient_element == 4) return 0;
  return gradient_element < 4 ? std::min(8 * params, real(kUpdateBlockBytes)) : gradient_element * params;
}

Bytes update_work_bytes(double params, Bytes gradient_element, const OptimizerWidths& kept) {
  if (kept != OptimizerWidths{}) {
    const double each = (kept.master ? 0 : 4) + (gradient_element < 4 ? 4 : 0) + (kept.moment < 4 ? 8 : 0);
    return each * std::min(params, real(kNarrowBlock));
  }
  if (gradient_element == 4) return 0;
  return std::min(std::max(gradient_element, 4.0) * params, real(kUpdateBlockBytes));
}

Flops projection_flops(const ModelConfig& model) { return 2 * real(attention_projection_weights(model)); }

Flops input_projection_flops(const ModelConfig& model) {
  return projection_flops(model) - 2 * real(model.output_width()) * real(model.hidden);
}

Flops latent_product_flops(const ModelConfig& m) {
  return is_mla(m) ? 2 * real(m.kv_lora_rank * m.num_heads * (m.qk_nope_dim + m.v_dim)) : 0;
}

bool is_windowed(const ModelConfig& model, i64 layer, i64 seq_len) {
  const i64 window = model.window_of(layer);
  return window > 0 && window < seq_len;
}

Flops score_flops(const ModelConfig& model, i64 layer, i64 seq_len) {
  const double per_pair = real(model.num_heads) * real(model.head_dim + model.value_dim());
  const i64 window = is_windowed(model, layer, seq_len) ? model.window_of(layer) : seq_len;
  return real(2 * seq_len - window) * real(window) * per_pair;
}

double score_elements(const ModelConfig& model, i64 seq_len) {
  return real(model.num_heads) * real(seq_len) * real(seq_len);
}

Flops router_flops(const ModelConfig& model, i64 layer) {
  return model.is_moe(layer) ? 2 * real(model.hidden) * real(model.num_experts) : 0;
}

Flops shared_flops(const ModelConfig& model, i64 layer) {
  return 2 * real(layer_weights(model, layer).shared);
}
Flops dense_flops(const ModelConfig& model, i64 layer) { return 2 * real(layer_weights(model, layer).dense); }
Flops expert_flops(const ModelConfig& model) { return 2 * real(mlp_weights(model, model.expert_hidden)); }
Flops head_flops(const ModelConfig& model) { return 2 * real(model.hidden) * real(model.vocab); }

Flops attention_part_flops(const ModelConfig& model, i64 layer, i64 seq_len) {
  return projection_flops(model) + score_flops(model, layer, seq_len) / real(seq_len) +
         router_flops(model, layer) + shared_flops(model, layer) + dense_flops(model, layer);
}

Flops model_flops_per_token(const ModelConfig& model, i64 seq_len) {
  Flops sum = head_flops(model) + kEmbeddingFlops;
  for (i64 l = 0; l < model.num_layers; ++l) {
    sum += attention_part_flops(model, l, seq_len);
    if (model.is_moe(l)) sum += real(model.top_k) * expert_flops(model);
  }
  return sum;
}

Flops training_flops_per_token(const ModelConfig& model, i64 seq_len) {
  return (1 + kGemmBackward) * model_flops_per_token(model, seq_len);
}

double projection_traffic(const ModelConfig& m) {
  const i64 query = m.query_width(), key = m.key_width();
  i64 sum = 2 * m.hidden + m.hidden + qkv_width(m);  // norm, q k v GEMM
  // Low-rank stages: written by one GEMM, read and written by the norm, read by the next GEMM.
  if (is_mla(m)) sum += 4 * (m.q_lora_rank + m.kv_lora_rank);
  if (m.qk_norm != QkNorm::kNone) sum += 2 * (query + key);
  if (m.qkv_bias) sum += 2 * qkv_width(m);
  sum += 2 * (query + key);  // rotary embedding
  return real(sum);
}

double score_traffic(const ModelConfig& m) { return real(qkv_width(m) + m.output_width()); }

double latent_product_traffic(const ModelConfig& m) { return real(3 * m.key_width() + m.value_width()); }

double attention_traffic(const ModelConfig& m, i64 layer) {
  i64 sum = m.output_width() + m.hidden + 3 * m.hidden;  // o GEMM, residual
  sum += 2 * m.hidden;                                   // second norm
  if (m.is_moe(layer)) sum += m.hidden + m.num_experts;  // router
  const i64 width = local_mlp_width(m, layer);
  if (width > 0) sum += (m.hidden + 2 * width) + 3 * width + (width + m.hidden) + 3 * m.hidden;
  if (has_shared_gate(m, layer)) sum += m.hidden + 2 * m.hidden;  // the gate, and what it multiplies
  return projection_traffic(m) + score_traffic(m) + real(sum);
}

double expert_traffic(const ModelConfig& m) { return real(4 * m.hidden + 6 * m.expert_hidden); }
double head_traffic(const ModelConfig& m) { return real(3 * m.hidden + 3 * m.vocab); }
double embedding_traffic(const ModelConfig& m) { return real(2 * m.hidden); }

Bytes row_bytes(const ModelConfig& model, Bytes element) { return real(model.hidden) * element; }

Bytes routing_bytes(const ModelConfig& model, i64 layer) {
  return model.is_moe(layer) ? real(model.top_k) * (kExpertIdBytes + kRouteWeightBytes) : 0;
}

Bytes send_index_bytes(double rows, double copies) { return (rows + 3 * copies) * kExpertIdBytes; }

namespace {

using Of = Activation::Of;
using Kept = Activation::Kept;
using In = Activation::In;

/// Numbers of a token for the attention kernel of an even team: its share of the queries, and of keys and
/// values a head at least for each device.
double numbers_for_heads(const ModelConfig& m, const ActivationOptions& options) {
  if (options.team == 0 || options.latents) return real(qkv_width(m));
  const double copies = std::max(1.0, real(options.team) / real(m.num_kv_heads));
  return real(m.query_width()) + copies * real(m.key_width() + m.value_width());
}

/// Calls add(activation) for every line of an attention part.
template <class Add>
void for_attention_lines(const ModelConfig& m, i64 layer, const ActivationOptions& options, Add add) {
  HM_CHECK(!options.scores_in_memory || options.seq_len > 0, "scores in memory need a sequence length");
  In in = In::kProjection;
  const auto work = [&](const char* name, i64 elements, Bytes wide = 0) {
    add(Activation{name, Of::kToken, Kept::kUnlessRecomputed, in, real(elements), wide});
  };
  const auto cheap = [&](const char* name, i64 elements) {
    add(Activation{name, Of::kToken, Kept::kUnlessSelected, in, real(elements), 0});
  };
  const auto passing = [&](const char* name, i64 elements) {
    if (options.team > 0) add(Activation{name, Of::kToken, Kept::kPassing, in, real(elements), 0});
  };
  const bool moe = m.is_moe(layer);
  add(Activation{"layer input", Of::kToken, Kept::kAlways, in, real(m.hidden), 0});
  if (moe)
    add(Activation{"chosen experts, weights", Of::kToken, Kept::kAlways, In::kRest, 0,
                   routing_bytes(m, layer)});
  if (options.of_team)
    work("normed input", m.hidden);  // its op keeps all that it makes, also with select
  else
    cheap("normed input", m.hidden);
  passing("q, k, v by tokens", qkv_width(m));
  passing("q with positions", m.query_width());
  passing("k with positions", m.key_width());
  if (m.qk_norm != QkNorm::kNone) work("q, k before their norms", m.query_width() + m.key_width());
  // Those of keys and values travel, but for what their norm starts from.
  const i64 key_value = m.kv_lora_rank + (options.latents ? 0 : m.kv_lora_rank + m.qk_rope_dim);
  if (is_mla(m)) work("latents", 2 * m.q_lora_rank + key_value);
  in = In::kScores;
  if (options.team > 0 && options.latents)
    work("latents of the team", options.team * (m.kv_lora_rank + m.qk_rope_dim));
  add(Activation{options.team > 0 ? "q, k, v by heads" : "q, k, v", Of::kToken, Kept::kUnlessRecomputed, in,
                 numbers_for_heads(m, options), 0});
  work(options.team > 0 ? "attended by heads" : "attended", m.output_width());
  if (options.scores_in_memory)
    work("probabilities", m.num_heads * options.seq_len);
  else
    work("log-sums of scores", 0, real(m.num_heads) * kStatBytes);
  in = In::kRest;
  if (options.team > 0)
    add(Activation{"attended by tokens", Of::kToken, Kept::kAlways, in, real(m.output_width()), 0});
  passing("output of attention", m.hidden);
  work("after attention", m.hidden);
  cheap("normed rows", m.hidden);
  work("statistics of norms", 0, 2 * kStatBytes);
  if (moe) work("router scores", 0, real(m.num_experts) * kStatBytes);
  const i64 width = local_mlp_width(m, layer);
  if (width > 0) {
    work("gate, up of the MLP", 2 * width);
    cheap("their product", width);
    if (has_shared_gate(m, layer)) work("shared expert before its gate, gate", m.hidden + 1);
  }
  passing("output of the MLP or of experts", m.hidden);
  passing("input of the next layer", m.hidden);
}

/// Of the routed experts. Their output is not among them: the gradient of the routing weight is the product
/// of (gradient through down) and the inner activation.
template <class Add>
void for_expert_lines(const ModelConfig& m, const ActivationOptions& options, Add add) {
  const auto line = [&](const char* name, Kept kept, i64 elements, Bytes wide, Of of = Of::kCopy) {
    add(Activation{name, of, kept, In::kRest, real(elements), wide});
  };
  const bool of_team = options.team > 0;
  if (of_team) {
    line("received row", Kept::kUnlessSent, m.hidden, 0, Of::kRow);
    line("row in the order of experts, weight", Kept::kPassing, m.hidden, kRouteWeightBytes);
  } else {
    line("received row, weight", Kept::kUnlessSent, m.hidden, kRouteWeightBytes);
  }
  line("gate, up", Kept::kUnlessRecomputed, 2 * m.expert_hidden, 0);
  line("their product", Kept::kNever, m.expert_hidden, 0);
  if (of_team) {
    line("output of an expert", Kept::kPassing, m.hidden, 0);
    line("row that goes back", Kept::kPassing, m.hidden, 0, Of::kRow);
  }
}

}  // namespace

bool is_kept(Kept kept, KeptActivations keeps) {
  switch (kept) {
    case Kept::kAlways:
      return true;
    case Kept::kUnlessRecomputed:
      return keeps != KeptActivations::kInputs;
    case Kept::kUnlessSelected:
      return keeps == KeptActivations::kAll;
    case Kept::kUnlessSent:
      return keeps != KeptActivations::kSelected;
    case Kept::kNever:
    case Kept::kPassing:
      return false;
  }
  HM_CHECK(false, "line of kind {}", static_cast<int>(kept));
}

std::vector<Activation> activation_ledger(const ModelConfig& model, i64 layer,
                                          const ActivationOptions& options) {
  std::vector<Activation> ledger;
  const auto add = [&](const Activation& line) { ledger.push_back(line); };
  for_attention_lines(model, layer, options, add);
  if (model.is_moe(layer)) for_expert_lines(model, options, add);
  return ledger;
}

double times_per_token(const ModelConfig& model, const Activation& line, const ActivationOptions& options) {
  switch (line.of) {
    case Of::kToken:
      return 1;
    case Of::kCopy:
      return real(model.top_k);
    case Of::kRow:
      return options.rows;
  }
  HM_CHECK(false, "line of {}", static_cast<int>(line.of));
}

Bytes attention_work_bytes(const ModelConfig& m, i64 layer, const ActivationOptions& options) {
  Bytes sum = 0;
  for_attention_lines(m, layer, options, [&](const Activation& line) {
    if (options.of_team && line.in != In::kRest) return;
    sum += line.kept != Kept::kAlways ? line.bytes(options.element) : 0;
  });
  return sum;
}

Bytes kept_bytes_of(const ModelConfig& m, i64 layer, Activation::In in, const ActivationOptions& options) {
  Bytes sum = 0;
  for_attention_lines(m, layer, options, [&](const Activation& line) {
    sum += line.in == in && line.kept != Kept::kAlways ? line.bytes(options.element) : 0;
  });
  return sum;
}

Bytes attention_kept_bytes(const ModelConfig& m, i64 layer, const ActivationOptions& options) {
  Bytes sum = 0;
  for_attention_lines(m, layer, options, [&](const Activation& line) {
    const bool counts = line.kept != Kept::kAlways && is_kept(line.kept, options.keeps) &&
                        (!options.of_team || line.in == In::kRest);
    sum += counts ? line.bytes(options.element) : 0;
  });
  return sum;
}

double selected_traffic(const ModelConfig& model, i64 layer) {
  return real(4 * model.hidden + 3 * local_mlp_width(model, layer));
}

Bytes attention_gradient_bytes(const ModelConfig& m, Bytes element) {
  return real(qkv_width(m) + m.output_width()) * element;
}

namespace {

/// Inputs of the products up to q, k and v, and gradients of their results.
i64 projection_left(const ModelConfig& m) {
  if (!is_mla(m)) return m.hidden + qkv_width(m);
  return m.hidden + m.query_width() + 2 * m.q_lora_rank + 2 * m.kv_lora_rank + m.qk_rope_dim +
         m.num_heads * (m.qk_nope_dim + m.v_dim);
}

}  // namespace

Bytes attention_left_bytes(const ModelConfig& m, i64 layer, Bytes element, bool of_team) {
  const i64 width = local_mlp_width(m, layer);
  i64 elements = 2 * m.hidden + m.output_width() + (of_team ? 0 : projection_left(m));
  if (width > 0) elements += 3 * width + m.hidden;
  if (has_shared_gate(m, layer)) elements += 1;
  return real(elements) * element + (m.is_moe(layer) ? real(m.num_experts) * kStatBytes : 0);
}

Bytes attention_saved_bytes(const ModelConfig& model, i64 layer, const ActivationOptions& options) {
  return row_bytes(model, options.element) + routing_bytes(model, layer) +
         attention_kept_bytes(model, layer, options);
}

Bytes expert_work_bytes(const ModelConfig& model, Bytes element) {
  Bytes sum = 0;
  for_expert_lines(model, {}, [&](const Activation& line) {
    sum += line.kept != Kept::kUnlessSent ? line.bytes(element) : 0;
  });
  return sum;
}

Bytes activation_work_bytes(const ModelConfig& model, double copies, Bytes element) {
  return element <= 4 ? 0 : element * copies * real(kActivationTemporaries * model.expert_hidden);
}

Bytes expert_left_bytes(const ModelConfig& model, Bytes element) { return expert_work_bytes(model, element); }

Bytes expert_kept_bytes(const ModelConfig& model, Bytes element) {
  Bytes sum = 0;
  for_expert_lines(model, {}, [&](const Activation& line) {
    sum += line.kept == Kept::kUnlessRecomputed ? line.bytes(element) : 0;
  });
  return sum;
}

Bytes expert_saved_bytes(const ModelConfig& model, const ActivationOptions& options) {
  Bytes sum = 0;
  for_expert_lines(model, {}, [&](const Activation& line) {
    sum += is_kept(line.kept, options.keeps) ? line.bytes(options.element) : 0;
  });
  return sum;
}

i64 head_run_on_gpu(const ModelConfig& model, Bytes element) {
  constexpr Bytes kRoom = 512 << 20;
  constexpr i64 kFewest = 4096, kMost = 8192;
  return real(kMost * model.vocab) * element <= kRoom ? kMost : kFewest;
}

Bytes head_work_bytes(const ModelConfig& model, double tokens, Bytes element) {
  const Bytes logits = real(model.vocab) * element, row = row_bytes(model, element);
  return std::max(std::min(tokens, real(kHeadRunOnCpu)) * (logits + 4.0 * real(model.vocab) + row),
                  std::min(tokens, real(head_run_on_gpu(model, element))) * (logits + row));
}

}  // namespace hetermoe
