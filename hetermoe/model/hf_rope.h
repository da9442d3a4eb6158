#pragma once
#include "hetermoe/model/family.h"
#include "hetermoe/model/hf_reader.h"
#include "hetermoe/model/model_config.h"

// The keys of rotary embeddings in a config.json.
namespace hetermoe {

/// Reads rope_theta and the scaling, which stand at the top and in rope_scaling (transformers 4) or in
/// rope_parameters (5); both dictionaries are treated alike. Kinds that are not implemented become
/// `out.unsupported`. Needs out.max_positions.
void read_rope(const HfReader& in, const ModelFamily& family, ModelConfig& out);
/// ModelConfig::rotary_dim of heads of a width. Throws ConfigError where it is odd or more than the width.
i64 rotary_dim(const HfReader& in, const ModelFamily& family, i64 head_dim);
/// Bounds that depend on the width that is turned: after attention was read.
void check_rope(const HfReader& in, const ModelConfig& out);
void write_rope(const ModelConfig& model, Json& out);

}  // namespace hetermoe
