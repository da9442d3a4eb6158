#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/json.h"
#include "hetermoe/model/model_config.h"
#include "hetermoe/model/tensor_names.h"

// The differences between families of Hugging Face models. Other code asks the fields of a row, never its
// name.
namespace hetermoe {

/// Keys that say which layers are dense.
enum class DenseLayers {
  kNone,     ///< there are no such keys: every layer has experts, or none has
  kFirst,    ///< first_k_dense_replace layers at the beginning
  kListed,   ///< mlp_only_layers, and those that decoder_sparse_step skips
  kInterval  ///< all but every moe_layer_interval-th from moe_layer_start_index to moe_layer_end_index
};

/// Keys of sliding windows.
enum class WindowKeys {
  kNone,
  kNumber,          ///< sliding_window acts where it is a number
  kSwitch,          ///< only with use_sliding_window
  kSwitchAndLayer,  ///< likewise, in the layers of layer_types or from max_window_layers on
  kNumberAndLayer   ///< where it is a number, in the layers of layer_types or in every second one from the
                    ///< first
};

/// Which elements of a head turn together.
enum class RopeTurn { kHalves, kPairs, kByKey };  ///< by the key rope_interleave, true where it is missing

/// A key with the one value that is implemented; training refuses others. A list must hold it alone.
struct ExpectedKey {
  std::string key;
  Json value;
  bool is_list = false;
};

/// Several names of one key, the first of which is written.
using KeyNames = std::vector<const char*>;

/// A row for each value of model_type. Values are what the configuration class of transformers assumes for a
/// key that the file does not have; an empty name means that the family has no such key.
struct ModelFamily {
  std::string model_type, architecture;
  bool has_experts = true;

  i64 max_positions = 0;
  double norm_eps = 1e-6, rope_theta = 1e4;
  i64 num_kv_heads = 0;  ///< 0 = as many as query heads
  i64 head_dim = 0;      ///< 0 = hidden size / heads
  bool tie_embeddings = false;

  AttentionKind attention = AttentionKind::kGqa;
  RopeTurn rope_turn = RopeTurn::kHalves;
  /// Heads may be turned in part: partial_rotary_factor. None = whole heads only.
  std::optional<double> rotary_share = {};
  std::string rotary_dim_key = {};  ///< says the same in elements
  QkNorm qk_norm = QkNorm::kNone;
  std::string qk_norm_key = {};  ///< norms act where it is true, missing = false; empty = always
  bool qkv_bias = false;
  std::string qkv_bias_key = {};  ///< empty = `qkv_bias` holds for all models
  bool output_bias = false;       ///< where queries have one
  bool attention_sinks = false;
  std::string clip_key = {};
  WindowKeys windows = WindowKeys::kNone;
  i64 window = 0;

  KeyNames experts_keys = {"num_experts", "num_local_experts"};
  KeyNames top_k_keys = {"num_experts_per_tok"};
  std::string expert_width_key = "moe_intermediate_size";
  DenseLayers dense_layers = DenseLayers::kNone;
  i64 first_dense = 0;
  i64 shared_experts = 0;
  std::string shared_experts_key = {};
  i64 shared_width = 0;
  std::string shared_width_key = {};  ///< empty = a shared expert is as wide as a routed one
  bool shared_gate = false;
  bool expert_bias = false;
  double swiglu_limit = 0, swiglu_alpha = 0;  ///< keys of these names; limit 0 = there are none

  RouterScore router_score = RouterScore::kSoftmax;
  bool router_bias = false;
  bool router_linear_bias = false;
  bool normalize_top_k = true;
  std::string normalize_key = {};
  double least_weight_sum = 0;
  std::string least_weight_sum_key = {};
  double routed_scale = 1;
  std::string routed_scale_key = {};
  GroupScore group_score = GroupScore::kNone;
  std::string group_method = {};  ///< groups act where topk_method says so; empty = always
  i64 expert_groups = 1, kept_groups = 1;
  double aux_loss_coef = 0;
  std::string aux_loss_key = "router_aux_loss_coef";
  std::string aux_loss_switch = {};  ///< the loss acts where this key is true; empty = always

  std::vector<ExpectedKey> expected = {};
  TensorNames names = {};
  std::string ignored_tensors = {};  ///< tensors with this in their names are not read
  /// In files the experts of a layer are tensors of [E, in, out], in which columns of gate and up take turns.
  bool interleaved_experts = false;
  std::string sparse_type = {};  ///< model_type once every MLP has become experts; empty = none
};

/// Those that can be trained, in the order in which messages name them.
const std::vector<ModelFamily>& families();
/// Null where there is none of that name.
const ModelFamily* find_family(const std::string& model_type);
/// The row of a model's model_type; of another one a row of the usual names.
const ModelFamily& family_of(const ModelConfig& model);

}  // namespace hetermoe
