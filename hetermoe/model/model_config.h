#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "hetermoe/base/fields.h"
#include "hetermoe/base/json.h"
#include "hetermoe/base/types.h"
#include "hetermoe/model/rope_scaling.h"

namespace hetermoe {

enum class AttentionKind { kGqa, kMla };
/// Qwen3: per head after the reshape; OLMoE: whole projection before it.
enum class QkNorm { kNone, kPerHead, kWhole };
enum class RouterScore { kSoftmax, kSigmoid };
/// Group-limited top-k: DeepSeek-V2 uses max, V3 the sum of the two best.
enum class GroupScore { kNone, kMax, kTopTwoSum };

template <>
struct EnumNames<AttentionKind> {
  static const std::vector<std::string>& names();
};
template <>
struct EnumNames<QkNorm> {
  static const std::vector<std::string>& names();
};
template <>
struct EnumNames<RouterScore> {
  static const std::vector<std::string>& names();
};
template <>
struct EnumNames<GroupScore> {
  static const std::vector<std::string>& names();
};

/// Shape and arithmetic of a language model, with experts or all dense, independent of the family's key
/// names. Sizes are in elements.
struct ModelConfig {
  std::string name;        ///< short name, the file's stem, or the folder that holds config.json
  std::string model_type;  ///< Hugging Face family: one of known_model_types() unless something is `assumed`

  i64 vocab = 0, hidden = 0, num_layers = 0;
  i64 max_positions = 0;
  double norm_eps = 1e-5;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool rope_interleaved = false;  ///< DeepSeek rotates interleaved pairs; the others rotate halves
  i64 rotary_dim = 0;             ///< GQA: elements at the front of a head that turn; 0 = all
  bool tie_embeddings = false;
  double init_std = 0.02;  ///< standard deviation of freshly made matrices (initializer_range)

  AttentionKind attention = AttentionKind::kGqa;
  i64 num_heads = 0;
  i64 num_kv_heads = 0;  ///< MLA: = num_heads
  i64 head_dim = 0;      ///< of a query and a key head; MLA: qk_nope_dim + qk_rope_dim
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;     ///< GQA: the projections of queries, keys and values have biases
  bool output_bias = false;  ///< so has that of the output
  /// GQA: each query head has a number that is one more score of each of its softmaxes, of a value of zeros.
  bool attention_sinks = false;
  double clip_qkv = 0;     ///< OLMoE clamps q, k, v to +-clip_qkv; 0 = off
  i64 sliding_window = 0;  ///< a token attends to itself and the sliding_window - 1 before it; 0 = to all
  std::vector<bool> sliding_layer;  ///< [num_layers] where the window holds; empty = in every layer
  // Multi-head latent attention (DeepSeek) only:
  i64 q_lora_rank = 0;  ///< 0 = one full q_proj
  i64 kv_lora_rank = 0, qk_nope_dim = 0, qk_rope_dim = 0, v_dim = 0;

  i64 num_experts = 0, top_k = 0, expert_hidden = 0;  ///< 0 = all layers are dense
  i64 num_shared_experts = 0;                         ///< one MLP of width shared_hidden() on every token
  i64 shared_width = 0;                               ///< of one shared expert; 0 = expert_hidden
  bool shared_gate = false;  ///< what it adds is multiplied by a sigmoid of its own, one for each token
  bool expert_bias = false;  ///< gate, up and down of each routed expert have biases
  /// 0 = silu(gate) * up. Else gate and up are at most the limit, up at least its negative, and the
  /// activation is gate * sigmoid(swiglu_alpha * gate) * (up + 1). Holds for routed experts.
  double swiglu_limit = 0, swiglu_alpha = 0;
  i64 dense_hidden = 0;           ///< width of the MLP of dense layers
  std::vector<bool> dense_layer;  ///< [num_layers] true = a dense MLP, no router, no experts
  RouterScore router_score = RouterScore::kSoftmax;
  bool normalize_top_k = true;      ///< divide the chosen weights by their sum
  double least_weight_sum = 0;      ///< the sum by which chosen weights are divided is at least this
  double routed_scale = 1;          ///< factor on the routing weights
  bool router_bias = false;         ///< e_score_correction_bias, used for the choice only
  bool router_linear_bias = false;  ///< a trained bias of the router's product
  GroupScore group_score = GroupScore::kNone;  ///< kNone also when every group is kept
  i64 num_expert_groups = 1, top_k_groups = 1;
  /// Load-balancing loss as Hugging Face computes it (no division by top_k). DeepSeek's own aux_loss_alpha
  /// (per sequence) is not part of the Hugging Face classes and not read: 0 there unless router_aux_loss_coef
  /// is given. GPT-OSS: 0 unless output_router_logits is true.
  double aux_loss_coef = 0;

  /// Settings of the file that would change the arithmetic and are not implemented, as "key: got X, expected
  /// Y". Shapes, plans and inspection do not depend on them; training refuses them, see check_trainable().
  std::vector<std::string> unsupported;

  /// For a model whose family is not implemented: the keys that gave its sizes, and the assumptions. Else
  /// empty.
  std::string assumed;

  i64 num_moe_layers() const;
  bool has_expert_groups() const { return group_score != GroupScore::kNone; }
  bool is_moe(i64 layer) const { return !dense_layer[static_cast<std::size_t>(layer)]; }
  /// Tokens that a token of the layer attends to; 0 = all before it.
  i64 window_of(i64 layer) const {
    return sliding_layer.empty() || sliding_layer[static_cast<std::size_t>(layer)] ? sliding_window : 0;
  }
  /// Elements of a query or a key that are turned by its position.
  i64 rope_dim() const {
    if (attention == AttentionKind::kMla) return qk_rope_dim;
    return rotary_dim > 0 ? rotary_dim : head_dim;
  }
  i64 query_width() const { return num_heads * head_dim; }  ///< elements of all query heads of a token
  i64 key_width() const { return num_kv_heads * head_dim; }
  i64 value_dim() const {
    return attention == AttentionKind::kMla ? v_dim : head_dim;
  }  ///< of one value head
  i64 value_width() const { return num_kv_heads * value_dim(); }
  i64 output_width() const { return num_heads * value_dim(); }  ///< input of o_proj
  /// Rows of an expert's storages: those of the matrices, then the biases, as long as a row of the matrix.
  i64 gate_up_rows() const { return 2 * expert_hidden + (expert_bias ? 2 * expert_hidden / hidden : 0); }
  i64 down_rows() const { return hidden + (expert_bias ? hidden / expert_hidden : 0); }
  i64 shared_hidden() const { return num_shared_experts * (shared_width > 0 ? shared_width : expert_hidden); }

  bool operator==(const ModelConfig&) const = default;
};

/// Throws ConfigError that names every entry of `unsupported`, if there is one.
void check_trainable(const ModelConfig& model);

/// One tensor of the model under its Hugging Face name.
struct ParamInfo {
  std::string name;
  std::vector<i64> shape;  ///< matrices are [out, in]
  i32 layer = -1;          ///< -1 = not in a layer
  ExpertId expert = -1;    ///< -1 = not of a routed expert
  bool buffer = false;     ///< no gradient, kept in fp32 (e_score_correction_bias)
  i64 numel() const;
};

/// Every tensor, in the order of a checkpoint: embedding, layers (attention side, then experts), final norm,
/// head.
std::vector<ParamInfo> parameters(const ModelConfig& model);

struct ParamCounts {
  i64 total = 0;   ///< all tensors with gradients plus buffers
  i64 active = 0;  ///< non-expert weights incl. both embedding matrices, plus top-k routed and shared experts
  i64 embedding = 0;                ///< embed_tokens (= lm_head when tied)
  i64 head = 0;                     ///< final norm, plus lm_head unless tied
  i64 expert = 0;                   ///< one routed expert
  std::vector<i64> attention_part;  ///< [num_layers] everything of a layer but its routed experts
};
ParamCounts count_parameters(const ModelConfig& model);

/// Reads a Hugging Face config.json. Accepts the aliases of transformers 4 and 5, applies each family's
/// defaults and ignores unknown keys that do not change the arithmetic; those that do are listed in
/// `unsupported`. Throws ConfigError for a missing size or an impossible shape. `where` names the file in
/// errors.
ModelConfig model_from_hf(const Json& config, const std::string& where);

/// The same for a config.json of any model_type. If the family is not implemented, the sizes are read from
/// usual keys, and `assumed` says which; such a model can be planned, simulated and inspected. Throws
/// ConfigError for a missing size, and where the language model is one of several models (text_config).
ModelConfig any_model_from_hf(const Json& config, const std::string& where);

/// The same model with its first layers alone.
ModelConfig first_layers(const ModelConfig& model, i64 layers);

/// The config.json from which model_from_hf reads this model again (all but the name). Throws ConfigError
/// when `unsupported` is not empty: those settings are not kept.
Json to_hf(const ModelConfig& model);

/// How queries and keys of sequences of `seq_len` tokens are turned.
RopeAngles rope_angles(const ModelConfig& model, i64 seq_len);
/// The factor on scores before the softmax.
double score_scale(const ModelConfig& model);

/// A name of configs/models (mixtral-8x7b, d1, tiny, ...), a config.json, or a folder that holds one.
ModelConfig load_model(const std::string& name_or_path);
/// The file that load_model reads.
std::filesystem::path find_model(const std::string& name_or_path);
std::vector<std::string> known_models();
/// Whether this is a folder that only happens to be called like a known model ("demo"): it holds no
/// config.json, and the name means the model.
bool only_sounds_like_a_model(const std::filesystem::path& folder);
/// Values of model_type that are understood.
const std::vector<std::string>& known_model_types();

}  // namespace hetermoe
