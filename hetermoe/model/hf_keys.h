#pragma once
#include "hetermoe/model/family.h"
#include "hetermoe/model/hf_reader.h"

// Functions that the readers of a config.json share.
namespace hetermoe {

// No real model reaches these bounds.
inline constexpr i64 kMaxExperts = i64{1} << 16;
inline constexpr i64 kMaxLayers = i64{1} << 14;

/// Windows act without use_sliding_window.
inline bool act_by_number(WindowKeys keys) {
  return keys == WindowKeys::kNumber || keys == WindowKeys::kNumberAndLayer;
}
/// They may act in some layers alone.
inline bool differ_by_layer(WindowKeys keys) {
  return keys == WindowKeys::kSwitchAndLayer || keys == WindowKeys::kNumberAndLayer;
}

/// Adds to out.unsupported when the key has another value. A missing key is right.
void expect_key(const HfReader& in, const ExpectedKey& key, ModelConfig& out);

/// Throws ConfigError when the language model is one of several models of the file (text_config).
void refuse_nested(const HfReader& in, const std::string& model_type);

/// The routed and shared experts, which layers are dense, and the router.
void read_experts(const HfReader& in, const ModelFamily& family, ModelConfig& out);

/// Each size has a bound of its own. This bounds the product of all sizes as well, because sums over
/// parameters would overflow otherwise. Throws ConfigError.
void check_total_size(const std::string& where, const ModelConfig& model);

}  // namespace hetermoe
