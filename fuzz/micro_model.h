#pragma once
#include "hetermoe/model/model_config.h"

namespace hetermoe::fuzz {

/// A model whose tensors have a few numbers each, so that an input of some kilobytes can hold all of them.
inline ModelConfig micro_model(i64 num_layers, i64 num_experts) {
  const Json config = {{"model_type", "mixtral"},
                       {"vocab_size", 8},
                       {"hidden_size", 4},
                       {"num_hidden_layers", num_layers},
                       {"num_attention_heads", 2},
                       {"num_key_value_heads", 1},
                       {"intermediate_size", 3},
                       {"num_local_experts", num_experts},
                       {"num_experts_per_tok", 2},
                       {"router_aux_loss_coef", 0.02},
                       {"output_router_logits", true}};
  ModelConfig model = model_from_hf(config, "micro");
  model.name = "micro";
  return model;
}

}  // namespace hetermoe::fuzz
