#pragma once
#include "hetermoe/base/json.h"
#include "hetermoe/model/model_config.h"

namespace hetermoe {

/// The tables of `inspect MODEL --activations`. For the first layer of each kind they list every tensor that
/// it makes for a token, and when it is kept. team: devices of an even team of which one is shown, 0 = of no
/// team.
Json activations_json(const ModelConfig& model, i64 team);
void print_activations(const ModelConfig& model, i64 seq_len, i64 team);

}  // namespace hetermoe
